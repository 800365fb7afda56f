"""Preflight as the operator runs it: what ends up in the termination message, the run directory and beside the runs."""

import dataclasses
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer.preflight import job

from ptapi.load import dump_job
from ptapi.run_directory import LEASE, METRICS, PREFLIGHT, Lease, Termination
from ptapi.status import PreflightStatus
from pttrainer.preflight.check import judge
from pttrainer.preflight.compiler import compiler_process, programs, result
from pttrainer.preflight.compiler.result import Compiled
from pttrainer.preflight.report import verdict_cache
from pttrainer.preflight.report.operator_job import report
from pttrainer.preflight.report.status_summary import BYTES, assignments, outcome, summarize
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.device_bytes import total
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, ROLLOUT, SCORING, WEIGHTS
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.verdict import Stage, Verdict

GIB = 2**30
SMALL: dict[str, Any] = {
    "model": "llama3.2-1b", "accelerator": "v5e-4", "batchSize": 8, "sequenceLength": 2048, "remat": "full",
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that becomes the termination message."""
    file = tmp_path / "termination-log"
    monkeypatch.setenv("POSTTRAIN_TERMINATION_LOG", str(file))
    return file


def written(folder: Path, **fields: Any) -> Path:
    """A job file whose runs go below this folder."""
    wanted = job(**fields)
    spec = wanted.spec.model_copy(update={"output": wanted.spec.output.model_copy(update={"uri": f"file://{folder}"})})
    file = folder / "job.yaml"
    file.write_text(dump_job(wanted.model_copy(update={"spec": spec})))
    return file


def reported(log: Path) -> PreflightStatus:
    status = Termination.model_validate_json(log.read_text()).preflight
    assert status is not None
    return status


def compiles(monkeypatch: pytest.MonkeyPatch, answer: Compiled | str, **others: Compiled) -> list[tuple[str, str]]:
    """A compiler that is there and answers this; of a rollout, its three programs. What it was asked for."""
    calls: list[tuple[str, str]] = []

    def compile_in_child(of: Any, name: str, level: str, limit_s: float | None = None) -> result.Answer | str:
        calls.append((name, level))
        if isinstance(answer, str):
            return answer
        names = (WEIGHTS, PREFILL, DECODE) if name == ROLLOUT else (name,)
        return {each: others.get(each.rpartition("/")[2], answer) for each in names}

    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(compiler_process, "compile_in_child", compile_in_child)
    return calls


def test_the_verdict_goes_into_message_and_run_directory_per_chip(tmp_path: Path, log: Path) -> None:
    assert report(written(tmp_path, **SMALL), "formula", None) == 0
    status = reported(log)
    assert (status.outcome, status.stage, status.remembered) == ("Fits", "formula", False)
    document = json.loads((tmp_path / "asked" / "preflight.json").read_text())
    assert document["peak"] / GIB == pytest.approx(status.peak_gib, rel=1e-3)
    assert PreflightStatus.model_validate(document["brief"]) == status
    assert status.line.startswith(f"peak {status.peak_gib:.1f} of 15.8 GiB per chip on v5litepod-4 (4 chips)")


def test_what_does_not_fit_ends_as_out_of_memory_with_three_changes(tmp_path: Path, log: Path) -> None:
    assert report(written(tmp_path, **{**SMALL, "model": "llama3.1-8b"}), "formula", None) == 70
    status = reported(log)
    assert status.outcome == "DoesNotFit"
    assert 0 < len(status.changes) <= 3
    assert all(change.peak_gib <= change.available_gib for change in status.changes)
    assert status.smallest


def test_a_job_of_the_same_shapes_compiles_nothing_again(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = compiles(monkeypatch, Compiled(True, 1.0, peak=3 * GIB))
    assert report(written(tmp_path, **SMALL), "auto", None) == 0
    first = reported(log)
    assert report(written(tmp_path, **SMALL), "auto", None) == 0
    assert calls == [("train step", "fast")]
    again = reported(log)
    assert again == first.model_copy(update={"remembered": True})
    assert report(written(tmp_path, **{**SMALL, "batchSize": 16}), "auto", None) == 0
    assert len(calls) == 2
    assert reported(log).key != first.key


def test_a_formulas_verdict_is_not_remembered(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiles(monkeypatch, "the TPU compiler ended abruptly")
    assert report(written(tmp_path, **SMALL), "auto", None) == 0
    assert (reported(log).stage, reported(log).notes) == (
        "formula",
        ["train step, fast compile: the TPU compiler ended abruptly; the formula answers instead"],
    )
    assert not (tmp_path / ".preflight").exists()


def test_a_compile_that_is_killed_leaves_the_formulas_verdict(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process is gone."""

    def killed(*of: Any, **how: Any) -> Any:
        raise Killed

    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(compiler_process, "compile_in_child", killed)
    with pytest.raises(Killed):
        report(written(tmp_path, **SMALL), "auto", None)
    assert (reported(log).outcome, reported(log).stage) == ("Fits", "formula")


def test_a_compiler_has_its_time_and_no_more() -> None:
    of = shapes_of(job(**SMALL).spec)
    assert compiler_process.compile_in_child(of, "train step", "fast", 0.0) == "the TPU compiler was stopped after 0 s"


def test_a_compiler_has_its_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_process, "HOST_BYTES", 4_000_000)
    monkeypatch.setattr(compiler_process, "LOOK_S", 0.01)
    monkeypatch.setattr(tpu_topology, "prepare_environment", partial(time.sleep, 60))
    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    judged = judge(job(**SMALL), "fast")
    assert (judged.stage, judged.fits) == ("formula", True)
    why = "the TPU compiler was stopped when it held more than 0.0 GB of this machine's memory"
    assert judged.notes == [f"train step, fast compile: {why}; the formula answers instead"]


