"""What a run reads where its run directory is not on this machine."""

from typing import Any, cast

import pytest

import posttrain
from ptkube.client import Kube

JOB: dict[str, Any] = {
    "metadata": {"name": "a", "namespace": "n", "uid": "1"},
    "spec": {"export": {"format": "peft"}, "output": {"uri": "gs://bucket/runs"}, "algorithm": {"grpo": {}}},
    "status": {"phase": "Succeeded", "progress": {"step": 3, "total": 3}},
}


class Answering:
    def get(self, *_: Any) -> dict[str, Any]:
        return JOB


@pytest.fixture
def run() -> posttrain.Run:
    return posttrain.Run(cast(Kube, Answering()), JOB)


def test_a_result_in_a_bucket_names_its_export_and_how_to_read_the_rest(run: posttrain.Run) -> None:
    result = run.result()
    assert (result.path, result.model, result.adapters) == (
        "gs://bucket/runs/a",
        None,
        "gs://bucket/runs/a/export",
    )
    with pytest.raises(posttrain.Error, match="hint: gcloud storage cat gs://bucket/runs/a/metrics"):
        _ = result.evaluation


def test_the_card_of_a_run_in_a_bucket_shows_its_state(run: posttrain.Run) -> None:
    html = run._repr_html_()
    assert "step 3/3" in html
    assert "<svg" not in html


def test_runs_print_a_line_each(run: posttrain.Run) -> None:
    assert repr(posttrain.Runs([run, run])) == "[<Run a: grpo, Succeeded 3/3>,\n <Run a: grpo, Succeeded 3/3>]"
