"""Kubernetes resource quantities (`500m`, `2Gi`, `1e3`): recognise them, and compute with them.

Left out: the canonical form; a quantity is stored as it was written.
"""

import re
from decimal import Decimal
from typing import Any

RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
PATTERN = r"^([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
"""A quantity that is not negative, in the syntax that RE2 and Python share."""
_QUANTITY = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def is_quantity(value: Any) -> bool:
    """Return True for a number or a string that Kubernetes accepts as a quantity."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and bool(_QUANTITY.fullmatch(value)))


def parse_quantity(quantity: Any) -> Decimal:
    """Return the number that a quantity stands for; raise ValueError if it is not one."""
    if not is_quantity(quantity):
        raise ValueError(f"'{quantity}' is not a Kubernetes quantity; accepted: 2, 500m, 1.5, 2Gi, 1e3")
    text = str(quantity)
    if text[-2:] in _BINARY:
        return Decimal(text[:-2]) * Decimal(1024) ** _BINARY[text[-2:]]
    if text[-1:] in _DECIMAL:
        return Decimal(text[:-1]).scaleb(_DECIMAL[text[-1]])
    return Decimal(text)
