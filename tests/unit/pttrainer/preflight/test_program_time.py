"""The time of a program by the compiler's estimates, on a schedule written by hand."""

from dataclasses import replace

import pytest
from tests.builders.trainer.preflight import job, spec

from ptapi.accelerators import resolve
from pttrainer.models.attention import splash_blocks
from pttrainer.preflight.advice.search import fit
from pttrainer.preflight.check import judge
from pttrainer.preflight.compiler import compiler_process, result
from pttrainer.preflight.compiler.result import Compiled
from pttrainer.preflight.report.table import text
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.timing.collectives import Traffic, collectives
from pttrainer.preflight.timing.program_time import ProgramTime, links, step_seconds

PROGRAM = """HloModule step

%cond (p: (s32[], f32[8])) -> pred[] {
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %limit = s32[]{:T(128)} constant(10)
  ROOT %less = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%i.1, %one)
  %x = f32[8]{0} fusion(%i.1), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"1750"}
  ROOT %out = (s32[], f32[8]{0}) tuple(%next, %x)
}

%product (p: f32[8]) -> f32[8] {
  ROOT %c = f32[8]{0} convolution(%p.2, %p.2), dim_labels=bf_io->bf
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]{0}) while(%t), condition=%cond, body=%body
  %sent = f32[540000000]{0} all-to-all(%w), channel_id=1, replica_groups={{0,1}}
  %start = (f32[540000000]{0}, f32[540000000]{0}) all-gather-start(%w), channel_id=2, replica_groups={{0,1}}
  %moved = f32[8]{0} copy(%w), backend_config={"estimated_cycles":"1750000"}
  ROOT %done = f32[540000000]{0} all-gather-done(%start)
}
"""


def test_loops_take_their_iterations_and_of_a_gather_only_the_wait_counts() -> None:
    time = ProgramTime(PROGRAM, "v5p", links=3)
    sent_s = 540_000_000 * 4 / 2 / (3 * 9e10)
    assert time.seconds == pytest.approx(10e-6 + sent_s + sent_s)  # the copy hides 1 ms of the second one
    assert time.by_kind == pytest.approx(
        {"products": 10e-6, "waiting for all-to-all": sent_s, "copies": 1e-3, "waiting for all-gather": sent_s - 1e-3}
    )


OFFLOADED = """HloModule step

%gather (p: f32[8]) -> f32[8] {
  ROOT %all-gather.1 = f32[540000000]{0} all-gather(%p.1), channel_id=2, replica_groups={{0,1}}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %start = ((f32[270000000]{0}, token[]), f32[540000000]{0}) call-start(%p, %t), async_execution_thread="sparsecore", to_apply=%gather
  %moved = f32[8]{0} copy(%w), backend_config={"estimated_cycles":"2200000"}
  ROOT %done = f32[540000000]{0} call-done(%start), metadata={op_name="all_gather"}
}
"""  # noqa: E501, as the compiler writes it


