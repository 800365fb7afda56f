"""Resource quantities (`500m`, `2Gi`, `1e3`): told from other strings, and compared.

Left out: the canonical form; a quantity is stored as it was written.
"""

from __future__ import annotations

import re
from typing import Any

RULE = ("quantities must match the regular expression "
        "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
_QUANTITY = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")


def is_quantity(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and bool(_QUANTITY.fullmatch(value)))
