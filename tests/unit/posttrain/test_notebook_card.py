"""What a notebook shows of a run: one piece of well-formed HTML, with the run's own text escaped."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import posttrain
from posttrain.notebook_card import run_card, run_table
from ptctl.jobs.view import JobView, view

HOSTILE = '<script>alert("1")</script>&'


def job(**status: Any) -> JobView:
    spec = {"algorithm": {"grpo": {}}, "accelerator": {"type": "cpu-1"}, "output": {"uri": "file:///runs"}}
    status = {"phase": "Running", "progress": {"step": 3, "total": 9, "eta": "1m"}, **status}
    return view({"metadata": {"name": "a", "namespace": "n"}, "spec": spec, "status": status})


def test_a_card_shows_progress_curve_and_sample_and_nothing_from_elsewhere() -> None:
    rows = posttrain.Rows({"step": step, "reward": step / 10, "loss": 1.0} for step in range(1, 100_001))
    html = run_card(job(), rows, (3, {"prompt": HOSTILE, "completion": HOSTILE, "reward": 0.5}), note=HOSTILE)
    tree = ElementTree.fromstring(html)
    bar, curve = tree.find(".//progress"), tree.find(".//polyline")
    assert (bar.get("value"), bar.get("max")) == ("3", "9")
    points = [tuple(map(float, point.split(","))) for point in curve.get("points").split()]
    assert len(points) <= 241
    assert (points[0], points[-1]) == ((0.0, 94.0), (480.0, 2.0)), "from the lowest on the left to the highest"
    assert points == sorted(points)
    assert tree.find(".//script") is None
    assert tree.find(".//pre/b").text == HOSTILE
    assert "http" not in html
    assert "reward: 1e+04 at step 100000" in html


def test_a_run_without_rewards_shows_its_loss_and_numbers_that_no_curve_can_show_are_left_out() -> None:
    rows = posttrain.Rows([{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": 1.0}])
    assert "loss: 1 at step 3 (from 1 to 2)" in run_card(job(), rows, None)
    assert "svg" not in run_card(job(), posttrain.Rows([{"step": 1, "loss": 2.0}]), None)


def test_a_failed_run_shows_its_failure_and_a_table_a_line_for_each() -> None:
    failed = job(phase="Failed", failure={"failureClass": "DataError", "message": HOSTILE})
    assert "DataError: &lt;script&gt;" in run_card(failed, posttrain.Rows(), None)
    table = ElementTree.fromstring(run_table([job(), failed]))
    assert [line[1].text for line in table] == ["phase", "Running", "Failed"]
    assert table.find(".//script") is None