def test_a_verdict_that_a_stopped_compiler_left_open_is_not_remembered(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = compiles(monkeypatch, Compiled(False, 1.0, peak=16 * GIB))  # 15.75 are there
    answers = compiler_process.compile_in_child

    def stopped(of: Any, name: str, level: Any, limit_s: float | None = None) -> result.Answer | str:
        return "stopped" if level == "full" else answers(of, name, level, limit_s)

    monkeypatch.setattr(compiler_process, "compile_in_child", stopped)
    assert report(written(tmp_path, **SMALL), "auto", None) == 0
    assert reported(log).outcome == "Undecided"
    assert report(written(tmp_path, **SMALL), "auto", None) == 0
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"accelerator": "cpu-4"}, "preflight knows TPUs and GPUs only"),
        ({"model": "no-such-model"}, "the model's sizes cannot be read"),
    ],
)
def test_what_preflight_cannot_say_is_no_fault_of_the_job(
    tmp_path: Path, log: Path, fields: dict[str, Any], words: str
) -> None:
    assert report(written(tmp_path, **{**SMALL, **fields}), "formula", None) == 0
    assert reported(log).outcome == "Undecided"
    assert words in reported(log).line


def test_a_job_that_is_wrong_in_itself_says_so(tmp_path: Path, log: Path) -> None:
    other = tmp_path / "asked" / "owner.json"
    other.parent.mkdir()
    other.write_text('{"name": "somebody-else"}')
    (tmp_path / "asked" / METRICS).write_text('{"step": 1}\n')
    assert report(written(tmp_path, **SMALL), "formula", None) == 64
    message = Termination.model_validate_json(log.read_text())
    assert (message.failure_class, message.preflight) == ("ConfigError", None)
    assert "belongs to another job" in message.message


