"""`ptctl plan fit` and `plan matrix`: what becomes of the trainer's answer, and the user's prices."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import ptctl.trainer_process
from ptctl.planning.prices import Prices, read

Invoke = Callable[..., Any]
CHANGE = {"settings": {"training.microBatchSize": 16, "training.lora": {}}, "peak": 12 << 30, "available": 16 << 30}
FITTED = {
    "change": {**CHANGE, "devices_per_chip": 1, "step_seconds": 3.087},
    "refused": [{"settings": {}}],
    "confirmed_by": "fast compile",
    "tried": 38,
    "notes": ["rollout.samplerShare: 0.25 wastes least"],
}
CELL = {
    "accelerator": "v6e-16 (16 chips)", "generation": "v6e", "chips": 16, "batch_size": 32, "tensor": 1, "fits": True,
    "peak_gib": 22.75, "available_gib": 31.25, "seconds_per_step": 0.136, "tokens_per_second": 240000.0,
    "tokens_per_second_per_chip": 15000.0, "why": "",
}  # fmt: skip
NONE = {
    **CELL, "batch_size": 20, "fits": False, "peak_gib": None, "available_gib": None, "seconds_per_step": None,
    "tokens_per_second": None, "tokens_per_second_per_chip": None, "tensor": None,
    "why": "spec.training.batchSize: 20: a multiple of 16, because it is split 16 ways",
}  # fmt: skip


@pytest.fixture
def trainer_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The calls of the trainer, which returns at once."""
    calls: list[tuple[str, ...]] = []

    def trainer_code(job: Any, verb: str, *words: str, forked: bool) -> int:
        calls.append((verb, *words))
        answer = FITTED if "--fit" in words else [CELL, NONE]
        if "--write" in words:
            Path(words[-1]).write_text(json.dumps(answer))
        return 0

    monkeypatch.setattr(ptctl.trainer_process, "trainer_code", trainer_code)
    return calls


def test_fit_prints_the_users_job_with_the_change_and_says_what_it_is(
    invoke: Invoke, job_file: Path, trainer_calls: list[tuple[str, ...]]
) -> None:
    outcome = invoke("plan", "fit", "-f", str(job_file), "--keep", "chips", "--quick")
    assert outcome.code == 0
    before, after = yaml.safe_load(job_file.read_text()), yaml.safe_load(outcome.out)
    assert after["spec"] == {**before["spec"], "training": {"microBatchSize": 16, "lora": {}}}
    assert "training.microBatchSize: unset -> 16" in outcome.err
    memory = "12.0 of 16.0 GiB per chip by the fast compile"
    assert f"{memory}; about 3.09 s a step by the compiler's estimates" in outcome.err
    assert "refused by the compiler: the job as it is" in outcome.err
    assert trainer_calls[0][:5] == ("preflight", "--fit", "--quick", "--keep", "chips")


def test_fit_writes_a_file_that_is_a_job(
    invoke: Invoke, job_file: Path, tmp_path: Path, trainer_calls: list[tuple[str, ...]]
) -> None:
    target = tmp_path / "fitting.yaml"
    outcome = invoke("plan", "fit", "-f", str(job_file), "-o", str(target))
    assert (outcome.code, outcome.out) == (0, "")
    assert invoke("validate", "-f", str(target)).code == 0


