"""Metrics as columns, and as few points to draw."""

import json
from typing import Any

import pytest

from ptctl.page.curves import MetricColumns


def columns(*rows: dict[str, Any]) -> MetricColumns:
    made = MetricColumns()
    made.read(json.dumps(row).encode() for row in rows)
    return made


def test_a_long_curve_keeps_its_spikes_and_its_mean() -> None:
    values = [0.0] * 10_000
    values[5_003], values[9_999] = 7.0, -3.0
    run = columns(*({"step": i, "time": 10.0 + i / 2, "loss": value} for i, value in enumerate(values)))
    curve = run.curve("loss", "step", None, None, 100)
    assert (len(curve.x), curve.per_point) == (100, 100)
    assert (max(curve.high), min(curve.low)) == (7.0, -3.0)
    assert curve.mean[50] == pytest.approx(0.07)
    assert curve.x[0] < 100
    assert curve.x[-1] > 9_900


def test_a_window_has_all_of_its_points_by_step_and_by_time() -> None:
    run = columns(*({"step": i, "time": 100.0 + i / 2, "loss": i} for i in range(1_000)))
    assert run.curve("loss", "step", 10, 14, 100)[:3] == ([10, 11, 12, 13, 14], [10, 11, 12, 13, 14], [])
    by_time = run.curve("loss", "time", 5, 6, 100)
    assert (by_time.x, by_time.mean) == ([5, 5.5, 6], [10, 11, 12])
    assert run.curve("reward", "step", None, None, 100).x == []


def test_a_step_that_comes_again_replaces_it_and_all_after_it() -> None:
    run = columns(*({"step": step, "loss": step} for step in (1, 2, 3, 4)), {"step": 3, "loss": 30.0})
    assert run.curve("loss", "step", None, None, 9)[:2] == ([1, 2, 3], [1, 2, 30])
    assert (run.last_step, len(run)) == (3, 3)


def test_what_is_no_finite_number_is_not_drawn_and_no_row_is_left_out() -> None:
    run = MetricColumns()
    run.read(
        [
            b'{"step": 1, "loss": NaN, "eval/loss": 2}',
            b'{"step": 2, "loss": true}',
            b"[1]",
            b'{"step"',
            b'{"step": 3, "loss": 1e999}',
        ]
    )
    assert run.names == ["eval/loss"]
    assert run.curve("eval/loss", "step", None, None, 9).x == [1]
