"""`ptctl init`: every kind of job is valid as written, only terminals are asked, nothing is overwritten."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.ptctl.conftest import Stream

from ptapi.load import load_job
from ptctl.jobs.definition.first_job_kinds import COMMENTS, KINDS
from ptctl.ui.command_line.choices import FIRST_JOBS

Invoke = Callable[..., Any]
FLAGS = ("--data", "gs://lab/train.jsonl", "--output", "gs://lab/runs")


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def typed(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What a person types on a terminal, line by line."""

    def type_lines(text: str) -> None:
        stdin = Stream(is_terminal=True)
        stdin.write(text)
        stdin.seek(0)
        monkeypatch.setattr(sys, "stdin", stdin)

    return type_lines


def test_there_is_a_job_for_every_word_of_the_flag() -> None:
    assert tuple(KINDS) == FIRST_JOBS


@pytest.mark.parametrize("kind", FIRST_JOBS)
@pytest.mark.parametrize("chips", ["v6e-16", "v5p-384", "tpu7x-128"])
def test_every_kind_passes_validate_and_every_comment_is_written(
    invoke: Invoke, in_folder: Path, kind: str, chips: str
) -> None:
    model = KINDS[kind].model
    result = invoke("init", "--algorithm", kind, "--model", model, "--accelerator", chips, *FLAGS)
    assert (result.code, result.out) == (0, "")
    text = (in_folder / "job.yaml").read_text()
    verbs = [*KINDS[kind].checks, "workload create"]
    assert result.err.splitlines()[1:] == [f"  ptctl {verb} -f job.yaml" for verb in verbs]
    checked = invoke("validate", "-f", "job.yaml")
    assert (checked.code, checked.err) == (0, "")
    assert KINDS[kind].algorithm in yaml.safe_load(text)["spec"]["algorithm"]
    assert load_job(text).spec.accelerator.type == chips
    for part, comments in {**COMMENTS, **KINDS[kind].comments}.items():
        block = "".join(f"  # {comment}\n" for comment in comments) + f"  {part}:"
        assert (block in text) == (part in yaml.safe_load(text)["spec"]), part


def test_a_laptop_s_job_has_absolute_addresses_a_name_and_what_set_says(invoke: Invoke, in_folder: Path) -> None:
    flags = ("--model", "random://tiny", "--data", "train.jsonl", "--accelerator", "cpu-1", "--output", "runs")
    out = invoke("init", "--algorithm", "sft", *flags, "--set", "training.steps=5", "-o", "-").out
    job = yaml.safe_load(out)
    assert job["metadata"]["name"] == "tiny-sft"
    assert job["spec"]["data"]["train"]["uri"] == f"file://{in_folder}/train.jsonl"
    assert (job["spec"]["output"]["uri"], job["spec"]["training"]["steps"]) == (f"file://{in_folder}/runs", 5)
    assert list(in_folder.iterdir()) == []


def test_a_file_that_exists_is_not_overwritten(invoke: Invoke, in_folder: Path) -> None:
    (in_folder / "job.yaml").write_text("mine\n")
    result = invoke("init", "--algorithm", "sft", "--model", "random://tiny", "--accelerator", "cpu-1", *FLAGS)
    assert (result.code, (in_folder / "job.yaml").read_text()) == (2, "mine\n")
    assert "job.yaml: exists, and is not overwritten" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--algorithm", "sft"), "missing: --model, --data, --accelerator, --output"),
        (("--model", "random://tiny", "--accelerator", "v6e-17", "--algorithm", "sft", *FLAGS), "nearest: v6e-16"),
        (("--model", "tiny", "--accelerator", "cpu-1", "--algorithm", "sft", *FLAGS), "spec.model.uri: tiny"),
        (("--algorithm", "spo"), "'spo'"),
    ],
)
def test_a_wrong_or_missing_flag_writes_nothing(
    invoke: Invoke, in_folder: Path, words: tuple[str, ...], message: str
) -> None:
    result = invoke("init", *words)
    assert (result.code, list(in_folder.iterdir())) == (2, [])
    assert message in result.err


def test_five_questions_make_a_job_and_a_wrong_answer_is_asked_again(
    invoke: Invoke, typed: Callable[[str], None], in_folder: Path
) -> None:
    typed("grppo\ngrpo\n\n\ngs://lab/train.jsonl\nv6e-17\nv6e-16\ngs://lab/runs\n")
    result = invoke("init", terminal=True)
    assert result.code == 0
    assert result.err.count("?") == 5 + 3  # of them the data, which has no default
    assert "nearest: v6e-16 (16 chips)" in result.err
    job = load_job((in_folder / "job.yaml").read_text())
    assert (job.spec.algorithm.label, job.spec.model.uri) == ("grpo", KINDS["grpo"].model)
    assert (job.spec.accelerator.type, job.spec.output.uri) == ("v6e-16", "gs://lab/runs")


def test_only_what_no_flag_says_is_asked(invoke: Invoke, typed: Callable[[str], None], in_folder: Path) -> None:
    typed("gs://lab/pairs.jsonl\n")
    words = ("--algorithm", "dpo", "--model", "random://tiny", "--accelerator", "cpu-1", "--output", "/tmp/runs")
    result = invoke("init", *words, "-o", "dpo.yaml", terminal=True)
    assert (result.code, result.err.count("?")) == (0, 1)
    assert load_job((in_folder / "dpo.yaml").read_text()).spec.data.train.uri == "gs://lab/pairs.jsonl"


def test_the_end_of_input_writes_nothing(invoke: Invoke, typed: Callable[[str], None], in_folder: Path) -> None:
    typed("sft\n")
    assert (invoke("init", terminal=True).code, list(in_folder.iterdir())) == (130, [])
