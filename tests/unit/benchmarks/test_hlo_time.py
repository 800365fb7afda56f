"""The time of a program by the compiler's estimates, on a schedule written by hand."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "tpu"))  # it is in no package

from hlo_time import ProgramTime

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