def test_a_directory_that_a_run_writes_in_gets_no_verdict_and_is_said_to_have_none(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "asked"
    assert report(written(tmp_path, **SMALL), "formula", None) == 0
    assert sorted(file.name for file in run.iterdir()) == [LEASE, PREFLIGHT]
    (run / PREFLIGHT).unlink()
    (run / LEASE).write_text(Lease(holder="ptctl train on laptop-a, pid 7", token="a").model_dump_json(by_alias=True))
    assert report(written(tmp_path, **SMALL), "formula", None) == 0
    assert "ptctl train on laptop-a, pid 7" in capsys.readouterr().err
    assert not (run / PREFLIGHT).exists()


def verdict(**changes: Any) -> Verdict:
    return dataclasses.replace(judge(job(**SMALL), "formula"), **changes)


@pytest.mark.parametrize(
    ("stage", "share", "expected"),
    [
        ("formula", 1.1, "Undecided"),
        ("formula", 1.2, "DoesNotFit"),
        ("fast", 1.01, "Undecided"),
        ("fast", 1.2, "DoesNotFit"),
        ("full", 1.01, "DoesNotFit"),
    ],
)
def test_all_but_the_full_compile_must_be_sure_to_say_no(stage: Stage, share: float, expected: str) -> None:
    accepted = verdict()
    programs = [dataclasses.replace(one, stage=stage) for one in accepted.programs]
    peak = int(share * accepted.available)
    assert outcome(verdict(fits=False, stage=stage, programs=programs, peak=peak)) == expected


def test_a_brief_is_small_whatever_the_verdict() -> None:
    long = verdict(notes=["x" * 1000] * 9, versions={f"package-{n}": "1" * 400 for n in range(8)})
    assert len(summarize(long).model_dump_json(by_alias=True)) <= BYTES
    assert summarize(long).line == summarize(verdict()).line


def test_settings_read_as_flags_of_ptctl() -> None:
    settings = {"training.microBatchSize": 8, "accelerator": {"type": "v5p-8", "slices": 1}, "training.lora": {}}
    assert assignments(settings) == [
        "training.microBatchSize=8", "accelerator.type=v5p-8", "accelerator.slices=1", "training.lora={}",
    ]  # fmt: skip


def test_the_key_forgets_names_and_data_and_nothing_that_a_verdict_follows_from() -> None:
    def key(depth: str = "auto", versions: dict[str, str] | None = None, **fields: Any) -> str:
        of = shapes_of(job(**{**SMALL, **fields}).spec)
        return verdict_cache.key(of.spec, of.config, depth, versions or {"jax": "0.10.2"})

    same = job(**SMALL).spec.model_copy(
        update={"output": job(**SMALL).spec.output.model_copy(update={"uri": "gs://lab"})}
    )
    assert verdict_cache.key(same, shapes_of(same).config, "auto", {"jax": "0.10.2"}) == key()
    others = [
        key("full"), key(versions={"jax": "0.11"}), key(model="llama3.2-3b"), key(accelerator="v6e-4"),
        key(batchSize=16), key(algorithm="dpo"),
    ]  # fmt: skip
    assert len({key(), *others}) == 7


def test_the_oldest_verdicts_go_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_cache, "MOST", 4)
    monkeypatch.setattr(verdict_cache, "KEPT", 2)
    uri, empty = f"file://{tmp_path}", PreflightStatus(outcome="Fits", line="")
    for name in ("d", "c", "b", "a"):
        verdict_cache.store(uri, name, empty, {})
    (tmp_path / ".preflight" / "broken.json").write_text("{")
    assert verdict_cache.load(uri, "d") is not None
    verdict_cache.store(uri, "e", empty, {})
    assert sorted(file.name for file in (tmp_path / ".preflight").iterdir()) == ["a.json", "e.json"]


def test_reference_and_old_policy_are_scored_in_a_program_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = compiles(monkeypatch, Compiled(True, 1.0, peak=3 * GIB))
    plain = {**SMALL, "algorithm": "grpo"}
    judge(job(**plain, options={"beta": 0.0}))
    judge(job(**plain, options={"beta": 0.1}))
    judge(job(**plain, options={"updatesPerBatch": 2}))
    judge(job(**{**SMALL, "algorithm": "dpo"}))
    judge(job(**{**SMALL, "algorithm": "dpo"}, options={"loss": "simpo"}))
    step, score, rollout = ("train step", "fast"), ("scoring pass", "fast"), ("rollout", "fast")
    assert calls == [step, rollout, step, score, rollout, step, score, rollout, step, score, step]


def test_while_one_scores_the_optimizer_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = job(**SMALL, algorithm="grpo", options={"updatesPerBatch": 2})
    small = Compiled(True, 1.0, peak=GIB)
    compiles(monkeypatch, Compiled(True, 1.0, peak=9 * GIB), weights=small, prefill=small, decode=small)
    judged = judge(scored)
    assert judged.peak_during == "scoring pass"
    assert judged.peak == 9 * GIB + total(shapes_of(scored.spec).arguments.optimizer) + 8 + 4


