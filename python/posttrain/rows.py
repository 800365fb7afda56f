"""Rows of a run's files, metrics or samples: a list of dicts, also as arrays or as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posttrain.errors import Error

if TYPE_CHECKING:
    import numpy
    import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]

Row = dict[str, Any]


class Rows(list[Row]):
    """A list of dicts, the oldest first."""

    @property
    def columns(self) -> list[str]:
        """Return the names of all columns, in the order of their first appearance."""
        return list(dict.fromkeys(name for row in self for name in row))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame. Raises Error where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise Error("pandas is not installed", "`pip install pandas`, or use .to_numpy()") from error
        return pandas.DataFrame(list(self))

    def to_numpy(self) -> dict[str, numpy.ndarray[Any, Any]]:
        """Return an array for each column that holds numbers; NaN where a row has none."""
        try:
            import numpy
        except ImportError as error:
            raise Error("numpy is not installed", "`pip install numpy`, or read the rows as dicts") from error
        return {
            name: numpy.array([_float(row.get(name)) for row in self])
            for name in self.columns
            if any(is_number(row.get(name)) for row in self)
        }


def is_number(value: Any) -> bool:
    """Return True for a number, not for True and False."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: Any) -> float:
    return float(value) if is_number(value) else float("nan")
