"""Distillation from a teacher behind servers of their own, by real, small runs that lose the servers and themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.trainer import runs
from tests.builders.trainer.runs import exported, killed_and_resumed, losses, metrics, run
from tests.builders.vllm.teacher import TeacherProcess, teachers

from ptapi.failures import ExitCode
from ptapi.run_directory import SERVICES_ENV

STEPS = 8
MODEL = {"uri": "hf://org/teacher"}  # nobody reads it here: the server has its own
SERVICE = {"name": "tutor", "image": "registry/with-vllm:1", "model": MODEL}
SERVED = {"teacher": {"service": "tutor"}, "topK": 8, "beta": 0.5}


def job(home: Path, name: str, distill: dict[str, Any], **parts: Any) -> Path:
    rows = {"uri": f"file://{home}/rows.jsonl"}
    runs.write_rows(home / "rows.jsonl", [{"prompt": f"{i}?", "completion": "yes" * (i % 3 + 1)} for i in range(20)])
    whole: dict[str, Any] = {
        "algorithm": {"sft": None, "distill": distill},
        "data": {"train": rows, "eval": rows},
        "training": {"steps": STEPS, "sequenceLength": 64},
        "rollout": {"maxNewTokens": 8},
        "evaluation": {"everySteps": 4},
        "export": {"format": "safetensors"},
        "tensorboard": {"enabled": False},
        **({"services": [SERVICE]} if "service" in distill["teacher"] else {}),
    }
    return runs.job(home, name, whole, parts)


@pytest.fixture
def tutors(monkeypatch: pytest.MonkeyPatch) -> Any:
    with teachers("tutor", 2) as made:
        monkeypatch.setenv(SERVICES_ENV, json.dumps({"tutor": [one.url for one in made]}))
        yield made


def test_a_killed_and_resumed_run_learns_and_ends_with_the_same_bits_also_without_one_of_the_servers(
    tmp_path: Path, tutors: list[TeacherProcess]
) -> None:
    mixed = {**SERVED, "studentShare": 0.5}
    ahead = {"accelerator": {"type": "cpu-2"}, "rollout": {"placement": "disaggregated", "maxStaleness": 1}}
    run(job(tmp_path, "whole", mixed, **ahead))
    lines = metrics(tmp_path / "runs" / "whole")
    assert lines[-1]["eval/loss"] < lines[0]["eval/loss"]
    tutors[1].kill()
    notes = killed_and_resumed(job(tmp_path, "killed", mixed, **ahead), 6)
    assert "first answer from" in notes
    assert metrics(tmp_path / "runs" / "killed") == lines
    assert exported(tmp_path / "runs" / "killed") == exported(tmp_path / "runs" / "whole")


def test_two_processes_train_as_one_does(tmp_path: Path, tutors: list[TeacherProcess]) -> None:
    run(job(tmp_path, "one", SERVED, accelerator={"type": "cpu-2"}))
    run(job(tmp_path, "two", SERVED), processes=2)
    np.testing.assert_allclose(*(losses(tmp_path / "runs" / name) for name in ("one", "two")), rtol=1e-3)


def test_the_losses_are_those_of_the_same_teacher_beside_the_student(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with teachers("tutor", 1, seed=1, sharpness=1.0) as made:  # of random://tiny: the job's seed and 1
        monkeypatch.setenv(SERVICES_ENV, json.dumps({"tutor": [made[0].url]}))
        run(job(tmp_path, "served", SERVED))
    run(job(tmp_path, "beside", {**SERVED, "teacher": {"uri": "random://tiny"}}))
    served, beside = (np.array(losses(tmp_path / "runs" / name)) for name in ("served", "beside"))
    assert beside.min() > 1e-4
    np.testing.assert_allclose(served, beside, rtol=1e-3, atol=1e-6)


def test_a_service_without_an_address_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVICES_ENV, raising=False)
    words = "teacher.service: tutor: the environment variable POSTTRAIN_SERVICES is not set; hint: the operator sets"
    runs.refused(job(tmp_path, "alone", SERVED), ExitCode.CONFIG_ERROR, words)
