"""Distillation from a teacher behind a server: the same loss, gradient and evaluation as with it beside the student."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer.message_store import MessageStore
from tests.builders.vllm import teacher as builder
from tests.builders.vllm.fake import FakeServer
from tests.unit.pttrainer.algorithms.test_distill import EOS, MODEL, QUESTIONS, FakeSampler, context

from ptapi.run_directory import SERVICES_ENV
from pttrainer.algorithms import sft
from pttrainer.algorithms.distillation import distill
from pttrainer.algorithms.distillation.distill import Distill
from pttrainer.algorithms.distillation.served_teacher import ServedTeacher
from pttrainer.batch import Batch
from pttrainer.data.batching import in_order
from pttrainer.losses.divergence import OfflineTeacher, Teacher
from pttrainer.rollout.context import Context
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.leader_messages import LeaderMessages

K, BETA = 6, 0.5
TEACHER, STUDENT = builder.weights(1)[1], builder.weights(2)[1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    made = builder.serve("tutor", MODEL, TEACHER)
    monkeypatch.setenv(SERVICES_ENV, json.dumps({"tutor": [made.url]}))
    yield made
    made.close()


def served_context(directory: Path, **spec: Any) -> Context:
    given = context(directory, teacher={"service": "tutor"}, top_k=K, beta=BETA, **spec)
    return replace(given, alive=lambda: None)


def made_of(given: Context, *, data: bool) -> Distill:
    """On the data or on-policy; held-out rows are those of the data."""
    spec = cast(Any, given.spec.algorithm.distill)
    rows = sft.read_rows(given, "train", learn_prompt=False, pack=True)
    assert rows is not None
    served = ServedTeacher(given, "tutor", K)
    source = (rows, None) if data else (None, (QUESTIONS, cast(Any, FakeSampler())))
    return Distill(given, spec, (OfflineTeacher(BETA), {}), *source, in_order(rows, 2), None, served)


def loss_and_gradient(guide: Teacher | OfflineTeacher, batch: Batch) -> Any:
    @jax.jit
    @jax.value_and_grad
    def loss(params: Any, b: Batch) -> Any:
        hidden = MODEL.forward(params, b.tokens_BT, b.positions_BT, b.segment_ids_BT)
        return jnp.sum(guide.stats(TEACHER, MODEL, hidden, MODEL.head(params), b).divergence_BT * b.weight_BT)

    return loss(STUDENT, batch)


@pytest.mark.parametrize("data", [False, True])
def test_loss_and_gradient_are_those_with_the_teacher_beside_the_student(
    server: FakeServer, tmp_path: Path, *, data: bool
) -> None:
    batch, facts = made_of(served_context(tmp_path), data=data).next_batch(0, cast(Any, None))
    assert facts["seconds/teacher"] > 0.0
    if data:
        assert batch.segment_ids_BT.max() > 1  # several examples in a row
    value, gradient = loss_and_gradient(OfflineTeacher(BETA), batch)
    wanted, of_teacher = loss_and_gradient(Teacher(MODEL, BETA, K), batch)
    assert float(wanted) > 0.01
    np.testing.assert_allclose(value, wanted, rtol=2e-5)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(of_teacher))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4 * largest), gradient, of_teacher)


def test_an_evaluation_has_the_teacher_s_divergence_and_asks_once(server: FakeServer, tmp_path: Path) -> None:
    given = served_context(tmp_path)
    made = made_of(given, data=True)
    totals = [_evaluated(made) for _ in range(2)]
    texts = len(server.bodies("/v1/completions"))
    rows = sft.read_rows(given, "train", learn_prompt=False, pack=True)
    assert rows is not None
    guide, wanted, count = Teacher(MODEL, BETA, K), 0.0, 0.0
    for batch in in_order(rows, 2):
        hidden = MODEL.forward(STUDENT, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
        wanted += float(guide.stats(TEACHER, MODEL, hidden, MODEL.head(STUDENT), batch).divergence_BT.sum())
        count += float(batch.mask_BT.sum())
    assert totals[0] == totals[1] == pytest.approx(wanted / count, rel=1e-4)
    assert texts == 9


def _evaluated(made: Distill) -> float:
    total, count = 0.0, 0.0
    for batch in made._held_out:
        stats = distill._compare(made.teacher, MODEL, STUDENT, {}, batch)
        total, count = total + float(stats.divergence_BT.sum()), count + float(batch.mask_BT.sum())
    return total / count


def test_the_shape_of_batches_from_the_data_is_known_before_the_teacher_answers(tmp_path: Path, server: Any) -> None:
    made = made_of(served_context(tmp_path), data=True)
    foreseen = made.expected_batch()
    assert server.requests == []
    batch, _ = made.next_batch(0, cast(Any, None))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), foreseen) == jax.tree.map(lambda x: (x.shape, x.dtype), batch)


def test_the_shape_of_held_out_batches_is_known_before_the_teacher_answers(tmp_path: Path, server: FakeServer) -> None:
    mesh = sharding.make_mesh((1,), jax.devices()[:1])
    made = made_of(replace(served_context(tmp_path), mesh=mesh), data=True)
    (call,) = made.expected_calls({}, held_out=True)
    assert server.requests == []
    batch = next(iter(made._held_out))
    foreseen = call.arguments[-1]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), foreseen) == jax.tree.map(lambda x: (x.shape, x.dtype), batch)


def test_answers_to_samples_drawn_ahead_come_back_with_the_checkpoint(server: FakeServer, tmp_path: Path) -> None:
    given = served_context(tmp_path)
    ahead = given.spec.rollout.model_copy(update={"max_staleness": 1})
    given = replace(given, spec=given.spec.model_copy(update={"rollout": ahead}))
    made = made_of(given, data=False)
    made.next_batch(0, cast(Any, None))
    state = json.loads(json.dumps(made.state()))
    wanted, _ = made.next_batch(1, cast(Any, None))
    made._pipeline.wait()  # the batch of step 2 asks the teacher, too
    before = len(server.requests)
    other = made_of(given, data=False)
    other.restore(state)
    batch = other._pipeline._pending[1].rollout.result().batch
    assert len(server.requests) == before
    jax.tree.map(np.testing.assert_array_equal, batch, wanted)
    assert np.abs(batch.teacher_logps_BTK).sum() > 0.0


def test_of_several_processes_the_leader_asks_and_all_have_the_same_batch(server: FakeServer, tmp_path: Path) -> None:
    store, batches = MessageStore(), {}
    given = served_context(tmp_path)
    rows = sft.read_rows(given, "train", learn_prompt=False, pack=True)
    assert rows is not None
    [plain, *_] = in_order(rows, 2)

    def take_part(rank: int) -> None:
        messages = LeaderMessages(store, rank=rank)
        own = ServedTeacher(replace(given, leader=rank == 0, messages=messages), "tutor", K)
        batches[rank] = own.taught(plain)[0]

    other = threading.Thread(target=take_part, args=(1,), daemon=True)
    other.start()
    take_part(0)
    other.join(timeout=30)
    jax.tree.map(np.testing.assert_array_equal, batches[1], batches[0])
    assert len(server.bodies("/tokenize")) == 1


def test_a_text_is_the_prompt_and_the_completion_token_by_token(server: FakeServer, tmp_path: Path) -> None:
    made = made_of(served_context(tmp_path), data=False)
    made.next_batch(0, cast(Any, None))
    bodies = server.bodies("/v1/completions")
    wanted = [[*question.tokens, *[7] * count, EOS] for question in QUESTIONS for count in (1, 2, 3)]
    assert len(bodies) == 4
    assert [body["prompt"] for body in bodies if body["prompt"] not in wanted] == []
    assert {body["prompt_logprobs"] for body in bodies} == {K}
