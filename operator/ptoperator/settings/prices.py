"""The price table: money per chip and hour, by generation and by how the chips were obtained. Pure.

Prices differ by region, contract and year, so there are none here: an administrator sets them. A price for `v6e/spot`
overrides one for `v6e`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache


class PriceError(ValueError):
    """An invalid table: says what is wrong and what is accepted."""


@dataclass(frozen=True)
class Prices:
    """per_chip_hour: by `generation` or `generation/option`."""

    currency: str = ""
    per_chip_hour: dict[str, float] = field(default_factory=dict)

    def of(self, generation: str, option: str) -> float | None:
        """Return the price per chip and hour, or None."""
        return self.per_chip_hour.get(f"{generation}/{option}", self.per_chip_hour.get(generation))

    def amount(self, chips: Mapping[str, int], seconds_by_option: Mapping[str, int]) -> str:
        """Return `41.28 USD` for chips by generation and seconds by option; empty if a price is missing."""
        priced = [
            (self.of(generation, option), count * seconds)
            for generation, count in chips.items()
            for option, seconds in seconds_by_option.items()
            if seconds
        ]
        if not priced or any(price is None for price, _ in priced):
            return ""
        total = sum((price or 0.0) * seconds / 3600 for price, seconds in priced)
        return f"{total:.2f} {self.currency}"


@cache
def parse(text: str) -> Prices:
    """Parse JSON: `{"currency": "USD", "perChipHour": {"v6e": 2.7}}`; an empty text is no table. Raises PriceError."""
    if not text:
        return Prices()
    try:
        document = json.loads(text)
        prices = {str(key): float(value) for key, value in document["perChipHour"].items()}
        currency = str(document["currency"])
    except (ValueError, KeyError, TypeError, AttributeError):
        prices, currency = {}, ""
    if not prices or not currency or not all(math.isfinite(price) and price >= 0 for price in prices.values()):
        accepted = '{"currency": "USD", "perChipHour": {"v6e": 2.7, "v6e/spot": 0.95}}'
        raise PriceError(f"'{text[:100]}' is not a price table; accepted: {accepted}")
    return Prices(currency, prices)
