"""DPO around its loss: pairs through a real step, the reference asked once, what a checkpoint holds."""

import json
import math
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from tests.builders.trainer import specs
from tests.builders.trainer.steps import compiled

from ptapi.spec import Optimizer, Schedule
from pttrainer.algorithms.dpo import Dpo, build
from pttrainer.batch import Batch
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, preset
from pttrainer.rollout.context import Context
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program

MODEL = Model(preset("tiny"))
CHAT = Chat(byte_tokenizer(), byte_tokenizer().template)


class Scores:
    """Weights that are a number x say −x to every token; counts the rows that it is asked about."""

    def __init__(self) -> None:
        self.row_counts: list[int] = []

    def __call__(self, params: Any, batch: Batch, temperature: float) -> TokenStats:
        self.row_counts.append(int((batch.mask_BT.sum(axis=1) > 0).sum()))
        logps_BT = -float(params) * np.asarray(batch.mask_BT)
        return TokenStats(logps_BT, 0.0 * logps_BT)


def algorithm(directory: Path, dpo: dict[str, Any], rows: int = 8, **training: Any) -> tuple[Dpo, Scores]:
    lines = [{"prompt": f"{i}?", "chosen": "y" * (i + 1), "rejected": "n" * (2 + i % 3)} for i in range(rows)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"uri": f"file://{directory}/rows.jsonl"}
    training = {"batch_size": 8, "steps": 4, **training}
    spec = specs.tiny({"dpo": dpo}, data={"train": source, "eval": source}, training=training)
    scores = Scores()
    unused = ("model", "initial_params", "save_samples", "alive", "run")
    used = {"mesh": sharding.make_mesh((1,), jax.devices()[:1]), "chat": CHAT, "score": scores, "leader": True}
    context = Context(spec=spec, note=lambda text: None, **cast(Any, used | dict.fromkeys(unused)))
    return build(context), scores


def test_the_reference_is_asked_once_about_pairs_that_the_run_will_see_and_no_others(tmp_path: Path) -> None:
    few, scores = algorithm(tmp_path, {}, rows=40, steps=2)
    assert few.needs_params
    few.next_batch(0, cast(Any, 1.0))
    assert not few.needs_params
    few.next_batch(1, cast(Any, 2.0))
    assert sum(scores.row_counts) == 2 * 8 + 2 * 40  # rows of two steps, and all held-out rows


@pytest.mark.parametrize("loss", ["simpo", "orpo"])
def test_losses_without_a_reference_never_ask_one(tmp_path: Path, loss: str) -> None:
    free, scores = algorithm(tmp_path, {"loss": loss})
    assert not free.needs_params
    assert free.next_batch(0, cast(Any, 1.0))[0].ref_sums_B1 is None
    assert scores.row_counts == []


def test_a_batch_carries_what_the_first_weights_said(tmp_path: Path) -> None:
    dpo, _ = algorithm(tmp_path, {})
    dpo.evaluate(cast(Any, 0.5))
    for number in range(3):
        batch, _ = dpo.next_batch(number, cast(Any, 9.0))
        np.testing.assert_allclose(batch.ref_sums_B1[:, 0], -0.5 * batch.mask_BT.sum(axis=1))


def test_an_epoch_sees_every_pair_once_and_the_next_one_in_another_order(tmp_path: Path) -> None:
    dpo, _ = algorithm(tmp_path, {"loss": "orpo"}, steps=None, epochs=2.0)
    assert dpo.total_steps == 4
    lengths = [tuple(dpo.next_batch(number, cast(Any, 1.0))[0].mask_BT[:4].sum(axis=1)) for number in range(4)]
    first, second = lengths[0] + lengths[1], lengths[2] + lengths[3]
    assert sorted(first) == sorted(second) == list(range(2, 10))
    assert first != second


def test_a_resumed_run_has_the_references_of_the_first_weights(tmp_path: Path) -> None:
    before, _ = algorithm(tmp_path, {})
    before.next_batch(0, cast(Any, 0.5))
    after, scores = algorithm(tmp_path, {})
    after.restore(json.loads(json.dumps(before.state())))
    wanted, batch = (dpo.next_batch(1, cast(Any, 7.0))[0] for dpo in (before, after))
    jax.tree.map(np.testing.assert_array_equal, batch, wanted)
    assert scores.row_counts == []


