"""DPO and distillation by real, small runs: they learn, and killed and resumed they end with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer.runs import killed_and_resumed, metrics, run, write_job

STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "dpo": {"dpo": {}},
    "distill": {"distill": {"teacher": {"uri": "random://tiny"}, "beta": 0.5, "studentShare": 0.5}},
}


def job(home: Path, name: str, algorithm: dict[str, Any], **training: Any) -> Path:
    spec = {
        "model": {"uri": "random://tiny"}, "algorithm": algorithm,
        "data": {"train": {"uri": f"file://{home}/rows.jsonl"}, "eval": {"uri": f"file://{home}/rows.jsonl"}},
        "training": {
            "steps": STEPS, "batchSize": 8, "sequenceLength": 64, "optimizer": {"learningRate": 3e-3}, **training
        },
        "rollout": {"maxNewTokens": 8}, "evaluation": {"everySteps": 4}, "checkpoint": {"everySteps": 2},
        "export": {"format": "safetensors"}, "tensorboard": {"enabled": False}, "accelerator": {"type": "cpu-1"},
    }  # fmt: skip
    return write_job(home, name, spec)


@pytest.mark.parametrize(
    ("kind", "training"), [("dpo", {"lora": {"rank": 4, "alpha": 8}, "microBatchSize": 4}), ("distill", {})]
)
def test_a_killed_and_resumed_run_learns_and_ends_with_the_same_bits(
    tmp_path: Path, kind: str, training: dict[str, Any]
) -> None:
    both = {"chosen": "yes", "rejected": "no"} if kind == "dpo" else {"completion": "yes"}
    rows = [{"prompt": f"{i}?", **both} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(job(tmp_path, "whole", CASES[kind], **training))
    found = metrics(tmp_path / "runs" / "whole")
    assert found[-1]["eval/loss"] < found[0]["eval/loss"]
    killed_and_resumed(job(tmp_path, "killed", CASES[kind], **training), 6)
    assert metrics(tmp_path / "runs" / "killed") == found
    exports = [tmp_path / "runs" / name / "export" / "model.safetensors" for name in ("whole", "killed")]
    assert exports[0].read_bytes() == exports[1].read_bytes()
