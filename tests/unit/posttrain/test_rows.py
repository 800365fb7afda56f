"""Rows of metrics and samples, as dicts and as arrays."""

import sys

import numpy as np
import pytest

import posttrain


def test_columns_of_numbers_become_arrays_with_nan_where_a_row_has_none() -> None:
    rows = posttrain.Rows([{"step": 1, "loss": 2.0, "stage": "x"}, {"step": 2, "eval/loss": 1, "ended": True}])
    arrays = rows.to_numpy()
    assert list(arrays) == ["step", "loss", "eval/loss"]
    np.testing.assert_array_equal(arrays["loss"], [2.0, np.nan])
    assert rows.columns == ["step", "loss", "stage", "eval/loss", "ended"]


def test_pandas_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(posttrain.Error, match="pandas is not installed\nhint: `pip install pandas`"):
        posttrain.Rows([{"step": 1}]).to_pandas()