def test_a_rollout_is_judged_with_training_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Compiled(True, 1.0, peak=5 * GIB, arguments=2 * GIB, output=3 * GIB)
    prefill = Compiled(True, 1.0, peak=6 * GIB, arguments=3 * GIB, output=GIB)
    decode = Compiled(True, 1.0, peak=7 * GIB, arguments=6 * GIB, output=2 * GIB)
    sampled = job(**SMALL, algorithm="grpo", options={"beta": 0.1, "groupSize": 4}, rollout={"slots": 4})
    compiles(monkeypatch, Compiled(True, 1.0, peak=GIB), weights=weights, prefill=prefill, decode=decode)
    judged, of = judge(sampled), shapes_of(sampled.spec)
    state, reference = total([*of.arguments.state, *of.arguments.frozen]), total(of.arguments.params)
    # The second pool of prompts is computed while rows wait: what decoding holds, without weights and pool.
    assert judged.peak_during == "rollout/prefill"
    assert judged.peak == 6 * GIB + (6 - 3 - 1) * GIB + state + reference
    whole = job(**SMALL, algorithm="grpo", options={"beta": 0.1, "groupSize": 4})
    assert judge(whole).peak_during == "rollout/decode"
    assert judge(whole).peak == 7 * GIB + state + reference
    assert "a rollout's memory is compiled" in " ".join(judge(whole).assumptions)


def test_a_rollout_that_fits_by_a_hair_is_compiled_at_full_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = job(**SMALL, algorithm="grpo")
    held = total(shapes_of(sampled.spec).arguments.state)
    has = int(15.75 * GIB)
    for share, levels in ((0.9, ["fast"]), (0.99, ["fast", "full"]), (1.01, ["fast", "full"]), (1.1, ["fast"])):
        small, decode = Compiled(True, 1.0, peak=GIB), Compiled(True, 1.0, peak=int(share * has) - held)
        calls = compiles(monkeypatch, small, decode=decode)
        assert judge(sampled).fits == (share < 1)
        assert [level for name, level in calls if name == ROLLOUT] == levels


def test_what_a_deep_model_takes_follows_from_two_shallow_ones() -> None:
    few = Compiled(True, 1.0, peak=10, arguments=6, output=2, traffic=(Traffic("all-gather", 4, 100),))
    more = Compiled(True, 1.0, peak=14, arguments=9, output=2, traffic=(Traffic("all-gather", 6, 150),))
    deep = result.deeper(few, more, steps=15.0, has=70)  # two layers, four, 32
    assert (deep.peak, deep.arguments, deep.output) == (70, 51, 2)
    assert deep.fits
    assert not result.deeper(few, more, 15.0, has=69).fits
    assert deep.traffic == (Traffic("all-gather", 34, 850),)


@pytest.mark.parametrize(("model", "depths"), [("llama3.1-8b", (2, 4)), ("gemma2-9b", (2, 4)), ("gemma3-4b", (6, 12))])
def test_shallow_models_have_whole_periods_of_layers(model: str, depths: tuple[int, int]) -> None:
    of = shapes_of(job(**{**SMALL, "model": model}).spec)
    pair = programs.shallow(of)
    assert pair is not None
    assert tuple(each.config.layers for each in pair) == depths
    assert pair[0].config.local_layers == of.config.local_layers[: depths[0]]


def test_every_program_lowers_from_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine's own devices: the very functions of training take the shapes that preflight gives them."""
    import jax

    from pttrainer.runtime.distributed import sharding

    of = shapes_of(job("tiny", "cpu-1", algorithm="grpo", options={"beta": 0.1}, batchSize=2, sequenceLength=32).spec)
    mesh = sharding.make_mesh((1, 1, 1, 1, 1), jax.devices()[:1])
    with jax.set_mesh(mesh):
        text = next(programs.LOWERED[SCORING](of, mesh)).program.as_text()
    assert "tensor<2x32x" in text
