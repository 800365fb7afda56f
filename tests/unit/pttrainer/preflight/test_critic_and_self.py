"""What PPO's critic and a student that teaches itself add to a job's shapes."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.trainer.preflight import spec

from ptapi.spec import PostTrainJobSpec
from pttrainer.algorithms.distillation import teachers
from pttrainer.algorithms.ppo import RolloutValues, with_returns
from pttrainer.data.prompts import Question
from pttrainer.preflight.compiler import programs
from pttrainer.preflight.compiler.abstract_inputs import batch, inputs, program_of
from pttrainer.preflight.memory import formula, resident
from pttrainer.preflight.shapes import passes
from pttrainer.preflight.shapes.device_bytes import total
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.rollout import groups
from pttrainer.rollout.groups import Group, Sample
from pttrainer.runtime.distributed import sharding

QUESTION = Question(tokens=[5, 6, 7, 8], text="?", fields={})
ANSWER = Sample(tokens=[1] * 29, logps=np.zeros(29, np.float32), ended=True, text="", rewards={}, reward=1.0)


def shapes(batch: Any) -> list[Any]:
    return [None if x is None else (x.shape, str(x.dtype)) for x in batch]


def abstract_batch(of: Any) -> Any:
    return batch(of, sharding.make_mesh(of.shape))


def ppo(accelerator: str = "v6e-1", **options: Any) -> Any:
    return shapes_of(spec("tiny", accelerator, algorithm="ppo", batchSize=8, sequenceLength=32, options=options))


def test_the_batch_has_the_shapes_that_ppo_trains_on() -> None:
    of = ppo(klCoefficient=0.1)
    laid = groups.lay_out([Group(QUESTION, [ANSWER])] * 8, np.zeros((8, 1)), 0, 32)
    numbers = np.zeros((8, 32), np.float32)
    real, _ = with_returns(laid, np.ones(8), RolloutValues(numbers, numbers, numbers, None), of.spec.algorithm.ppo)
    assert shapes(abstract_batch(of)) == shapes(real)
    assert abstract_batch(ppo(updatesPerBatch=1)).old_logps_BT is None


def test_a_critic_model_costs_the_policy_once_more_and_a_head_next_to_nothing() -> None:
    head, own = ppo(), ppo(critic={"kind": "model"})
    policy, width = total(own.arguments.params), own.config.d_model
    assert total(head.arguments.critic) == 4 * (width + 1)
    tables = 0 if own.config.tied_head else 4 * own.config.vocab_size * width
    assert total(own.arguments.critic) == policy - tables + 4 * (width + 1)
    assert formula.memory(own).peak > formula.memory(head).peak + 2 * policy
    assert any(buffer.name.startswith("critic") for buffer in formula.memory(own).parts)


def test_the_reference_is_counted_with_a_penalty_and_rollouts_and_the_scoring_pass_always() -> None:
    names = [buffer.name for buffer in resident.resident_buffers(ppo())]
    assert "reference weights" not in names
    assert "cache of keys and values" in names
    assert "reference weights" in [buffer.name for buffer in resident.resident_buffers(ppo(klCoefficient=0.1))]
    assert passes.others(ppo(updatesPerBatch=1)) == [passes.SCORING, "rollout"]


def test_a_reference_that_follows_and_a_coefficient_are_counted_with_the_train_state_as_it_is() -> None:
    options = {"beta": 0.1, "referenceSync": {}, "entropyBonus": {"adaptive": {}}}
    of, fixed = (
        shapes_of(spec("tiny", "v6e-1", algorithm="grpo", batchSize=8, sequenceLength=32, options=each))
        for each in (options, {"beta": 0.1})
    )
    held = inputs(of, sharding.make_mesh(of.shape, jax.devices()[:1]))
    state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(held.state))
    assert total(of.arguments.state) == state == total(fixed.arguments.state) + total(of.arguments.params) + 8
    assert held.batch.entropy_bonus_BT.shape == (8, 32)
    names, fixed_names = ({one.name for one in resident.resident_buffers(each)} for each in (of, fixed))
    assert fixed_names - names == {"reference weights"}
    assert "reference that follows" in {part.name for part in formula.memory(of).parts}


def test_a_critic_model_beside_adapters_costs_one_more_set_of_them() -> None:
    options, lora = {"critic": {"kind": "model"}}, {"rank": 4}
    of = shapes_of(spec("tiny", "cpu-1", algorithm="ppo", batchSize=8, sequenceLength=32, options=options, lora=lora))
    assert total(of.arguments.critic) == total(of.arguments.params) + 4 * (of.config.d_model + 1)


@pytest.mark.parametrize(("weights", "copies"), [("initial", 1), ("average", 0), ("current", 0)])
def test_a_self_teacher_is_a_copy_of_what_is_trained_only_where_it_is_the_first(weights: str, copies: int) -> None:
    options = {"selfTeacher": {"weights": weights, "privilegedContext": "{prompt} {answer}"}}
    training = {"batchSize": 2, "sequenceLength": 32, "ema": {}, "lora": {"rank": 4}}
    of = shapes_of(spec("tiny", "cpu-1", algorithm="distill", options=options, **training))
    assert total(of.arguments.teacher) == copies * total(of.arguments.params)
    sampled = [Group(replace(QUESTION, teacher_tokens=QUESTION.tokens), [ANSWER])] * 2
    laid = groups.lay_out(sampled, np.zeros((2, 1)), 0, 32)._replace(advantages_BT=None, sampler_logps_BT=None)
    assert shapes(abstract_batch(of)) == shapes(teachers.with_teacher_rows(laid, sampled, 0))


@pytest.mark.parametrize(("teacher", "copies"), [("initial", 1), ("average", 0)])
def test_sdpo_is_planned_with_its_teacher_and_its_sampling(teacher: str, copies: int) -> None:
    training: dict[str, Any] = {"batchSize": 8, "sequenceLength": 32, "ema": {}}
    of = shapes_of(spec("tiny", "cpu-1", algorithm="sdpo", options={"teacher": teacher}, **training))
    assert total(of.arguments.teacher) == copies * total(of.arguments.params)
    assert "rollout" in passes.others(of)
    teaching: Any = program_of(of).teacher
    assert (teaching.self_weights, teaching.top_of) == (teacher, "student")


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_sdpo_with_a_policy_loss_is_planned_with_a_teacher_unless_that_is_all(weight: float) -> None:
    options: dict[str, Any] = {"distillationWeight": weight, "updatesPerBatch": 2}
    of = shapes_of(spec("tiny", "v6e-4", algorithm="sdpo", options=options, batchSize=8, sequenceLength=32))
    assert total(of.arguments.teacher) == (total(of.arguments.params) if weight else 0)
    assert (program_of(of).teacher is None) == (weight == 0)
    assert formula.memory(of).fits


def test_the_step_with_a_critic_is_traced_for_the_mesh_it_is_planned_on() -> None:
    of = ppo("cpu-8", critic={"kind": "model"})
    mesh = sharding.make_mesh(of.shape)
    with jax.set_mesh(mesh):
        [scored] = programs.LOWERED[passes.SCORING](of, mesh)
        assert "func.func public @main" in scored.program.as_text()


def test_a_reward_model_that_is_trained_has_one_output_in_place_of_a_head() -> None:
    causal, reward = (
        shapes_of(spec("qwen3-8b", "v6e-4", algorithm=kind, batchSize=8, sequenceLength=32))
        for kind in ("dpo", "reward")
    )
    head = 4 * causal.config.vocab_size * causal.config.d_model // causal.devices
    assert total(causal.arguments.params) - total(reward.arguments.params) == head
    assert total(reward.arguments.critic) == 4 * causal.config.d_model
    assert formula.memory(reward).peak < formula.memory(causal).peak - head


def test_a_reward_model_beside_the_policy_is_counted_with_a_pass_over_its_batch() -> None:
    plain = spec("qwen3-8b", "v6e-4", algorithm="grpo", batchSize=8, sequenceLength=1024)
    taste = {"name": "taste", "model": {"uri": "random://qwen3-1.7b", "batchSize": 32}}
    rewarded = PostTrainJobSpec.model_validate(plain.model_dump(by_alias=True) | {"rewards": [taste]})
    counted, without = (
        {one.name: one.bytes for one in resident.resident_buffers(shapes_of(s))} for s in (rewarded, plain)
    )
    assert counted.keys() - without.keys() == {"reward model", "a reward model's pass"}
    whole_on_each = 28 * 2 * 128  # norms of queries and keys; everything else is split over four chips
    assert counted["reward model"] == 2 * (1_720_574_976 + 3 * whole_on_each) // 4
    assert counted["a reward model's pass"] > 4 * 32 // 4 * 1024 * 4 * 2048
