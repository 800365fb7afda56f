"""Kubernetes quantities (`500m`, `2Gi`) as numbers."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

_FACTORS = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9, "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30, "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip


def parse_quantity(text: str) -> Decimal:
    number = text.rstrip("numkKMGTPEi")
    suffix = text[len(number) :]
    try:
        if suffix in _FACTORS and suffix != "E":
            return Decimal(number) * _FACTORS[suffix]
        return Decimal(text) if "e" in text.lower() and text[-1].isdigit() else Decimal(number) * _FACTORS[suffix]
    except (InvalidOperation, KeyError) as error:
        raise ValueError(f"'{text}' is not a Kubernetes quantity; accepted: 2, 500m, 1.5, 2Gi, 1e3") from error
