"""Resource quantities (`500m`, `2Gi`, `1e3`): told from other strings, and compared.

Left out: the canonical form; a quantity is stored as it was written.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_QUANTITY = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")


def is_quantity(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and bool(_QUANTITY.fullmatch(value)))


_SUFFIXES = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def value_of(quantity: Any) -> Decimal:
    """The number a valid quantity stands for."""
    text = str(quantity)
    if text[-2:] in _BINARY:
        return Decimal(text[:-2]) * Decimal(1024) ** _BINARY[text[-2:]]
    if text[-1:] in _SUFFIXES:
        return Decimal(text[:-1]).scaleb(_SUFFIXES[text[-1]])
    return Decimal(text)
