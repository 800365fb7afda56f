"""Distillation around its loss: which completions a step trains on, what a checkpoint holds, one step on any layout."""

import json
import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import optax
import pytest
from tests.builders.trainer import specs
from tests.builders.trainer.steps import compiled

from ptapi.spec import Optimizer, Schedule
from pttrainer.algorithms import sft
from pttrainer.algorithms.distillation import distill, teachers
from pttrainer.algorithms.distillation.distill import Distill
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.distillation import privileged_context
from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError, DataError
from pttrainer.losses.divergence import Teacher
from pttrainer.models import Model, preset
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Draw
from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step import step
from pttrainer.train_step.optimizer import ema, transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.state import TrainState

MODEL = Model(preset("tiny"))
CHAT = Chat(byte_tokenizer(), byte_tokenizer().template)
EOS = 257
QUESTIONS = [Question([256, 10 + i, 99], f"q{i}", {}) for i in range(5)]


class FakeSampler:
    """Answers with as many tokens as the question's number asks for; remembers the numbers."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def sample(self, params: Any, questions: Any, numbers: Any, samples: int, sampling: Any, draw: Any) -> Rollout:
        assert samples == 1
        self.calls.append(list(numbers))
        completions = [[7] * (number % 3 + 1) + [EOS] for number in numbers]
        sampled = [Sample(t, np.zeros(len(t), np.float32), True, "", {}, 0.0) for t in completions]
        return Rollout(draw.step, [Group(q, [s]) for q, s in zip(questions, sampled, strict=True)])


def context(directory: Path, mesh: Any = None, **spec: Any) -> Context:
    rows = [{"prompt": f"{i}?", "completion": "y" * (i % 4 + 1)} for i in range(9)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = specs.tiny(
        {"distill": {"teacher": {"uri": "random://tiny"}, **spec}},
        data={"train": {"uri": f"file://{directory}/rows.jsonl"}},
        training={"sequence_length": 32},
        rollout={"max_new_tokens": 8},
    )
    used = {"model": MODEL, "chat": CHAT, "mesh": mesh, "leader": True}
    unused = ("score", "initial_params", "alive", "run")
    quiet = {"note": lambda text: None, "save_samples": lambda step, rows: None}
    return Context(spec=whole, **cast(Any, used | quiet | dict.fromkeys(unused)))


def algorithm(directory: Path, **spec: Any) -> tuple[Distill, FakeSampler]:
    given = context(directory, **spec)
    sampler, distilled = FakeSampler(), cast(Any, given.spec.algorithm.distill)
    rows = sft.read_rows(given, "train", learn_prompt=False, pack=True) if distilled.student_share < 1 else None
    taught = (Teacher(MODEL, distilled.beta), MODEL.init(jax.random.key(1)))
    return Distill(given, distilled, taught, rows, (QUESTIONS, cast(Any, sampler)), [], None), sampler


def test_the_student_answers_the_next_prompts_of_a_shuffled_endless_row(tmp_path: Path) -> None:
    made, sampler = algorithm(tmp_path)
    batches = [made.next_batch(number, cast(Any, None))[0] for number in range(3)]
    assert sampler.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    answers = [int(row[1]) for batch in batches for row in batch.tokens_BT]
    assert sorted(answers[:5]) == sorted(answers[5:10]) == [10, 11, 12, 13, 14]


def test_exactly_the_students_tokens_are_learned_its_end_included_as_one_mean(tmp_path: Path) -> None:
    batch, _ = algorithm(tmp_path)[0].next_batch(0, cast(Any, None))
    assert batch.mask_BT.sum(axis=1).tolist() == [2, 3, 4, 2]
    np.testing.assert_array_equal(batch.targets_BT[batch.mask_BT > 0], [7, EOS, 7, 7, EOS, 7, 7, 7, EOS, 7, EOS])
    np.testing.assert_allclose(batch.weight_BT, batch.mask_BT / 11)
    assert batch.advantages_BT is None
    assert batch.sampler_logps_BT is None


def test_a_share_of_the_steps_is_the_students_and_the_same_ones_every_time(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        made, sampler = algorithm(tmp_path, student_share=0.5)
        was = []
        for number in range(40):
            before = len(sampler.calls)
            made.next_batch(number, cast(Any, None))
            was.append(len(sampler.calls) > before)
        runs.append(was)
    assert runs[0] == runs[1]
    assert 10 < sum(runs[0]) < 30


def test_a_resumed_run_draws_what_the_first_would_have_drawn(tmp_path: Path) -> None:
    one, first = algorithm(tmp_path, student_share=0.5)
    for number in range(5):
        one.next_batch(number, cast(Any, None))
    other, second = algorithm(tmp_path, student_share=0.5)
    other.restore(json.loads(json.dumps(one.state())))
    for number in range(5, 12):
        wanted, batch = (made.next_batch(number, cast(Any, None))[0] for made in (one, other))
        jax.tree.map(np.testing.assert_array_equal, batch, wanted)
    assert second.calls == first.calls[-len(second.calls) :]


def test_a_teacher_of_another_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(config=SimpleNamespace(vocab_size=100))
    monkeypatch.setattr(teachers, "open_source", lambda *args: small)
    with pytest.raises(ConfigError, match=r"teacher.uri: random://tiny: has 100 tokens and the student .* tokenizer"):
        distill.build(context(tmp_path, mode="online"))


def after(made: Distill, batch: Batch, shape: tuple[int, int, int, int], micro: int | None) -> Any:
    """One step: metrics and new weights. A large eps makes the step the gradient."""
    mesh = sharding.make_mesh(shape, jax.devices()[: math.prod(shape)])
    rate = transformation.schedule(Schedule(), 1.0, 10)
    updates = transformation.build(Optimizer(eps=1.0), rate)
    program = Program(MODEL, made, updates, rate, micro)
    function, fresh = compiled(program, mesh)
    weights = sharding.weight_shardings(mesh, MODEL.abstract(), MODEL.logical_axes())
    with jax.set_mesh(mesh):
        teacher = jax.device_put(jax.device_get(made.teacher_params), weights)
        state, metrics = function(fresh(), put(mesh, batch), None, teacher)
    return {name: float(value) for name, value in metrics.items()}, jax.device_get(state.params)


def test_a_step_is_the_same_whatever_micro_batches_devices_order_and_padding(tmp_path: Path) -> None:
    made, _ = algorithm(tmp_path, beta=0.5)
    made.teacher_params["embedding"] = made.teacher_params["embedding"] * 20  # far from uniform
    batch, _ = made.next_batch(0, cast(Any, None))
    whole = after(made, batch, (1, 1, 1, 1), None)
    assert whole[0]["loss"] > 0.01
    turned = jax.tree.map(lambda x: np.pad(x[np.array([3, 1, 0, 2])], ((0, 0), (0, 8))), batch)
    other = after(made, turned, (2, 1, 2, 2), 2)
    for name, value in whole[0].items():
        assert other[0][name] == pytest.approx(value, rel=5e-5, abs=1e-5), name
    jax.tree.map(partial(np.testing.assert_allclose, atol=3e-5), other[1], whole[1])


# A student that teaches itself

SELF_TAUGHT = [
    Question(CHAT.prompt_ids([message]), message["content"], {"answer": f"{i}" * (i + 1)}, messages=[message])
    for i, message in enumerate({"role": "user", "content": f"q{i}"} for i in range(4))
]
TEMPLATE = "{prompt} (it is {answer})"


def with_rows(questions: list[Question]) -> Batch:
    """Four rollouts, the teacher told something else in each."""
    sampled = FakeSampler().sample(None, questions, range(4), 1, None, Draw(0, 0)).groups
    laid = groups.lay_out(sampled, np.zeros((4, 1)), 258, 64)
    batch = laid._replace(advantages_BT=None, sampler_logps_BT=None, weight_BT=loss_weights.token_mean(laid.mask_BT))
    return teachers.with_teacher_rows(batch, sampled, 258)


def test_the_privileged_prompt_holds_the_prompt_and_the_answer_in_the_place_of_the_last_message() -> None:
    messages = privileged_context.messages(TEMPLATE, SELF_TAUGHT[1])
    assert messages == [{"role": "user", "content": "q1 (it is 11)"}]
    nested = Question([1], "t", {"answer": "{prompt}"}, messages=[{"role": "user", "content": "{answer}?"}])
    assert privileged_context.messages(TEMPLATE, nested)[0]["content"] == "{answer}? (it is {prompt})"
    with pytest.raises(DataError, match=r"\{hint\}: no such column in the row of 'q0'; accepted: answer, prompt"):
        privileged_context.messages("{prompt} {hint}", SELF_TAUGHT[0])


def test_the_teacher_s_row_holds_the_same_completion_after_its_own_prompt() -> None:
    questions = privileged_context.with_teacher_prompts(TEMPLATE, SELF_TAUGHT, CHAT)
    teacher_prompts, batch = [list(question.teacher_tokens) for question in questions], with_rows(questions)
    for row in range(4):
        is_trained = batch.mask_BT[row] > 0
        slots = batch.teacher_slots_BT[row][is_trained]
        assert slots[0] == len(teacher_prompts[row]) - 1
        # What the teacher reads at its slot is what the student reads, after the first token, which the prompt ends.
        np.testing.assert_array_equal(batch.teacher_tokens_BU[row][slots], batch.tokens_BT[row][is_trained])
        np.testing.assert_array_equal(batch.teacher_positions_BU[row][slots], slots)
        assert (batch.teacher_segment_ids_BU[row] > 0).sum() == len(teacher_prompts[row]) + is_trained.sum() - 1


@cache
def sharp() -> Any:
    """Weights whose predictions are far from uniform."""
    params = jax.jit(MODEL.init)(jax.random.key(0))
    return {**params, "embedding": params["embedding"] * 20}


@cache
def predictions() -> Any:
    """Of a batch: what student and teacher predict at every token, by their logits."""
    batch = with_rows(privileged_context.with_teacher_prompts(TEMPLATE, SELF_TAUGHT, CHAT))

    @jax.jit
    def logps(params: Any, *rows: Any) -> Any:
        return jax.nn.log_softmax(MODEL.logits(params, MODEL.forward(params, *rows)))

    student = logps(sharp(), batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    teacher = logps(sharp(), batch.teacher_tokens_BU, batch.teacher_positions_BU, batch.teacher_segment_ids_BU)
    return batch, np.asarray(student, np.float64), np.asarray(teacher, np.float64)


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.3])
def test_the_divergence_from_a_self_teacher_is_that_of_both_models_logits_by_hand(beta: float) -> None:
    batch, student, teacher = predictions()
    compare = jax.jit(partial(distill._compare, Teacher(MODEL, beta, self_weights="initial"), MODEL))
    divergence_BT = compare(sharp(), sharp(), batch).divergence_BT
    for b, t in zip(*np.nonzero(batch.mask_BT), strict=True):
        q, p = student[b, t], teacher[b, batch.teacher_slots_BT[b, t]]
        if beta in (0.0, 1.0):
            over, under = (p, q) if beta == 0.0 else (q, p)
            wanted = np.sum(np.exp(over) * (over - under))
        else:
            mixed = np.log(beta * np.exp(p) + (1 - beta) * np.exp(q))
            wanted = beta * np.sum(np.exp(p) * (p - mixed)) + (1 - beta) * np.sum(np.exp(q) * (q - mixed))
        assert wanted > 1e-4
        np.testing.assert_allclose(divergence_BT[b, t], wanted, rtol=1e-4, atol=1e-6)


def test_a_teacher_that_is_told_the_same_and_is_the_student_teaches_nothing() -> None:
    batch = with_rows([replace(question, teacher_tokens=question.tokens) for question in SELF_TAUGHT])

    def loss(of: Any) -> Any:
        hidden = MODEL.forward(of, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
        stats = Teacher(MODEL, 1.0, self_weights="current").stats(sharp(), MODEL, hidden, MODEL.head(of), batch)
        return (stats.divergence_BT * batch.weight_BT).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(sharp())
    assert abs(float(value)) < 1e-6
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-6


@pytest.mark.parametrize("self_weights", ["initial", "average", "current"])
def test_the_weights_that_teach_are_those_the_job_names(self_weights: Any) -> None:
    """Of one number: the first weights are 1, the average 2, those of now 3."""
    average = ema.EmaState({"w": np.float32(2.0)}, 0, ())
    state = TrainState({"w": np.float32(3.0)}, average, 0, 0)
    objective = distill.Loss(Teacher(MODEL, 1.0, self_weights=self_weights), {})
    program = Program(MODEL, objective, optax.identity(), lambda count: 1.0)
    params: Any = step._teacher(program, state, None, {"w": np.float32(1.0)})
    assert float(params["w"]) == {"initial": 1.0, "average": 2.0, "current": 3.0}[self_weights]
