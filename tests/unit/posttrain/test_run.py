"""What a run reads where its run directory is not on this machine."""

import json
from typing import Any, cast

import pytest
from tests.builders.servers import bucket as bucketserver

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


def test_a_run_in_a_bucket_is_read_from_there(run: posttrain.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run.result()
    assert (result.path, result.model, result.adapters) == (
        "gs://bucket/runs/a",
        None,
        "gs://bucket/runs/a/export",
    )
    with bucketserver.serve_here(monkeypatch) as buckets:
        rows = ({"step": step, "reward": 0.5, "eval/accuracy": step / 2} for step in (1, 2))
        buckets.put("bucket", "runs/a/metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        for step in (9, 10):
            sample = {"prompt": "1+1", "completion": str(step)}
            buckets.put("bucket", f"runs/a/samples/step-{step:08d}.jsonl", json.dumps(sample).encode())
        assert run.metrics().to_numpy()["reward"].tolist() == [0.5, 0.5]
        assert result.evaluation == [{"step": 1, "eval/accuracy": 0.5}, {"step": 2, "eval/accuracy": 1.0}]
        assert run.samples() == [{"step": 10, "prompt": "1+1", "completion": "10"}]
        assert run.samples(9)[0]["completion"] == "9"
        with pytest.raises(posttrain.NotFound, match="no samples"):
            run.samples(3)
    assert buckets.downloads == [f"runs/a/{name}" for name in (
        "metrics.jsonl", "metrics.jsonl", "samples/step-00000010.jsonl", "samples/step-00000009.jsonl")]  # fmt: skip


def test_the_card_of_a_run_in_a_bucket_shows_its_state(run: posttrain.Run) -> None:
    html = run._repr_html_()
    assert "step 3/3" in html
    assert "<svg" not in html


def test_runs_print_a_line_each(run: posttrain.Run) -> None:
    assert repr(posttrain.Runs([run, run])) == "[<Run a: grpo, Succeeded 3/3>,\n <Run a: grpo, Succeeded 3/3>]"
