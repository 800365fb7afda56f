"""One step of reinforcement learning as a timeline: phases in their order, times worked out by hand, idle chips."""

from dataclasses import replace
from typing import Any

import pytest
from tests.builders.trainer.preflight import spec

from ptapi.spec import Pathways, PostTrainJobSpec
from pttrainer.models.shapes import flops
from pttrainer.preflight.advice import best_split
from pttrainer.preflight.memory import recomputation
from pttrainer.preflight.report import table
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.timing import weight_sync_time
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.scoring_time import scoring
from pttrainer.preflight.timing.step_time import Estimate, estimate
from pttrainer.preflight.timing.timeline import IDLE, idle_share

WEIGHTS = 2 * 8_030_261_248
"""Bytes of Llama 3.1 8B in a sampler, within a thousandth: norms are kept in float32."""
LINK = 1200e9 / 2 / 6
"""Bytes per second of one of the six links of a v5p's chip, one way."""
APART = {"maxNewTokens": 1024, "placement": "disaggregated"}


def job(chips: str = "v5p-16", model: str = "llama3.1-8b", **fields: Any) -> PostTrainJobSpec:
    of = spec(model, chips, algorithm="grpo", **{"batchSize": 64, "sequenceLength": 3072, "rollout": APART, **fields})
    return of.model_copy(update={"pathways": Pathways(enabled=True)})


def separate(replicas: int, **rollout: Any) -> JobShapes:
    sampled = {"maxNewTokens": 1024, "placement": "separate", "separate": {"replicas": replicas}, **rollout}
    return shapes_of(spec("llama3.1-8b", "v5p-8", algorithm="grpo", batchSize=64, rollout=sampled))


def phases(of: JobShapes, estimated: Estimate | None = None) -> dict[tuple[str, str], tuple[float, float]]:
    made = estimated or estimate(of, None)
    return {(phase.name, phase.on): (phase.start, phase.end) for phase in made.timeline}


def test_chips_that_do_both_run_the_phases_one_after_the_other() -> None:
    of = shapes_of(job(rollout={"maxNewTokens": 1024}, options={"beta": 0.1}))
    made = estimate(of, None)
    names = [phase.name for phase in made.timeline]
    assert names == ["sync", "prefill", "decode", "scoring", "update"]
    assert [phase.start for phase in made.timeline[1:]] == [phase.end for phase in made.timeline[:-1]]
    assert made.generation is not None
    assert made.seconds == pytest.approx(made.generation.seconds + made.scoring_seconds + made.update_seconds)
    assert made.timeline[2].end - made.timeline[2].start == pytest.approx(made.generation.decode_seconds)
    assert ({phase.chips for phase in made.timeline}, idle_share(made.timeline)) == ({8}, 0.0)


def test_chips_of_two_sides_take_turns_or_work_side_by_side_after_the_weights_have_moved() -> None:
    turns, ahead = (estimate(shapes_of(job(rollout=APART | {"maxStaleness": lag})), None) for lag in (0, 1))
    assert turns.generation is not None
    update, drawn = turns.update_seconds, turns.generation.prefill_seconds + turns.generation.decode_seconds
    moved = turns.generation.transfer_seconds
    assert turns.seconds == pytest.approx(moved + drawn + update)
    of_turns = phases(shapes_of(job()), turns)
    assert of_turns[IDLE, "training"] == pytest.approx((moved, moved + drawn))
    assert of_turns[IDLE, "sampling"] == pytest.approx((moved + drawn, turns.seconds))
    assert idle_share(turns.timeline) == pytest.approx(4 * (drawn + update) / (8 * turns.seconds))
    assert ahead.seconds == pytest.approx(moved + max(drawn, update))
    side, wait = ("training", abs(drawn - update)) if drawn > update else ("sampling", abs(drawn - update))
    start, end = phases(shapes_of(job()), ahead)[IDLE, side]
    assert (end - start, end) == pytest.approx((wait, ahead.seconds))


@pytest.mark.parametrize(
    "of",
    [
        shapes_of(job(rollout={"maxNewTokens": 512})),
        shapes_of(job(options={"beta": 0.1, "updatesPerBatch": 2})),
        shapes_of(job(rollout=APART | {"maxStaleness": 2})),
        shapes_of(job(slices=2, rollout=APART | {"maxStaleness": 1})),
        separate(3),
        separate(3, maxStaleness=1),
    ],
    ids=["colocated", "turns", "ahead", "slices", "pods", "pods-ahead"],
)
def test_every_chip_is_in_one_phase_at_any_time(of: JobShapes) -> None:
    made = estimate(of, None)
    assert sum(phase.chip_seconds for phase in made.timeline) == pytest.approx(of.held_chips * made.seconds)
    assert max(phase.end for phase in made.timeline) == made.seconds


