r"""Rewrite the numbers of a text in one notation: other scripts, groups of digits, powers of ten, mixed numbers.

`70,\!000`, `70 000` with a no-break space and `７００００` become `70000`, `1.8e1` and `1.8 \times 10^1` become `18`,
`18 million` becomes `18000000`, and `2 1/2` becomes `5/2`. Everything else stays as it is. Time is linear in the text.
"""

import re
import unicodedata
from fractions import Fraction

NUMBER = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|[1-9]\d?(?:,\d\d)+,\d{3}(?!\d)|\d+)(?:\.\d+)?|\.\d+"
LONGEST = LARGEST_POWER = 64
"""Digits, and power of ten; what is beyond is no answer, and long numbers are slow."""
NOTHING = "?"
"""Replaces a number that is beyond all bounds, which is then no number."""

_SPACE = r"(?:\\[!,;: ]|~|\u00a0)"
_GROUPED = re.compile(
    rf"(?<![\d.])[1-9]\d{{0,2}}(?:(?:\{{,\}}|,)?(?:\\!)*\d{{3}}|{_SPACE}+\d{{3}}|['’_]\d{{3}})+(?!\d)"
)
_ONLY_GROUPS = re.compile(r"(\D*)([1-9]\d{0,2}(?: \d{3})+)(\D*|\.\d+\D*)")
_BEFORE_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_EMPHASIS = re.compile(r"(?<![\w)}*])(\*\*|__?)([^*_\n]+)\1(?![\w*])")
_SUPERSCRIPTS = re.compile(r"(?<=\d)([⁺⁻]?[⁰¹²³⁴-⁹]+)")
_CHARACTERS = str.maketrans("‐‑‒–−⁄∕٫٬", "-----//.,")

_POWERS = {
    "hundred": 2,
    "thousand": 3,
    "lakh": 5,
    "million": 6,
    "crore": 7,
    "billion": 9,
    "trillion": 12,
    "quadrillion": 15,
}
_LETTERS = {"k": 3, "K": 3, "M": 6, "MM": 6, "mn": 6, "mln": 6, "b": 9, "B": 9, "bn": 9}
_LETTERS_OF_MONEY = {**_LETTERS, "m": 6, "mil": 6}
_QUANTITY = re.compile(
    rf"""(?:(?P<currency>[$€£¥₹]\s?)|(?<![A-Za-z_\d])(?<!\d[.,/]))
    (?:(?P<whole>\d+)\s+(?P<and>and\s+)?(?=\d+/\d))?
    (?P<number>{NUMBER})(?:\s?/\s?(?P<denominator>\d+)(?![\d.]))?
    (?:[eE](?P<exponent>[+-]?\d+)(?!\w)
      |\s*(?:×|\\times|\\cdot|[*x·])\s*10\s*(?:\^|\*\*)\s*(?:\{{\s*(?P<braced>[+-]?\d+)\s*\}}|(?P<power>[+-]?\d+)))?
    (?:(?P<between>(?:[\s~(-]|\\[,;: ]|\\(?:text|mathrm|mbox)\s*\{{)*)
       (?:(?P<word>(?i:{"|".join(_POWERS)}))s?|(?P<letter>{"|".join(_LETTERS_OF_MONEY)}))(?![A-Za-z&]))?""",
    re.VERBOSE,
)


def spelled_alike(text: str) -> str:
    """Return the text with ASCII digits, signs and fractions, no spaces between groups of digits, and no emphasis."""
    if not text.isascii():
        text = _SUPERSCRIPTS.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[1])}}}", text)
        text = "".join(map(_ascii, _BEFORE_FRACTION.sub(" ", text))).translate(_CHARACTERS)
    text = _EMPHASIS.sub(r"\2", _GROUPED.sub(_without_spaces, text))
    if only := _ONLY_GROUPS.fullmatch(text):
        text = only[1] + only[2].replace(" ", "") + only[3]
    return text.replace("\u00a0", " ")


def _without_spaces(match: re.Match[str]) -> str:
    """Return the digits; a number that has only commas stays, as it may be two."""
    return match[0] if match[0].replace(",", "").isdigit() else re.sub(r"\D", "", match[0])


def _ascii(character: str) -> str:
    category, decomposition = unicodedata.category(character), unicodedata.decomposition(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Zs":
        return character if character.isascii() else "\u00a0"
    if category == "Cf":  # of no width
        return ""
    written_otherwise = decomposition.startswith(("<wide>", "<small>", "<fraction>"))
    return unicodedata.normalize("NFKC", character) if written_otherwise else character


def quantities(text: str, *, is_prose: bool) -> str:
    """Return the text with plain numbers in place of mixed ones and of those with a power of ten.

    is_prose: `k`, `M` and `B` after a number are thousands, millions and billions, not variables, and `2 and 1/2` is
    one number.
    """
    return _QUANTITY.sub(lambda match: _plain(match, is_prose), text)


def _plain(match: re.Match[str], is_prose: bool) -> str:
    powers = _LETTERS_OF_MONEY if match["currency"] else _LETTERS
    written = match["exponent"] or match["braced"] or match["power"]
    scale = _POWERS.get((match["word"] or "").lower()) or (powers.get(match["letter"]) if is_prose else None)
    whole, number, denominator = match["whole"] or "0", match["number"].replace(",", ""), match["denominator"] or "1"
    if (written is None and scale is None and match["whole"] is None) or (match["and"] and not is_prose):
        return match[0]
    power = int((written or "0")[:4]) + (scale or 0)
    if abs(power) > LARGEST_POWER or max(map(len, (whole, number, denominator))) > LONGEST or not int(denominator):
        return NOTHING
    value = (Fraction(number) / int(denominator) + int(whole)) * Fraction(10) ** power
    after = "" if scale is not None else match["word"] or match["letter"] or ""
    return f"{match['currency'] or ''}{value}{match['between'] or ''}{after}"