def test_held_out_figures_by_hand_whatever_the_batches(tmp_path: Path) -> None:
    """The policy says −2 per token, the reference −1: h is tokens of the rejected less tokens of the chosen answer."""
    dpo, _ = algorithm(tmp_path, {"beta": 0.3})
    dpo.evaluate(cast(Any, 1.0))
    chosen, rejected = np.arange(8) + 2.0, 3.0 + np.arange(8) % 3
    h = rejected - chosen
    metrics = dpo.evaluate(cast(Any, 2.0))
    assert metrics["eval/loss"] == pytest.approx(np.mean(np.log1p(np.exp(-0.3 * h))), rel=1e-6)
    assert metrics["eval/rewards/accuracies"] == np.mean(h > 0)
    assert metrics["eval/rewards/margins"] == pytest.approx(0.3 * h.mean(), rel=1e-6)
    assert metrics["eval/logps/chosen"] == pytest.approx(-2 * chosen.mean(), rel=1e-6)
    assert metrics["eval/kl"] == pytest.approx(math.e - 2, rel=1e-5)


@lru_cache
def trained(shape: tuple[int, int, int, int], micro: int | None, dpo: Dpo) -> Any:
    """One step of real weights on a mesh: metrics and new weights. A large eps makes the step the gradient."""
    mesh = sharding.make_mesh(shape, jax.devices()[: math.prod(shape)])
    rate = transformation.schedule(Schedule(), 1.0, 10)
    updates = transformation.build(Optimizer(eps=1.0), rate)
    program = Program(MODEL, dpo, updates, rate, micro)
    return mesh, *compiled(program, mesh)


def after(dpo: Dpo, batch: Batch, shape: tuple[int, int, int, int] = (1, 1, 1, 1), micro: int | None = None) -> Any:
    mesh, function, fresh = trained(shape, micro, dpo)
    with jax.set_mesh(mesh):
        state, metrics = function(fresh(), put(mesh, batch))
    return {name: float(value) for name, value in metrics.items()}, jax.device_get(state.params)


def assert_same(one: Any, other: Any) -> None:
    for name, wanted in other[0].items():
        assert one[0][name] == pytest.approx(wanted, rel=3e-5, abs=1e-5), name
    jax.tree.map(partial(np.testing.assert_allclose, atol=3e-5), one[1], other[1])


@pytest.fixture(scope="module")
def first_step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dpo, Batch]:
    """The reference says −6 to every token."""
    dpo, _ = algorithm(tmp_path_factory.mktemp("dpo"), {})
    return dpo, dpo.next_batch(0, cast(Any, 6.0))[0]


def test_a_step_is_the_same_whatever_micro_batches_devices_order_and_padding(first_step: tuple[Dpo, Batch]) -> None:
    dpo, batch = first_step
    whole = after(dpo, batch)
    assert whole[0]["grad_norm"] > 0.1
    turned = jax.tree.map(lambda x: x[np.array([3, 1, 0, 2, 7, 5, 4, 6])], batch)
    padded = jax.tree.map(lambda x: x if x.shape[1] == 1 else np.pad(x, ((0, 0), (0, 16))), turned)
    assert_same(after(dpo, padded, (2, 1, 2, 2), 4), whole)


def test_the_loss_of_a_step_is_the_mean_over_pairs_of_the_formula(first_step: tuple[Dpo, Batch]) -> None:
    dpo, batch = first_step
    metrics, _ = after(dpo, batch)
    params = jax.jit(MODEL.init)(jax.random.key(0))
    hidden_BTD = jax.jit(MODEL.forward)(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    logps_BTV = np.asarray(jax.nn.log_softmax(hidden_BTD @ MODEL.head(params).T))
    token_logps_BT = np.take_along_axis(logps_BTV, batch.targets_BT[..., None], axis=2)[..., 0] * batch.mask_BT
    chosen, rejected = (token_logps_BT.sum(axis=1) - batch.ref_sums_B1[:, 0]).reshape(2, 4)
    assert metrics["loss"] == pytest.approx(np.mean(np.log1p(np.exp(-0.1 * (chosen - rejected)))), rel=1e-5)
    assert metrics["rewards/chosen"] == pytest.approx(0.1 * chosen.mean(), rel=1e-5)
    assert metrics["logps/rejected"] == pytest.approx(token_logps_BT[4:].sum(axis=1).mean(), rel=1e-5)
