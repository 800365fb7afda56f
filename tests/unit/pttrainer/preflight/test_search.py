"""The search for a change that fits, and the matrix of chips and batches: by the formula, with a pretended compiler."""

from typing import Any

import pytest
from tests.builders.trainer.preflight import job

from pttrainer.preflight.advice import changes
from pttrainer.preflight.advice.matrix import matrix
from pttrainer.preflight.advice.search import fit
from pttrainer.preflight.check import judge
from pttrainer.preflight.compiler import compiler_process
from pttrainer.preflight.compiler.result import Compiled
from pttrainer.preflight.memory import formula
from pttrainer.preflight.report.table import text
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import shapes_of

GIB = 2**30
LARGE: dict[str, Any] = {"model": "llama3.1-8b", "accelerator": "v5e-8", "batchSize": 8, "sequenceLength": 4096}


def peak(base: Any, settings: dict[str, Any]) -> int:
    return formula.memory(changes.changed_shapes(base, shapes_of(base.spec).config, settings)).peak


def test_a_job_that_fits_needs_no_change() -> None:
    answer = fit(job("llama3.2-1b", "v6e-8", batchSize=8, sequenceLength=2048), compile_first=False)
    assert (answer.change.settings, answer.tried) == ({}, 1)


def test_what_is_found_fits_when_it_is_made_and_is_no_larger_a_change_than_needed() -> None:
    base = job("llama3.2-3b", "v5e-8", batchSize=256, sequenceLength=4096)
    change = fit(base, compile_first=False).change
    assert list(change.settings) == ["training.microBatchSize"]
    assert change.peak == peak(base, change.settings) <= change.available
    larger = {"training.microBatchSize": 2 * change.settings["training.microBatchSize"]}
    assert peak(base, larger) > change.available


@pytest.mark.parametrize(
    ("keep", "changed"), [((), "training.lora"), (("method",), "accelerator"), (("method", "chips", "length"), None)]
)
def test_what_is_to_be_kept_is_kept(keep: Any, changed: str | None) -> None:
    change = fit(job(**LARGE), frozenset(keep), compile_first=False).change
    assert changed is None if change is None else changed in change.settings
    assert (change is None) == (changed is None)


LONG: dict[str, Any] = {"model": "llama3.1-8b", "batchSize": 8, "sequenceLength": 131_072}


def test_rows_too_long_for_a_chip_are_shared_by_several_where_attention_has_a_kernel_for_them() -> None:
    """Before matrices are split, which sends more."""
    change = fit(job(accelerator="v6e-8", **LONG), frozenset(("method", "chips", "length")), compile_first=False).change
    assert change.settings["training.parallelism"] == {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 8}
    assert change.settings["training.microBatchSize"] == 1
    first, *_ = changes.options(shapes_of(job(accelerator="v6e-8", **LONG).spec))
    assert (first.change, first.fits) == ("share a row's tokens between 8 devices", True)
    assert first.peak == change.peak
    gpus, no_tiles = job(accelerator="h100-8", **LONG), job(accelerator="v6e-8", **LONG | {"sequenceLength": 131_000})
    for other in (gpus, no_tiles):
        assert not changes.sequences(shapes_of(other.spec))


def test_smaller_slices_hold_long_rows_that_their_chips_share() -> None:
    judged = judge(job(accelerator="v6e-8", **LONG), "formula")
    on_v5e = next(one for one in judged.smallest if one.change.startswith("v5litepod"))
    assert on_v5e.settings["training.parallelism"] == {"tensor": 1, "sequence": 8}
    assert on_v5e.settings["accelerator"]["type"] == "v5litepod-32"
    assert "fits           sequence 8, microBatchSize 4" in text(judged)


def test_rows_are_not_shared_where_micro_batches_do_as_much() -> None:
    several = shapes_of(job(accelerator="v6e-8", **LONG | {"batchSize": 16}).spec)
    assert not [one for one in changes.options(several) if one.change.startswith("share")]
    assert not [one for one in changes.smallest(several) if one.settings["training.parallelism"]["sequence"] > 1
                and one.chips < 16]  # fmt: skip


@pytest.mark.parametrize(
    ("accelerator", "length", "note"),
    [
        ("v6e-8", 4096, None),
        ("v6e-8", 4000, "attention has no kernel for rows of 4000 tokens that 2 devices share, and is slow; a multiple "
         "of 512 has one"),
        ("h100-8", 4096, "attention has no kernel for rows of 4096 tokens that 2 devices share, and is slow; only TPUs "
         "have one"),
    ],
)  # fmt: skip
def test_shared_rows_without_a_kernel_are_noted(accelerator: str, length: int, note: str | None) -> None:
    split = {"fsdp": 4, "sequence": 2}
    judged = judge(job("llama3.2-1b", accelerator, batchSize=8, sequenceLength=length, parallelism=split), "formula")
    assert (note in judged.notes) == (note is not None)


def test_groups_of_reinforcement_learning_stay_together() -> None:
    options = {"groupSize": 16}
    base = job("llama3.2-3b", "v5e-8", algorithm="grpo", options=options, batchSize=256, sequenceLength=4096)
    base = base.model_copy(update={"spec": changes.changed(base.spec, {"rewards": [{"builtin": "gsm8k"}]})})
    change = fit(base, frozenset(("method", "chips", "length")), compile_first=False).change
    assert change.settings["training.microBatchSize"] % 16 == 0


def test_the_compiler_has_the_last_word_on_each_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def compile_in_child(of: Any, name: str, level: str, limit_s: float | None = None) -> dict[str, Compiled]:
        training = of.spec.training
        calls.append((training.lora is not None, name, level))
        share = 0.5 if training.quantization is not None else 1.2
        return {name: Compiled(share < 1, 1.0, peak=int(share * tpu_topology.usable_bytes(of.slice)))}

    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(compiler_process, "compile_in_child", compile_in_child)
    answer = fit(job(**LARGE))
    as_it_is, *others = [each.settings for each in answer.refused]
    assert as_it_is == {}
    assert {next(iter(settings)) for settings in others} == {"training.lora"}
    assert "training.quantization" in answer.change.settings
    assert (answer.confirmed_by, answer.change.peak) == ("fast compile", answer.change.available // 2)
    assert calls == [(False, "train step", "fast"), *[(True, "train step", "fast")] * (len(others) + 1)]


def test_a_cell_is_what_the_formula_says_of_that_job() -> None:
    base = job(**LARGE, steps=10, remat="full")
    small, large, uneven = matrix(base, ["v5e-16"], [16, 32, 17])
    assert (
        small.peak_gib
        == peak(
            base,
            {
                "accelerator": {"type": "v5e-16"},
                "training.batchSize": 16,
                "training.parallelism": {"tensor": small.tensor},
            },
        )
        / GIB
    )
    assert large.peak_gib is not None
    assert large.peak_gib > small.peak_gib
    assert large.tokens_per_second == pytest.approx(32 * 4096 / (large.seconds_per_step or 0))
    assert large.tokens_per_second_per_chip == pytest.approx((large.tokens_per_second or 0) / 16)
    assert (uneven.fits, uneven.peak_gib) == (False, None)
    assert "spec.training.batchSize: 17" in uneven.why


def test_unasked_the_matrix_shows_slices_that_hold_the_job_and_batches_around_its_own() -> None:
    cells = matrix(job(**LARGE))
    assert {cell.generation for cell in cells} >= {"v5e", "v5p", "v6e"}
    assert sorted({cell.batch_size for cell in cells}) == [4, 8, 16, 32]
    assert {cell.generation for cell in cells if cell.fits} == {cell.generation for cell in cells}