def test_weights_cross_the_cut_of_a_slice_and_are_gathered_behind_it() -> None:
    """2x2x2 in halves of 2x2x1: four links; each of four copies receives three quarters from its neighbours."""
    of = shapes_of(job())
    moved = [weight_sync_time.network_seconds(replace(of, sampler=(n, 1, 4 // n, 1, 1))) for n in (4, 1)]
    crossing = WEIGHTS / (4 * LINK)
    assert moved == pytest.approx([crossing + 0.75 * WEIGHTS / 600e9, crossing], rel=1e-3)
    assert weight_sync_time.network_seconds(of) == moved[1]  # one copy on all four samples soonest


def test_a_torus_is_cut_twice() -> None:
    """4x4x4: 16 links on each side of a half."""
    of = shapes_of(job("v5p-128", "llama3.1-70b"))
    assert weight_sync_time.crossing_rate(of) == pytest.approx(2 * 16 * LINK)


def test_between_slices_weights_go_through_the_hosts_of_the_smaller_side() -> None:
    of = shapes_of(job(slices=4, rollout=APART | {"samplerShare": 0.75}))
    assert weight_sync_time.crossing_rate(of) == pytest.approx(8 * 50e9 / 8)


def test_one_trainers_host_sends_weights_to_every_sampler() -> None:
    of = separate(3)
    assert weight_sync_time.network_seconds(of) == pytest.approx(3 * WEIGHTS / (4 * 50e9 / 8), rel=1e-3)
    assert estimate(of, None).timeline[0].bound == "network"


def test_the_first_host_of_a_sampler_sends_weights_on_to_the_others() -> None:
    of = separate(2, separate={"replicas": 2, "accelerator": {"type": "v5p-32"}})
    assert weight_sync_time.network_seconds(of) == pytest.approx(3 * WEIGHTS / (4 * 50e9 / 8), rel=1e-3)


def test_adapters_alone_cross() -> None:
    trained = 2 * 41_943_040  # rank 16 of all seven matrices of 32 layers
    assert weight_sync_time.moved_bytes(shapes_of(job(lora={"rank": 16}))) == trained
    assert weight_sync_time.network_seconds(shapes_of(job(rollout={"maxNewTokens": 1024}))) == 0.0


def test_scoring_is_a_forward_pass_for_each_model_that_scores() -> None:
    def passes(algorithm: str = "grpo", **options: Any) -> float:
        rollout = {"maxNewTokens": 1024}
        of = shapes_of(
            spec(
                "llama3.1-8b",
                "v5p-16",
                algorithm=algorithm,
                batchSize=64,
                sequenceLength=2048,
                rollout=rollout,
                options=options,
            )
        )
        made = scoring(of, None)
        return 0.0 if made is None else made.flops / (64 * flops.row_flops(of.config, None, 2048) / 3)

    assert (passes(), passes(beta=0.1), passes(updatesPerBatch=2)) == (0.0, 1.0, 1.0)
    assert passes(beta=0.1, updatesPerBatch=2) == pytest.approx(2.0)
    assert passes("ppo", updatesPerBatch=1) == pytest.approx(1.0)
    assert passes("ppo", updatesPerBatch=4, critic={"kind": "model"}) == pytest.approx(2.0, rel=0.1)
    forward = 2 * 8_030_261_248 * 64 * 2048  # without attention, and the embedding is no product
    of = shapes_of(job(options={"beta": 0.1}, sequenceLength=2048, rollout={"maxNewTokens": 1024}))
    made = scoring(of, [Traffic("all-gather", 1, int(6e12))])
    assert made is not None
    assert made.flops == pytest.approx(forward, rel=0.05)
    assert (made.bound, made.seconds) == ("network", pytest.approx(10.0))


def test_a_rollout_of_two_updates_counts_by_half_in_each_step() -> None:
    rollout = {"maxNewTokens": 1024}
    one, two = (estimate(shapes_of(job(rollout=rollout, options={"updatesPerBatch": n})), None) for n in (1, 2))
    assert phases(shapes_of(job()), two)["sync", "all"][1] == pytest.approx(one.timeline[0].end / 2)
    assert two.seconds == pytest.approx(one.timeline[2].end / 2 + two.scoring_seconds + two.update_seconds)


def test_people_read_a_line_for_each_phase() -> None:
    from tests.builders.trainer.preflight import job as whole_job

    from pttrainer.preflight.check import judge

    shown = table.text(judge(whole_job("llama3.1-8b", "v5p-16", algorithm="grpo", batchSize=64), "formula"))
    (head,) = (line for line in shown.splitlines() if line.startswith("  timeline"))
    assert head.endswith("idle 0% of chip-seconds")
    (update,) = (line for line in shown.splitlines() if line.startswith("  update       all 8"))
    assert update.endswith("#|  arithmetic")
    assert "timeline" not in table.text(judge(whole_job("llama3.1-8b", "v5p-16", batchSize=64), "formula"))


def test_the_split_that_wastes_least_is_named_until_the_job_has_it() -> None:
    """Rows of 16,384 tokens, nearly all of them sampled: decoding takes longest, and more chips for it pay."""
    fields = {"batchSize": 192, "microBatchSize": 96, "sequenceLength": 16384}
    rollout = APART | {"maxNewTokens": 16000, "maxStaleness": 1}

    def notes(share: float) -> list[str]:
        of = job("v5p-128", rollout=rollout | {"samplerShare": share}, **fields)
        return best_split.notes(recomputation.settled(shapes_of(of)), of)

    assert notes(0.5)[0].startswith("rollout.samplerShare: 0.75 wastes least: "), notes(0.5)
    assert notes(0.75) == []
    (of_turns,) = best_split.notes(shapes_of(job()), job())
    assert of_turns.startswith("rollout.placement: colocated wastes least: ")
    assert best_split.notes(shapes_of(job(rollout={"maxNewTokens": 1024})), job()) == []
