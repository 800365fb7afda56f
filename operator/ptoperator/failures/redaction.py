"""Remove secrets from texts that people read: a trainer's log may hold what a library printed.

The operator knows no secret's value, so it finds them by shape: tokens with a known prefix, authorization headers, what
follows `token=` or `password:`. Left out: secrets without such a shape.
"""

import re

HIDDEN = "[hidden]"
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|ya29\.[\w.-]+|AIza[\w-]{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|sk-[\w-]{16,}"
    r"|xox[a-z]-[\w-]+|glpat-[\w-]+|AKIA[A-Z0-9]{12,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*)"
)
_NAMED = re.compile(
    r"(?P<name>(?:authorization|bearer|api[_-]?key|access[_-]?token|secret|token|passw(?:or)?d|hf_token)"
    r"[\"']?\s*[=:]\s*[\"']?(?:bearer\s+|basic\s+)?)(?P<value>[^\s\"',;&)}\]]{6,})",
    re.IGNORECASE,
)
_HEADER = re.compile(r"\b(?P<name>bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
_IN_URL = re.compile(r"(?P<scheme>\w+://)[^\s/:@]+:[^\s/@]+@")
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def redact(text: str) -> str:
    """Return the text with every likely secret replaced."""
    text = _KEY.sub(HIDDEN, text)
    text = _TOKENS.sub(HIDDEN, text)
    text = _HEADER.sub(lambda match: f"{match['name']} {HIDDEN}", text)
    text = _NAMED.sub(lambda match: f"{match['name']}{HIDDEN}", text)
    return _IN_URL.sub(lambda match: f"{match['scheme']}{HIDDEN}@", text)
