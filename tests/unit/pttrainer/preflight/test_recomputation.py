"""What `training.remat: auto` is: the policy that saves most and leaves room, unless the compiler refuses it."""

from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer.preflight import job, spec

from pttrainer.commands.run import run_job
from pttrainer.errors import ConfigError
from pttrainer.preflight.advice.fitting_change import suggest
from pttrainer.preflight.advice.matrix import matrix
from pttrainer.preflight.check import judge
from pttrainer.preflight.compiler import compiler_process, result
from pttrainer.preflight.compiler.result import Compiled
from pttrainer.preflight.memory import formula, recomputation
from pttrainer.preflight.memory.staged_check import ROOMY
from pttrainer.preflight.report.table import text
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.training import loop

SHORT, LONG = {"batchSize": 32, "sequenceLength": 4096}, {"batchSize": 48, "sequenceLength": 8192}
CHOICES = [
    ("v5p-16", SHORT, "none"),
    ("v6e-16", SHORT, "save-qkv-context"),
    ("v6e-16", LONG, "save-context"),
    ("v5e-16", SHORT, "full"),
    ("v5e-16", LONG, "full"),  # does not fit at all
]


@pytest.mark.parametrize(("accelerator", "training", "policy"), CHOICES)
def test_auto_saves_as_much_as_leaves_a_fifth_of_a_chip(accelerator: str, training: Any, policy: str) -> None:
    of = shapes_of(spec("llama3.1-8b", accelerator, **training))
    assert recomputation.policy(of.spec) == policy
    order = [*recomputation.SAVING, "full"]
    peaks = [formula.memory(recomputation.with_policy(of, each)) for each in order]
    assert [one.peak for one in peaks] == sorted((one.peak for one in peaks), reverse=True)
    for more in peaks[: order.index(policy)]:
        assert more.peak > ROOMY * more.available


def test_what_a_job_names_stays_and_so_does_what_cpus_take() -> None:
    assert recomputation.policy(spec("llama3.1-8b", "v5p-16", **SHORT, remat="save-context")) is None
    assert recomputation.policy(spec("llama3.1-8b", "cpu-8", **SHORT)) is None


@pytest.mark.parametrize(
    ("algorithm", "options"), [("ppo", {"critic": {"kind": "model"}}), ("distill", {"selfTeacher": {}})]
)
def test_every_model_of_a_step_takes_the_same_policy(algorithm: str, options: Any) -> None:
    of = recomputation.settled(shapes_of(spec("qwen3-0.6b", "v5p-16", algorithm=algorithm, options=options)))
    same = shapes_of(of.spec)
    assert of.structure.remat == "none"
    assert (of.structure, of.critic, of.teacher) == (same.structure, same.critic, same.teacher)


def test_where_the_compiler_refuses_it_full_is_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def compile_in_child(of: JobShapes, name: str, level: str, limit_s: float | None = None) -> result.Answer:
        fits = of.spec.training.remat == "full"
        refused.extend([] if fits else [of.spec.training.remat])
        share = 0.5 if fits else 1.2
        return {name: Compiled(fits, 1.0, peak=int(share * tpu_topology.usable_bytes(of.slice)))}

    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(compiler_process, "compile_in_child", compile_in_child)
    verdict = judge(job("llama3.1-8b", "v5p-16", **SHORT))
    assert (verdict.fits, verdict.remat, refused) == (True, "full", ["none"])
    assert "note: training.remat: auto: none does not fit, full was taken" in text(verdict)
    named = judge(job("llama3.1-8b", "v5p-16", **SHORT, remat="none"))
    assert (named.fits, named.remat) == (False, "none")  # the job's own word


def test_preflight_names_the_policy() -> None:
    verdict = judge(job("llama3.1-8b", "v6e-16", **LONG), "formula")
    assert verdict.document()["remat"] == "save-context"
    assert "  remat        save-context" in text(verdict).splitlines()


def test_preflight_counts_what_waits_in_host_memory() -> None:
    verdict = judge(job("llama3.1-8b", "v6e-16", **LONG, remat="offload-qkv"), "formula")
    assert verdict.fits
    assert any("host memory: 36 GiB on each host, which has 671 GiB" in line for line in verdict.assumptions)
    many = {**LONG, "batchSize": 960}  # it would not fit the chips either: the host comes first
    with pytest.raises(ConfigError, match=r"spec.training.remat: offload-qkv: .* ct6e-standard-4t has 570"):
        judge(job("llama3.1-8b", "v6e-16", **many, remat="offload-qkv"), "formula")


def test_a_row_for_each_chip_that_does_not_fit_may_keep_its_layers_inputs_in_host_memory() -> None:
    """70B, 65,536 tokens a chip: 80 GiB of inputs, and there are no smaller micro-batches."""
    long = {"batchSize": 256, "sequenceLength": 65536}
    verdict = judge(job("llama3.1-70b", "v6e-256", **long), "formula")
    assert not verdict.fits
    option = verdict.options[0]
    assert (option.fits, option.settings) == (True, {"training.remat": "offload-input"})
    assert judge(job("llama3.1-70b", "v6e-256", **long, remat="offload-input"), "formula").fits
    longer = judge(job("llama3.1-70b", "v6e-256", **long | {"sequenceLength": 262144}), "formula")  # 320 GiB a chip
    assert {"training.remat": "offload-input"} not in [option.settings for option in longer.options]


def test_the_trainer_takes_the_policy_that_preflight_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[object] = []
    monkeypatch.setattr(loop, "train", lambda job, place, attempt, stop, remat: policies.append(remat))
    written = job("llama3.1-8b", "v6e-16", **LONG)
    for remat in ("auto", "full"):
        training = written.spec.training.model_copy(update={"remat": remat})
        output = written.spec.output.model_copy(update={"uri": f"file://{tmp_path}"})
        of = written.model_copy(
            update={"spec": written.spec.model_copy(update={"training": training, "output": output})}
        )
        path = tmp_path / f"{remat}.json"
        path.write_text(of.model_dump_json(by_alias=True, exclude_none=True))
        run_job(path)
    assert policies == ["save-context", None]


def test_after_a_chip_ran_out_of_memory_full_is_what_auto_is_told_to_try() -> None:
    one_row = spec("llama3.1-8b", "v6e-16", batchSize=16, sequenceLength=8192)
    assert recomputation.policy(one_row) == "save-qkv-context"
    assert "it fits with training.remat=full, or as it is on" in suggest(one_row, 33 << 30)


def test_a_cell_of_the_matrix_has_the_policy_of_its_chips() -> None:
    auto, full = (
        matrix(job("llama3.1-8b", "v6e-16", **SHORT, remat=remat), ["v5p-16"], [32])[0] for remat in ("auto", "full")
    )
    assert auto.peak_gib is not None
    assert full.peak_gib is not None
    assert auto.peak_gib > full.peak_gib
    assert auto.seconds_per_step == pytest.approx(0.75 * (full.seconds_per_step or 0))