def test_collectives_that_a_sparse_core_runs_are_sent_and_waited_for() -> None:
    """As libtpu 0.0.42.1 offloads them on tpu7x."""
    time = ProgramTime(OFFLOADED, "tpu7x", links=1.5)
    sent_s = 540_000_000 * 4 / 2 / (1.5 * 9e10)
    assert time.seconds == pytest.approx(sent_s)
    assert time.by_kind == pytest.approx({"copies": 1e-3, "waiting for all-gather": sent_s - 1e-3})
    assert collectives(OFFLOADED, 2) == [Traffic("all-gather", 1, 540_000_000 * 4 // 2)]


def test_loops_without_a_limit_run_as_often_as_given_and_kernels_without_an_estimate_are_named() -> None:
    unbounded = PROGRAM.replace("constant(10)", "parameter(0)").replace(
        "  %moved =", "  %paged_kernel.2 = f32[8]{0} custom-call(%w)\n  %moved ="
    )
    once, thrice = (ProgramTime(unbounded, "v5p", 3, turns=turns) for turns in (None, 3))
    assert thrice.seconds - once.seconds == pytest.approx(2e-6)
    assert (once.unknown, thrice.unknown) == ({"paged_kernel": 1}, {"paged_kernel": 1})


KERNELS = """HloModule step

ENTRY %main (p: f32[8]) -> f32[8] {
  %splash_mha_fwd_segmented_residuals.3 = (f32[3,1024,128]{2,1,0}, bf16[3,32,8192,128]{3,2,1,0}) custom-call(%p)
  %splash_mha_dkv_segmented_no_residuals.1 = (f32[3,1024,128]{2,1,0}, bf16[3,8,8192,128]{3,2,1,0}) custom-call(%p)
  %splash_mha_dq_segmented_no_residuals.1 = (f32[3,1024,128]{2,1,0}, bf16[3,32,8192,128]{3,2,1,0}) custom-call(%p)
  ROOT %other = f32[8]{0} custom-call(%p)
}
"""
LONG = {"batchSize": 48, "sequenceLength": 8192}


def test_splash_kernels_take_what_their_tiles_take() -> None:
    of = shapes_of(spec("llama3.1-8b", "v6e-16", **LONG))
    cycles = splash_blocks.head_cycles("v6e", 128, 8192)
    # Of 8 blocks of 1,024 tokens, a causal mask leaves 36 pairs.
    assert cycles == {"forward": 36 * 3428 + 8 * 818, "dkv": 36 * 4777 + 8 * 525, "dq": 36 * 4114 + 8 * 323}
    assert step_seconds(KERNELS, of) == pytest.approx(3 * 32 * sum(cycles.values()) / 1.75e9)
    two_cores = shapes_of(spec("llama3.1-8b", "v5p-16", **LONG))
    cycles_v5p = splash_blocks.head_cycles("v5p", 128, 8192)
    assert step_seconds(KERNELS, two_cores) == pytest.approx(3 * 16 * sum(cycles_v5p.values()) / 1.75e9)
    split = shapes_of(spec("llama3.1-8b", "v6e-16", **LONG, parallelism={"tensor": 4}))
    assert step_seconds(KERNELS, split) == pytest.approx(3 * 8 * sum(cycles.values()) / 1.75e9)


@pytest.mark.parametrize(("model", "heads", "head_dim"), [("gemma3-12b", 16, 256), ("gemma4-31b", 32, 512)])
def test_layers_with_a_window_take_what_its_tiles_take(model: str, heads: int, head_dim: int) -> None:
    """Five of six layers have a window of 1,024 tokens and heads of 256; Gemma 4's others have heads of 512."""
    of = shapes_of(spec(model, "v6e-16", batchSize=48, sequenceLength=8192))
    local = sum(splash_blocks.head_cycles("v6e", 256, 8192, 1024).values())
    whole = sum(splash_blocks.head_cycles("v6e", head_dim, 8192).values())
    assert 0 < local < whole / 2
    assert step_seconds(KERNELS, of) == pytest.approx(3 * heads * (5 * local + whole) / 6 / 1.75e9)


def test_kernels_of_a_single_row_have_no_axis_of_rows() -> None:
    of = shapes_of(spec("llama3.1-8b", "v6e-16", batchSize=16, sequenceLength=8192))
    one_row = step_seconds(KERNELS.replace("[3,", "["), of)
    three_rows = step_seconds(KERNELS, of)
    assert one_row is not None
    assert three_rows == pytest.approx(3 * one_row)
    assert one_row == pytest.approx(32 * sum(splash_blocks.head_cycles("v6e", 128, 8192).values()) / 1.75e9)


def test_of_long_rows_a_kernel_has_few_heads_and_partial_gradients_are_no_rows() -> None:
    of = shapes_of(spec("llama3.1-8b", "v6e-8", batchSize=8, sequenceLength=32_768))
    text = KERNELS.replace("[3,", "[").replace("(f32[1024,128]{2,1,0}, bf16[8,8192", "(bf16[8,4,8192,128], bf16[8,8192")
    assert "bf16[8,4,8192,128]" in text
    cycles = splash_blocks.head_cycles("v6e", 128, 32_768)
    assert set(cycles) == {"forward", "fused"}
    assert step_seconds(text, of) == pytest.approx(4 * sum(cycles.values()) / 1.75e9)
    shared = shapes_of(spec("llama3.1-8b", "v6e-8", batchSize=8, sequenceLength=32_768, parallelism={"sequence": 4}))
    assert step_seconds(text, shared) == pytest.approx(sum(cycles.values()) / 1.75e9)


def test_a_kernel_counts_where_it_is_fused_with_what_its_result_becomes() -> None:
    of = shapes_of(spec("llama3.1-8b", "v6e-16", batchSize=16, sequenceLength=8192))
    kernel = next(line for line in KERNELS.splitlines() if "splash_mha_dkv" in line)
    body = f"%fused (p: f32[8]) -> f32[8] {{\n{kernel}\n}}\n\n"
    call = "  %splash_mha_dkv.2 = bf16[2,3,8,8192,128]{4,3,2,1,0} fusion(%p), kind=kOutput, calls=%fused"
    fused = KERNELS.replace(kernel, call).replace("ENTRY", f"{body}ENTRY")
    assert step_seconds(fused, of) == step_seconds(KERNELS, of)


GROUPED = """HloModule layer

ENTRY %main (p: f32[8]) -> f32[8] {
  %ragged-dot-metadata = (s32[17]{0:T(128)S(1)}, s32[1]{0:T(128)}) custom-call(%p), operand_layout_constraints={s32[16]{0}}
  %ragged-dot-none.1 = bf16[2048,768]{1,0:T(8,128)(2,1)S(1)} custom-call(%a, /*index=1*/%x, %w), custom_call_target="tpu_custom_call", operand_layout_constraints={s32[17]{0}, bf16[2048,1024]{1,0}, bf16[16,1024,768]{2,1,0}}, frontend_attributes={ragged_dot_tiling="256,1024,768"}
  %tgmm.1 = bf16[16,1024,768]{2,1,0:T(8,128)(2,1)S(1)} custom-call(%a, %x, %y), custom_call_target="tpu_custom_call", operand_layout_constraints={s32[], s32[17]{0}, bf16[1024,2048]{0,1}, bf16[2048,768]{1,0}}, frontend_attributes={kernel_metadata={}}
  ROOT %other = f32[8]{0} custom-call(%p)
}
"""  # noqa: E501, as the compiler writes it


def test_grouped_products_take_their_flops_at_the_rate_of_a_large_product() -> None:
    """The product of the rows, and the gradient of the matrices, as libtpu 0.0.42.1 names and declares them."""
    time = ProgramTime(GROUPED, "v6e", links=2)
    seconds = 2 * 2048 * 1024 * 768 / (0.7 * 2**19 * 1.75e9)
    assert time.seconds == pytest.approx(2 * seconds)
    assert time.by_kind == pytest.approx({"grouped products": 2 * seconds})
    assert time.unknown == {"other": 1}


def test_devices_of_one_chip_share_its_links() -> None:
    assert [links(resolve(each)) for each in ("v6e-16", "v5p-128", "tpu7x-128")] == [2, 3, 1.5]
    assert [links(resolve(each)) for each in ("v6e-1", "v5p-8", "tpu7x-8")] == [1, 2, 1]  # 1x1, 2x2x1, 2x2x1


def test_of_a_generation_whose_clock_is_not_known_nothing_is_estimated() -> None:
    assert step_seconds(KERNELS, shapes_of(spec("llama3.1-8b", "v4-16", **LONG))) is None


def test_the_change_that_fits_has_it_where_it_was_compiled_as_training_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_in_child(of: JobShapes, name: str, level: str, limit_s: float | None = None) -> result.Answer:
        seconds = 4.5 if level == "full" else None
        return {name: Compiled(True, 1.0, int(0.85 * tpu_topology.usable_bytes(of.slice)), step_seconds=seconds)}

    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(compiler_process, "compile_in_child", compile_in_child)
    near = job("llama3.1-8b", "v6e-16", **LONG)
    assert (change := fit(near).change) is not None
    assert change.step_seconds == 4.5
    assert (computed := fit(near, compile_first=False).change) is not None
    assert computed.step_seconds is None


def test_preflight_says_it_and_how_far_to_trust_it() -> None:
    computed = judge(job("llama3.1-8b", "v6e-16", **LONG), "formula")
    assert "by the compiler's own estimates" not in text(computed)
    compiled = replace(computed, programs=[*computed.programs, replace(computed.programs[0], step_seconds=4.481)])
    words = "  compiled     about 4.48 s a step by the compiler's own estimates, which no chip has confirmed:"
    assert words in text(compiled).splitlines()