def test_fit_without_a_change_that_helps_ends_with_1(
    invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trainer_code(job: Any, verb: str, *words: str, forked: bool) -> int:
        Path(words[-1]).write_text(json.dumps({**FITTED, "change": None, "refused": []}))
        return 70

    monkeypatch.setattr(ptctl.trainer_process, "trainer_code", trainer_code)
    outcome = invoke("plan", "fit", "-f", str(job_file))
    assert (outcome.code, outcome.out) == (1, "")
    assert "layouts tried fits" in outcome.err


def test_the_matrix_as_text_json_and_csv_says_the_same(
    invoke: Invoke, job_file: Path, tmp_path: Path, trainer_calls: list[tuple[str, ...]]
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nsource: a contract\nchipHour: {v6e: 2.7}\n")
    flags = ("plan", "matrix", "-f", str(job_file), "--accelerator", "v6e-16", "--batch-size", "32")
    text = invoke(*flags, "--prices", str(prices))
    assert text.code == 0
    assert trainer_calls[0][:6] == ("preflight", "--matrix", "--accelerator", "v6e-16", "--batch-size", "32")
    # 2.70 for 15,000 tokens a second over an hour
    assert text.out.splitlines()[1].split()[-9:] == [
        "32",
        "1",
        "yes",
        "22.8",
        "31.2",
        "0.136",
        "240,000",
        "15,000",
        "0.050",
    ]
    assert text.out.splitlines()[2].endswith("a multiple of 16")
    assert "EUR per chip-hour: a contract" in text.err
    rows = list(csv.DictReader(io.StringIO(invoke(*flags, "--prices", str(prices), "-o", "csv").out)))
    document = json.loads(invoke(*flags, "--prices", str(prices), "-o", "json").out)
    assert float(rows[0]["costPerMillionTokens"]) == pytest.approx(document[0]["costPerMillionTokens"]) == 0.05
    assert (rows[1]["peakGib"], document[1]["peakGib"]) == ("", None)


def test_the_matrix_as_a_picture(
    invoke: Invoke, job_file: Path, tmp_path: Path, trainer_calls: list[tuple[str, ...]]
) -> None:
    target = tmp_path / "matrix.png"
    outcome = invoke("plan", "matrix", "-f", str(job_file), "-o", str(target))
    assert (outcome.code, outcome.out) == (0, "")
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "no prices given, so no cost" in outcome.err


def test_a_price_of_the_table_is_the_price_of_the_plan(
    invoke: Invoke, job_file: Path, tmp_path: Path, trainer_calls: list[tuple[str, ...]]
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("chipHour: {v6e: 2.7}\n")
    words = ("--set", "accelerator.type=v6e-32", "--prices", str(prices))
    assert invoke("plan", "-f", str(job_file), *words).code == 0
    assert trainer_calls[0][-4:] == ("--price", "2.7", "--chip-hour", "v6e=2.7")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "--quick", "--depth", "full"), "does not work with --quick"),
        (("plan", "--price", "-1"), "not in the range x>=0"),
        (("plan", "-o", "csv"), "'csv' is not one of 'text', 'json'"),
        (("plan", "matrix", "-o", "matrix.pdf"), "accepted: text, json, csv"),
    ],
)
def test_flags_that_do_not_work_together_are_refused(
    invoke: Invoke, job_file: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = invoke(*words, "-f", str(job_file))
    assert outcome.code == 2
    assert message in outcome.err


@pytest.mark.parametrize(
    ("flag", "verb"),
    [
        ("--fit", "fit"),
        ("--keep=chips", "fit"),
        ("--matrix", "matrix"),
        ("--accelerator=v6e-16", "matrix"),
        ("--batch-size=64", "matrix"),
    ],
)
def test_a_flag_that_has_become_a_verb_is_refused_with_the_verb(
    invoke: Invoke, job_file: Path, flag: str, verb: str
) -> None:
    outcome = invoke("plan", "-f", str(job_file), flag)
    assert outcome.code == 2
    assert f"hint: `ptctl plan {verb} -f job.yaml`\n" in outcome.err


def test_flags_in_front_of_a_verb_are_refused_and_never_dropped(invoke: Invoke, job_file: Path) -> None:
    outcome = invoke("plan", "-f", str(job_file), "fit")
    assert outcome.code == 2
    assert "hint: `ptctl plan fit -f job.yaml`" in outcome.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chipHour: {v9: 1}", "chipHour.v9: accepted generations: "),
        ("chipHour: {v6e: free}", "chipHour.v6e: 'free': accepted: a price above 0"),
        ("v6e: 1", "accepted: a map with currency, source, chipHour"),
    ],
)
def test_wrong_prices_are_refused_by_name(
    invoke: Invoke, job_file: Path, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    outcome = invoke("plan", "matrix", "-f", str(job_file), "--prices", str(file))
    assert outcome.code == 2
    assert message in outcome.err


def test_cost_follows_from_price_and_speed(tmp_path: Path) -> None:
    assert Prices({"v6e": 3.6}).per_million_tokens("v6e", 1000.0) == pytest.approx(1.0)
    assert Prices({"v6e": 3.6}).per_million_tokens("v5p", 1000.0) is None
    (tmp_path / "p.yaml").write_text("chipHour: {v5p: 4}")
    assert read(str(tmp_path / "p.yaml")).chip_hour == {"v5p": 4.0}
