"""DPO, KTO, a reward model and distillation by real, small runs: they learn, and resume with the same bits."""

from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import runs
from tests.builders.trainer.runs import exported, killed_and_resumed, metrics, run

STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "dpo": {"dpo": {}},
    "kto": {"kto": {"desirableWeight": 1.2}},
    "reward": {"reward": {"centering": 0.01}},
    "distill": {"distill": {"teacher": {"uri": "random://tiny"}, "beta": 0.5, "studentShare": 0.5}},
}


def job(home: Path, name: str, algorithm: dict[str, Any], **training: Any) -> Path:
    rows = {"uri": f"file://{home}/rows.jsonl"}
    return runs.job(
        home,
        name,
        algorithm={"sft": None, **algorithm},
        data={"train": rows, "eval": rows},
        training={"steps": STEPS, "sequenceLength": 64, **training},
        rollout={"maxNewTokens": 8},
        evaluation={"everySteps": 4},
        export={"format": "safetensors"},
        tensorboard={"enabled": False},
    )


@pytest.mark.parametrize(
    ("kind", "training"),
    [
        ("dpo", {"lora": {"rank": 4, "alpha": 8}, "microBatchSize": 4}),
        ("kto", {"microBatchSize": 4}),
        ("reward", {"lora": {"rank": 4, "alpha": 8}, "microBatchSize": 4}),
        ("distill", {}),
    ],
)
def test_a_killed_and_resumed_run_learns_and_ends_with_the_same_bits(
    tmp_path: Path, kind: str, training: dict[str, Any]
) -> None:
    both = {"completion": "yes"} if kind == "distill" else {"chosen": "yes", "rejected": "no"}
    runs.write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{i}?", **both} for i in range(20)])
    run(job(tmp_path, "whole", CASES[kind], **training))
    lines = metrics(tmp_path / "runs" / "whole")
    assert lines[-1]["eval/loss"] < lines[0]["eval/loss"]
    killed_and_resumed(job(tmp_path, "killed", CASES[kind], **training), 6)
    assert metrics(tmp_path / "runs" / "killed") == lines
    assert exported(tmp_path / "runs" / "killed") == exported(tmp_path / "runs" / "whole")
