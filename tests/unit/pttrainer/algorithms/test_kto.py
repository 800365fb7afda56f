"""KTO around its loss: the KL of the whole step, the reference asked once, what a checkpoint holds."""

import json
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from tests.builders.trainer import specs
from tests.unit.pttrainer.algorithms.test_dpo import CHAT, Scores, after, assert_same

from pttrainer.algorithms.kto import Kto, build
from pttrainer.batch import Batch
from pttrainer.errors import DataError
from pttrainer.rollout.context import Context
from pttrainer.runtime.distributed import sharding


def algorithm(directory: Path, kto: dict[str, Any], rows: int = 8, **training: Any) -> tuple[Kto, Scores]:
    """Answers of 2 to 9 tokens, their end included, good where the number of the row is even."""
    lines = [{"prompt": f"{i}?", "completion": "y" * (i % 8 + 1), "label": i % 2 == 0} for i in range(rows)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return algorithm_on(directory, kto, **{"batch_size": 8, "steps": 4, **training})


def algorithm_on(directory: Path, kto: dict[str, Any], **training: Any) -> tuple[Kto, Scores]:
    """KTO on the rows in a directory, held out as well."""
    source = {"uri": f"file://{directory}/rows.jsonl"}
    spec = specs.tiny({"kto": kto}, data={"train": source, "eval": source}, training=training)
    scores = Scores()
    unused = ("model", "initial_params", "save_samples", "alive", "run")
    used = {"mesh": sharding.make_mesh((1,), jax.devices()[:1]), "chat": CHAT, "score": scores, "leader": True}
    context = Context(spec=spec, note=lambda text: None, **cast(Any, used | dict.fromkeys(unused)))
    return build(context), scores


def test_the_reference_is_asked_once_and_the_policy_about_every_step_s_mismatched_answers(tmp_path: Path) -> None:
    few, scores = algorithm(tmp_path, {}, rows=40, steps=2)
    few.next_batch(0, cast(Any, 1.0))
    assert sum(scores.row_counts) == 2 * 16 + 2 * 40 + 8  # of two steps' rows and all held-out rows, then of this step
    few.next_batch(1, cast(Any, 2.0))
    assert sum(scores.row_counts) == 2 * 16 + 2 * 40 + 16
    assert few.needs_params


def test_apo_zero_asks_the_reference_alone(tmp_path: Path) -> None:
    free, scores = algorithm(tmp_path, {"loss": "apo-zero"})
    assert free.needs_params
    batch, _ = free.next_batch(0, cast(Any, 1.0))
    assert not free.needs_params
    assert sum(scores.row_counts) == 8 + 8
    np.testing.assert_array_equal(batch.kl_B1, 0.0)


def test_a_batch_carries_label_reference_and_the_kl_of_the_whole_step(tmp_path: Path) -> None:
    """The reference says −2 to every token and the policy −1.5: 5.5 tokens, half a nat each."""
    kto, _ = algorithm(tmp_path, {})
    kto.evaluate(cast(Any, 2.0))
    batch, _ = kto.next_batch(0, cast(Any, 1.5))
    lengths = batch.mask_BT.sum(axis=1)
    np.testing.assert_allclose(batch.ref_sums_B1[:, 0], -2.0 * lengths)
    np.testing.assert_array_equal(batch.desirable_B1[:, 0], lengths % 2 == 0)
    np.testing.assert_allclose(batch.kl_B1, 5.5 * 0.5)
    later, _ = kto.next_batch(1, cast(Any, 9.0))
    np.testing.assert_array_equal(later.kl_B1, 0.0)


def test_a_resumed_run_has_the_references_of_the_first_weights(tmp_path: Path) -> None:
    before, _ = algorithm(tmp_path, {})
    before.next_batch(0, cast(Any, 0.5))
    after_restart, _ = algorithm(tmp_path, {})
    after_restart.restore(json.loads(json.dumps(before.state())))
    wanted, batch = (kto.next_batch(1, cast(Any, 0.25))[0] for kto in (before, after_restart))
    assert float(batch.kl_B1[0, 0]) == 5.5 * 0.25
    jax.tree.map(np.testing.assert_array_equal, batch, wanted)


def test_held_out_figures_by_hand(tmp_path: Path) -> None:
    """The policy says −1 per token, the reference −2: a ratio is the number of tokens, z their mean."""
    kto, _ = algorithm(tmp_path, {"beta": 0.3, "undesirableWeight": 2.0}, rows=16)
    kto.evaluate(cast(Any, 2.0))
    ratios, is_good = np.arange(16) % 8 + 2.0, np.arange(16) % 2 == 0
    scores = 0.3 * (ratios - 5.5) * np.where(is_good, 1, -1)
    losses = np.where(is_good, 1.0, 2.0) / (1 + np.exp(scores))
    metrics = kto.evaluate(cast(Any, 1.0))
    assert metrics["eval/loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert metrics["eval/kl"] == pytest.approx(5.5)
    assert metrics["eval/rewards/accuracies"] == np.mean(scores > 0)
    assert metrics["eval/rewards/chosen"] == pytest.approx(0.3 * ratios[is_good].mean(), rel=1e-6)
    assert metrics["eval/logps/rejected"] == pytest.approx(-ratios[~is_good].mean(), rel=1e-6)


def test_a_held_out_prompt_is_hardly_ever_continued_by_its_own_other_answer(tmp_path: Path) -> None:
    """Both answers of a preference stand side by side in the data: in that order 20 of 40 would be."""
    rows = [{"prompt": f"{i}?" + "?" * i, "chosen": f"y{i}", "rejected": f"no{i}"} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kto = algorithm_on(tmp_path, {}, batch_size=8, steps=1)[0]
    part = kto.parts["eval"]
    own = [
        np.array_equal(mismatched.tokens, part.data.examples[other].tokens)
        for number, mismatched in enumerate(part.mismatched)
        for other in (number, number ^ 1)
    ]
    assert sum(own) <= 4


def test_one_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 answer; accepted for kto: at least 2"):
        algorithm(tmp_path, {}, rows=1)


@pytest.fixture(scope="module")
def first_step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kto, Batch]:
    """The reference says −6 to every token, and z is that of a policy that says −5."""
    kto, _ = algorithm(tmp_path_factory.mktemp("kto"), {"desirableWeight": 1.5})
    kto.evaluate(cast(Any, 6.0))
    return kto, kto.next_batch(0, cast(Any, 5.0))[0]


def test_a_step_is_the_same_whatever_micro_batches_devices_order_and_padding(first_step: tuple[Kto, Batch]) -> None:
    kto, batch = first_step
    whole = after(cast(Any, kto), batch)
    assert whole[0]["grad_norm"] > 0.1
    turned = jax.tree.map(lambda x: x[np.array([3, 6, 0, 2, 7, 5, 4, 1])], batch)
    padded = jax.tree.map(lambda x: x if x.shape[1] == 1 else np.pad(x, ((0, 0), (0, 16))), turned)
    assert_same(after(cast(Any, kto), padded, (2, 1, 2, 2), 4), whole)
