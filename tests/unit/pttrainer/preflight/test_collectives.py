"""Collectives counted in a program's text."""

import pytest

from pttrainer.preflight.timing.collectives import Traffic, collectives

PROGRAM = """HloModule step

%cond (p: (s32[], f32[8])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(32)
  ROOT %compare = pred[]{:T(512)} compare(%p, %constant.1), direction=LT
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %ag = bf16[1024,512]{1,0:T(8,128)(2,1)} all-gather(%x), channel_id=1, replica_groups=mesh['a'=1,'b'=4] {'b'}, dimensions={1}
  ROOT %c = f32[8]{0} conditional(%f, %a, %b), branch_computations={%rare, %usual}
}

%rare (p: f32[8]) -> f32[8] {
  ROOT %nothing = f32[8]{0} copy(%p)
}

%usual (p: f32[8]) -> f32[8] {
  ROOT %ar = f32[1000]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]{0}) while(%t), condition=%cond, body=%body
  %slow = f32[1024]{0} all-reduce(%w), replica_groups=[2,2]<=[2,2]T(1,0), to_apply=%add
  %one = f32[1024]{0} all-reduce(%w), replica_groups={{0},{1},{2},{3}}, to_apply=%add
  ROOT %small = f32[8]{0} all-reduce(%slow), replica_groups={{0,1}}, to_apply=%add
}
"""  # noqa: E501


def test_a_loop_counts_its_turns_and_a_conditional_its_costliest_branch() -> None:
    traffic = collectives(PROGRAM, devices_per_slice=4)
    gathered = 1024 * 512 * 2 * 3 // 4
    summed = 2 * 4000 * 3 // 4
    assert traffic == [
        Traffic("all-gather", 32, 32 * gathered),
        Traffic("all-reduce", 33, 32 * summed + 4096),  # and the one over pairs; alone or tiny ones are not traffic
    ]


def test_groups_that_span_slices_are_slow() -> None:
    slow = [one for one in collectives(PROGRAM, devices_per_slice=2) if one.between_slices]
    assert [(one.kind, one.count) for one in slow] == [("all-gather", 32), ("all-reduce", 33)]


@pytest.mark.parametrize(
    ("order", "slow"),
    [
        ("", True),
        (", device_ids=([2,2]T(1,0))", False),
        (", device_ids=[0,2,1,3]", False),
        (", device_ids=(2,3,0,1)", True),
    ],
)
def test_groups_of_a_mesh_in_another_order_are_of_its_devices(order: str, slow: bool) -> None:
    group = f"replica_groups=mesh['a'=2,'b'=1,'c'=2]{order} {{'a'}}"
    text = f"ENTRY %main (p: f32[8]) -> f32[8] {{\n  ROOT %ar = bf16[2,128,1024]{{2,1,0}} all-reduce(%p), {group}\n}}\n"
    assert collectives(text, devices_per_slice=2) == [Traffic("all-reduce", 1, 2 * 128 * 1024 * 2, slow)]


def test_a_program_without_any_sends_nothing() -> None:
    assert (
        collectives("HloModule x\n\nENTRY %main (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8]{0} parameter(0)\n}\n", 1)
        == []
    )


UNROLLED = """HloModule step

%cond (p: (f32[8], s32[])) -> pred[] {
  %p = (f32[8]{0}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=1
  %limit = s32[]{:T(128)} constant(16)
  ROOT %compare = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%body (p: (f32[8], s32[])) -> (f32[8], s32[]) {
  %p.1 = (f32[8]{0}, s32[]{:T(128)}) parameter(0)
  %x = f32[1024]{0:T(1024)} get-tuple-element(%p.1), index=0
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=1
  %two = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%i.1, %two)
  %sent = f32[1024]{0:T(1024)} collective-permute(%x), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %kept = s32[]{:T(128)} copy(%next)
  ROOT %out = (f32[1024]{0:T(1024)}, s32[]{:T(128)}) tuple(%sent, %kept)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  ROOT %w = (f32[8]{0}, s32[]) while(%t), condition=%cond, body=%body
}
"""


def test_a_loop_that_the_compiler_unrolled_by_two_counts_half_its_limit() -> None:
    assert collectives(UNROLLED, devices_per_slice=4) == [Traffic("collective-permute", 8, 8 * 4096)]


FUSED = """HloModule step

%begun (p: bf16[256]) -> (bf16[256], bf16[4096]) {
  %all-gather.1 = bf16[4096]{0} all-gather(%p), channel_id=1, replica_groups={{0,1,2,3}}, frontend_attributes={chain_id="7"}
  ROOT %c = (bf16[256]{0}, bf16[4096]{0}) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%beside (p.1: bf16[256], x: bf16[8,8]) -> bf16[8,8] {
  %all-gather.2 = bf16[4096]{0} all-gather(%p.1), channel_id=1, replica_groups={{0,1,2,3}}, frontend_attributes={chain_id="7"}
  ROOT %y = bf16[8,8]{1,0} convolution(%x, %x), dim_labels=bf_io->bf
}

ENTRY %main (w: bf16[256], x.1: bf16[8,8]) -> bf16[8,8] {
  %start = (bf16[256]{0}, bf16[4096]{0}) fusion(%w), kind=kCustom, calls=%begun
  %one = bf16[8,8]{1,0} fusion(%w, %x.1), kind=kOutput, calls=%beside
  ROOT %two = bf16[8,8]{1,0} fusion(%w, %one), kind=kOutput, calls=%beside
}
"""  # noqa: E501


def test_a_gather_that_runs_inside_of_several_products_counts_once() -> None:
    assert collectives(FUSED, 4) == [Traffic("all-gather", 1, 2 * 4096 * 3 // 4)]
