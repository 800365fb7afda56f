"""Prices per chip-hour by generation: the user's own table, because they differ by region, contract and day.

    currency: USD
    source: cloud.google.com/tpu/pricing, us-east5, on demand, looked up 2026-11-21
    chipHour: {v5p: 0.00, v6e: 0.00}

posttrain ships no prices: a number without its region and date would be taken for a fact.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptapi.accelerators import table
from ptapi.errors import SpecError
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError

_KEYS = ("currency", "source", "chipHour")


@dataclass(frozen=True)
class Prices:
    """chip_hour: price by generation (`v5e`, `v5p`, `v6e`, `tpu7x`, `v4`). source: where and when it was looked up."""

    chip_hour: dict[str, float]
    currency: str = "USD"
    source: str = ""

    def per_million_tokens(self, generation: str, tokens_per_second_per_chip: float) -> float | None:
        """Return the cost of a million tokens, or None if the generation has no price."""
        price = self.chip_hour.get(generation)
        return None if price is None else price / (tokens_per_second_per_chip * 3600) * 1e6


def read(path: str) -> Prices:
    """Read the price table from a file. Raises InputError with the field, the value and what is accepted."""
    try:
        body = kubectl_yaml.read(Path(path).read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (SpecError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not YAML: {error}") from error
    if not isinstance(body, dict) or set(body) - set(_KEYS) or "chipHour" not in body:
        raise InputError(f"{path}: accepted: a map with {', '.join(_KEYS)}", "chipHour: {v6e: 2.50}")
    return Prices(_check_prices(path, body["chipHour"]), str(body.get("currency", "USD")), str(body.get("source", "")))


def _check_prices(path: str, chip_hour: Any) -> dict[str, float]:
    if not isinstance(chip_hour, dict):
        raise InputError(f"{path}: chipHour: {chip_hour!r}: accepted: a map from generation to price")
    for generation, price in chip_hour.items():
        if generation not in table():
            raise InputError(f"{path}: chipHour.{generation}: accepted generations: {', '.join(table())}")
        if isinstance(price, bool) or not isinstance(price, (int, float)) or price <= 0:
            raise InputError(f"{path}: chipHour.{generation}: {price!r}: accepted: a price above 0 per chip and hour")
    return {generation: float(price) for generation, price in chip_hour.items()}
