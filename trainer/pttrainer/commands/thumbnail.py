"""A picture on a terminal with 24-bit colour: each character is two pixels, one above the other."""

import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from PIL import Image

COLUMNS, LINES = 32, 12
"""Most characters of a thumbnail."""
UPPER_HALF = "\u2580"
PLAIN = "\x1b[0m"


def is_possible(stream: TextIO) -> bool:
    """Return True if a stream is a terminal that says it has 24-bit colour, and colour is wanted."""
    has_colours = os.environ.get("COLORTERM") in ("truecolor", "24bit") and os.environ.get("TERM") != "dumb"
    return stream.isatty() and has_colours and not os.environ.get("NO_COLOR")


def lines(picture: "Image.Image") -> list[str]:
    """Return the lines of a picture, no larger than it is, in its proportions."""
    small = picture.convert("RGB")
    small.thumbnail((COLUMNS, 2 * LINES))
    rows = [[small.getpixel((x, y)) for x in range(small.width)] for y in range(small.height)]
    pairs = [(rows[y], rows[y + 1] if y + 1 < len(rows) else [None] * small.width) for y in range(0, len(rows), 2)]
    return ["".join(map(_character, upper, lower)) + PLAIN for upper, lower in pairs]


def _character(upper: object, lower: object) -> str:
    """Return a character of these colours; the terminal's own stands below a picture's last row."""
    return f"\x1b[38;2;{_colour(upper)}m\x1b[{'49' if lower is None else f'48;2;{_colour(lower)}'}m{UPPER_HALF}"


def _colour(pixel: object) -> str:
    assert isinstance(pixel, tuple)
    return ";".join(map(str, pixel))
