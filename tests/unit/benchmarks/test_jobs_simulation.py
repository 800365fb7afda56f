"""What a long line costs a job, in small: four times the jobs for four times the nodes cost each job the same."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "operator_and_cli"))

from simulated_jobs import Simulation

from ptoperator.observe import run_directory


def test_a_line_four_times_as_long_costs_each_job_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "_read_bytes", lambda uri: None)  # nothing trains
    short, long = Simulation(30, nodes=3), Simulation(120, nodes=12)
    for each in (short, long):
        each.run()
    assert long.looks / 120 <= 1.1 * short.looks / 30
    for verb, number in long.api.calls.items():
        assert number / 120 <= 1.2 * short.api.calls[verb] / 30 + 0.1, verb
    assert long.api.calls["list posttrainjobs"] == short.api.calls["list posttrainjobs"]
