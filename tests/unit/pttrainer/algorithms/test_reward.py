"""Training of a reward model around its loss: where a text is scored, and that no layout of a step changes it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.trainer import specs
from tests.builders.trainer.runs import write_rows

from pttrainer.algorithms.reward import RewardModel, build
from pttrainer.batch import Batch
from pttrainer.data.preferences import scored_texts
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import DataError
from pttrainer.losses import preference
from pttrainer.models import Model, preset
from pttrainer.models.loading.model_spec import without_head
from pttrainer.rollout.context import Context
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import program
from pttrainer.train_step.step import train_step

MODEL = Model(without_head(preset("tiny")))
CHAT = Chat(byte_tokenizer(), byte_tokenizer().template)
PAD = CHAT.tokenizer.pad_id


def algorithm(directory: Path, *rows: dict[str, Any], **training: Any) -> RewardModel:
    lines = rows or [{"prompt": f"{i}?", "chosen": "y" * (i + 1), "rejected": "n" * (2 + i % 3)} for i in range(8)]
    source = {"uri": f"file://{write_rows(directory / 'rows.jsonl', lines)}"}
    training = {"batch_size": 8, "steps": 4, "optimizer": {"learning_rate": 1e-3}, **training}
    spec = specs.tiny({"reward": {"centering": 0.1}}, data={"train": source}, training=training)
    unused: dict[str, Any] = dict.fromkeys(("score", "initial_params", "save_samples", "alive", "run"))
    mesh = sharding.make_mesh((1,), jax.devices()[:1])
    return build(Context(spec=spec, model=MODEL, mesh=mesh, chat=CHAT, note=lambda text: None, leader=True, **unused))


def after(
    reward: RewardModel, batch: Batch, shape: tuple[int, ...] = (1,), micro: int | None = None
) -> tuple[dict[str, float], list[np.ndarray]]:
    """Metrics of a step from a head of ones, and the weights after it."""
    spec = reward._context.spec
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"micro_batch_size": micro})})
    made = program.program(spec, MODEL, reward, reward.total_steps)
    mesh = sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    with jax.sharding.set_mesh(mesh):
        layout = made.layout(mesh)
        head = {"value": {"weight": jax.numpy.ones(MODEL.config.d_model)}}
        state = jax.jit(lambda: made.new_state(MODEL.init(jax.random.key(0)), head), out_shardings=layout.state)()
        state, metrics = train_step(made, layout)(state, sharding.put(mesh, batch))
        leaves = [np.asarray(x) for x in jax.tree.leaves((state.params, state.critic.params if state.critic else None))]
    return {name: float(value) for name, value in metrics.items()}, leaves


def test_a_text_is_read_to_its_end_and_scored_at_its_last_token_that_is_no_padding() -> None:
    for ids, read in (([7, 8, 9], 3), ([7, 8, 9, PAD, PAD], 3), ([7, PAD, 9], 3), ([PAD], 1)):
        batch = scored_texts.batch_of([scored_texts_pair(ids)], 8)
        tokens, mask = np.asarray(batch.tokens_BT)[0], np.asarray(batch.mask_BT)[0]
        assert tokens[:read].tolist() == ids[:read]
        assert np.flatnonzero(mask).tolist() == [read - 1]
        assert (np.asarray(batch.segment_ids_BT)[0] > 0).sum() == read


def scored_texts_pair(ids: list[int]) -> Any:
    one = scored_texts.example(ids, PAD)
    return scored_texts.Pair(one, one)


def test_the_batch_holds_whole_conversations_with_their_end_tokens(tmp_path: Path) -> None:
    reward = algorithm(tmp_path, *[{"prompt": "a?", "chosen": "yes", "rejected": "no"}] * 4)
    batch, _ = reward.next_batch(0, {})
    messages = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "yes"}]
    ids = CHAT.tokens(messages).ids
    assert np.asarray(batch.tokens_BT)[0, : len(ids)].tolist() == ids
    assert np.asarray(batch.mask_BT)[0, len(ids) - 1] == 1
    np.testing.assert_allclose(np.asarray(batch.weight_BT).sum(), 1.0)


def test_the_loss_of_pairs_by_hand() -> None:
    loss_P = preference.bradley_terry(np.array([1.0, -2.0]), np.array([0.5, 1.0]), 0.1)
    np.testing.assert_allclose(loss_P, [np.log1p(np.exp(-0.5)) + 0.1 * 2.25, np.log1p(np.exp(3)) + 0.1], rtol=1e-6)
    slope = jax.grad(lambda x: preference.bradley_terry(x, np.float32(100.0), 0.0))(-100.0)
    np.testing.assert_allclose(slope, -1.0)  # far on the wrong side: the whole gradient, and finite


def test_a_step_is_the_same_whatever_micro_batches_devices_order_and_padding(tmp_path: Path) -> None:
    reward = algorithm(tmp_path)
    batch, _ = reward.next_batch(0, {})
    metrics, leaves = after(reward, batch)
    assert metrics["grad_norm"] > 0.1
    turned = jax.tree.map(lambda x: np.asarray(x)[np.array([2, 0, 3, 1, 6, 4, 7, 5])], batch)
    padded = jax.tree.map(lambda x: np.pad(x, ((0, 0), (0, 16))), turned)
    others, moved = after(reward, padded, (2, 1, 2, 2), 4)
    for name, value in metrics.items():
        np.testing.assert_allclose(others[name], value, rtol=2e-4, atol=1e-6, err_msg=name)
    for ours, theirs in zip(leaves, moved, strict=True):
        np.testing.assert_allclose(theirs, ours, atol=5e-5)


def test_rows_without_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="accepted for reward: preference"):
        algorithm(tmp_path, {"prompt": "a?", "completion": "yes"})
