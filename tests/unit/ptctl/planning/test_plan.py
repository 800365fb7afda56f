"""`ptctl plan`: what the trainer's verdict becomes for a shell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ptctl.trainer_process

Invoke = Callable[..., Any]


@pytest.mark.parametrize(
    ("ended", "code", "message"), [(0, 0, ""), (70, 1, ""), (64, 2, ""), (1, 1, "exited with code 1")]
)
def test_exit_codes_say_whether_it_fits(
    invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch, ended: int, code: int, message: str
) -> None:
    calls: list[tuple[str, ...]] = []

    def trainer_code(job: Any, verb: str, *words: str, forked: bool) -> int:
        assert forked
        calls.append((job.spec.accelerator.type, verb, *words))
        return ended

    monkeypatch.setattr(ptctl.trainer_process, "trainer_code", trainer_code)
    words = ("--set", "accelerator.type=v6e-32", "--quick", "--price", "2.5", "-o", "json")
    outcome = invoke("plan", "-f", str(job_file), *words)
    assert outcome.code == code
    assert message in outcome.err
    assert calls == [("v6e-32", "preflight", "--output", "json", "--quick", "--price", "2.5")]


def test_a_wrong_job_starts_nothing(invoke: Invoke, job_file: Path) -> None:
    outcome = invoke("plan", "-f", str(job_file), "--set", "accelerator.type=v6e-17")
    assert outcome.code == 2
    assert "v6e-17" in outcome.err
