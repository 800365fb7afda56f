"""Near the limit: who decides, with a pretended compiler that answers as told. (The real one: `make aot`.)"""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.builders.trainer.preflight import job

from ptapi.spec import PostTrainJob
from pttrainer.preflight.advice.changes import changed
from pttrainer.preflight.advice.search import fit
from pttrainer.preflight.check import judge
from pttrainer.preflight.compiler import compiler_process, result
from pttrainer.preflight.compiler.result import Compiled
from pttrainer.preflight.memory import formula, resident
from pttrainer.preflight.report.status_summary import outcome, summarize
from pttrainer.preflight.report.table import text
from pttrainer.preflight.shapes import device_bytes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.shapes.passes import SCORING, TRAIN_STEP

ONE: dict[str, Any] = {
    "model": "llama3.2-1b", "accelerator": "v5e-8", "batchSize": 8, "sequenceLength": 2048, "remat": "full",
}  # fmt: skip
Answers = Mapping[tuple[str, str], float | str]
"""By program and level: the peak as a share of the chip, negative where it is refused; or why there is no answer."""


def compiles(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> list[tuple[str, str]]:
    """What the compiler is asked for."""
    calls: list[tuple[str, str]] = []

    def compile_in_child(of: JobShapes, name: str, level: str, limit_s: float | None = None) -> result.Answer | str:
        calls.append((name, level))
        share = answers[name, level]
        if isinstance(share, str):
            return share
        return {name: Compiled(share > 0, 1.0, peak=int(abs(share) * tpu_topology.usable_bytes(of.slice)))}

    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(compiler_process, "compile_in_child", compile_in_child)
    return calls


@pytest.mark.parametrize(
    ("fast", "full", "fits"),
    [
        (0.79, None, True),
        (-1.16, None, False),
        (0.81, 0.999, True),  # it spends what is left on speed
        (0.99, -1.001, False),
        (-1.14, 0.98, True),  # it computes again what does not fit
        (-1.001, -1.001, False),
    ],
)
@pytest.mark.parametrize("computed", [0.3, 0.97, 1.03, 3.0], ids=lambda share: f"formula {share}")
def test_the_compile_that_training_uses_decides_whatever_the_formula_says(
    monkeypatch: pytest.MonkeyPatch, fast: float, full: float | None, fits: bool, computed: float
) -> None:
    answers = {(TRAIN_STEP, "fast"): fast} | ({} if full is None else {(TRAIN_STEP, "full"): full})
    calls, memory = compiles(monkeypatch, answers), formula.memory

    def other(of: JobShapes) -> formula.Memory:
        exact = memory(of)
        peak = int(computed * exact.available)
        return formula.Memory(
            exact.program.__class__(TRAIN_STEP, "formula", computed <= 1, peak, 0, 0, 0), [], [], peak, exact.available
        )

    monkeypatch.setattr(formula, "memory", other)
    monkeypatch.setattr("pttrainer.preflight.advice.changes.options", lambda *of: [])
    monkeypatch.setattr("pttrainer.preflight.advice.changes.smallest", lambda *of: [])
    verdict = judge(job(**ONE))
    assert verdict.fits is fits
    assert verdict.stage == ("fast" if full is None else "full")
    assert calls == list(answers)
    assert outcome(verdict) == ("Fits" if fits else "DoesNotFit")


def referred() -> PostTrainJob:
    """With a reference model beside the step, of 4 bytes for each weight, over 8 chips; others sample."""
    rollout = {"engine": "vllm", "vllm": {"endpoint": "http://vllm:8000", "weightsDirectory": "/shared"}}
    return job(**ONE, algorithm="grpo", options={"beta": 0.1}, rollout={"maxNewTokens": 1024, **rollout})


def test_what_lies_beside_the_step_counts_where_it_is_asked_whether_the_fast_compile_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = shapes_of(referred().spec)
    buffers = resident.during(resident.resident_buffers(of), "train")
    beside = resident.total(buffers) / tpu_topology.usable_bytes(of.slice)
    assert 0.03 < beside < 0.05
    scored = {(SCORING, "fast"): 0.1}
    room = compiles(monkeypatch, {(TRAIN_STEP, "fast"): 0.75, **scored})
    assert judge(referred()).fits
    assert room == [(TRAIN_STEP, "fast"), (SCORING, "fast")]
    # Alone it has room, with the reference it has not, and what full optimisation takes is not there any more.
    compiles(monkeypatch, {(TRAIN_STEP, "fast"): 0.79, (TRAIN_STEP, "full"): 0.97, **scored})
    verdict = judge(referred())
    assert (verdict.fits, verdict.stage, verdict.peak_during) == (False, "full", TRAIN_STEP)
    assert all(one.fits for one in verdict.programs)
    compiles(monkeypatch, {(TRAIN_STEP, "fast"): 0.79, (TRAIN_STEP, "full"): 1 - beside - 0.001, **scored})
    assert judge(referred()).fits


def test_a_scoring_pass_that_may_or_may_not_fit_is_compiled_as_it_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    of = shapes_of(referred().spec)
    held = resident.training_state(of).bytes - device_bytes.total([*of.arguments.params, *of.arguments.frozen])
    beside = resident.total(resident.during(resident.resident_buffers(of), "train")) + held
    share = 1 - beside / tpu_topology.usable_bytes(of.slice)
    answers = {(TRAIN_STEP, "fast"): 0.5, (SCORING, "fast"): share + 0.02, (SCORING, "full"): share - 0.001}
    calls = compiles(monkeypatch, answers)
    assert judge(referred()).fits
    assert calls == list(answers)
    compiles(monkeypatch, {**answers, (SCORING, "full"): share + 0.001})
    verdict = judge(referred())
    assert (verdict.fits, verdict.peak_during) == (False, SCORING)


def test_without_the_compile_that_could_tell_a_job_is_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    late = "the TPU compiler was stopped after 9 s"
    compiles(monkeypatch, {(TRAIN_STEP, "fast"): -1.05, (TRAIN_STEP, "full"): late})
    verdict = judge(job(**ONE))
    assert (verdict.fits, verdict.stage, outcome(verdict)) == (False, "fast", "Undecided")
    assert verdict.notes == [f"train step, full compile: {late}"]
    compiles(monkeypatch, {(TRAIN_STEP, "fast"): late})
    roomy = judge(job(**ONE))
    assert (roomy.stage, outcome(roomy)) == ("formula", "Fits")
    assert roomy.notes == [f"train step, fast compile: {late}; the formula answers instead"]


def test_the_formula_alone_says_where_it_cannot_tell() -> None:
    words = "within the formula's error of what a chip has: only the compiler can tell"
    for least, most, is_noted in ((0.5, 0.9, False), (0.9, 1.0, True), (1.0, 1.15, True), (1.15, 1.5, False)):
        assert (words in judge(near(least, most), "formula").notes) is is_noted


def test_a_job_that_fits_by_a_hair_needs_no_change_although_the_formula_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = near(1.0, HIGH)
    compiles(monkeypatch, {(TRAIN_STEP, "fast"): -1.01, (TRAIN_STEP, "full"): 0.999})
    answer = fit(refused)
    assert (answer.change.settings, answer.refused, answer.confirmed_by) == ({}, [], "full compile")
    assert answer.change.peak == int(0.999 * answer.change.available)


def test_a_job_that_does_not_fit_by_a_hair_gets_the_smallest_change_although_the_formula_accepts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted = near(LOW, 1.0)

    def compile_in_child(of: JobShapes, name: str, level: str, limit_s: float | None = None) -> result.Answer:
        # The compiler needs a tenth more than the formula says.
        peak = int(1.1 * formula.memory(of).peak)
        return {name: Compiled(peak <= tpu_topology.usable_bytes(of.slice), 1.0, peak=peak)}

    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(compiler_process, "compile_in_child", compile_in_child)
    answer = fit(accepted)
    assert [each.settings for each in answer.refused] == [{}]
    assert list(answer.change.settings) == ["training.microBatchSize"]
    assert answer.change.peak <= answer.change.available


def test_what_a_refused_job_is_told_to_change_fits_by_the_formula_as_the_compiler_corrected_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted = near(LOW, 1.0)
    of = shapes_of(accepted.spec)
    compiles(monkeypatch, {(TRAIN_STEP, "fast"): -1.02, (TRAIN_STEP, "full"): -1.01})
    verdict = judge(accepted)
    factor = 1.01 * verdict.available / formula.memory(of).peak
    assert verdict.factor == pytest.approx(factor)
    assert factor > 1.01
    assert all(option.fits is (option.peak <= option.available) for option in verdict.options)
    change = next(option for option in verdict.options if option.fits)
    computed = formula.memory(shapes_of(changed(of.spec, change.settings))).peak
    assert change.peak == pytest.approx(factor * computed)
    # By the formula alone it would have been this very slice.
    assert of.slice.describe() not in [option.change for option in verdict.smallest]
    assert f"by the formula times {factor:.3f}, as the compiler said of the job" in text(verdict)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.9994, "fits: peak 15.7 of 15.8 GiB per chip"),
        (0.95, "fits: peak 15.0 of 15.8 GiB per chip"),
        (-1.001, "does not fit: peak 15.77 of 15.75 GiB per chip"),
        (-1.0, "does not fit: peak over 15.75 of 15.75 GiB per chip"),
    ],
)
def test_the_sentence_tells_apart_what_a_hair_divides(
    monkeypatch: pytest.MonkeyPatch, share: float, words: str
) -> None:
    compiles(monkeypatch, {(TRAIN_STEP, "fast"): 1.0, (TRAIN_STEP, "full"): share})
    verdict = judge(job(**ONE))
    assert verdict.line().startswith(words)
    assert summarize(verdict).line.startswith(words.partition(": ")[2])


LOW, HIGH = 0.93, 1.07


def near(least: float, most: float) -> PostTrainJob:
    """A job whose peak by the formula is that share of a chip."""
    for rows in range(8, 512, 8):
        candidate = job(**{**ONE, "batchSize": rows})
        memory = formula.memory(shapes_of(candidate.spec))
        if least < memory.peak / memory.available < most:
            return candidate
    raise AssertionError("no such job")
