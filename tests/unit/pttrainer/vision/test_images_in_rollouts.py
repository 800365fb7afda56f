"""Rollouts with images: sampler and trainer agree about every token, however rows share prompts and pixels."""

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import pytest
from tests.builders.peers.image_models import RAW, TOKENS, example, images_of, load_model, pixels, write_checkpoint
from tests.builders.peers.templates import GEMMA_IMAGE_TOKENS, chat_with_images

from ptapi.spec import DraftModel
from pttrainer.algorithms import ppo
from pttrainer.batch import Batch, Images
from pttrainer.checkpoint import batch_json
from pttrainer.data.prompts import Question
from pttrainer.data.tokenization import row_images
from pttrainer.data.tokenization.image_slots import slots
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params
from pttrainer.models.loading.model_spec import draft_of
from pttrainer.rollout import groups
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.groups import Group, ImageRows, Sample
from pttrainer.rollout.native import prefill
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.speculative.draft_model import Draft
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import ACCEPTED, PROPOSED, Speculation
from pttrainer.train_step.critic import Critic
from pttrainer.train_step.scoring import score_step, value_step

TOLERANCE = 2e-5
"""Absolute, of log-probs in float32. Measured: 3e-6."""
SAMPLES = 4
SAMPLING = Sampling(max_new_tokens=9, max_length=96)
PROMPTS = [(example(3, 4, 2, 6), pixels(3, 2)), (example(4, 1, 1, 3), pixels(4, 1)), (example(5, 9, 0, 0), None)]
"""Two images, one, and none."""


@lru_cache
def model() -> tuple[Model, Params]:
    with TemporaryDirectory() as directory:
        return load_model(write_checkpoint(Path(directory)))


def prompts() -> list[Prompt]:
    images = [None if of is None else images_of(ids[None], [of]) for ids, of in PROMPTS]
    return [Prompt(ids.tolist(), n, own) for n, ((ids, _), own) in enumerate(zip(PROMPTS, images, strict=True))]


@lru_cache
def sampled(rows: int | None = None) -> Completions:
    engine = NativeEngine(model()[0], byte_tokenizer(), rows=rows)
    return engine.generate(model()[1], prompts(), SAMPLES, SAMPLING, Draw(0, 0))


def laid_out(images: ImageRows, shared: int | None = None) -> Batch:
    done = sampled()
    made = []
    for n, prompt in enumerate(prompts()):
        rows = range(n * SAMPLES, (n + 1) * SAMPLES)
        own = [Sample(done.tokens(row), done.logps_NT[row, : done.lengths_N[row]], True, "", {}, 1.0) for row in rows]
        made.append(Group(Question(prompt.tokens, "", {}), own, prompt.images))
    return groups.lay_out(made, np.ones((len(made), SAMPLES)), 0, SAMPLING.max_length, shared, images)


def here() -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(jax.make_mesh((1,), ("x",)), jax.sharding.PartitionSpec())


def scored(batch: Batch) -> np.ndarray:
    return np.asarray(score_step(model()[0], here())(model()[1], batch, 1.0).logps_BT)


SHAPE = (2, *PROMPTS[0][1].shape[1:])


@pytest.mark.parametrize(
    ("together", "shared"), [(False, None), (True, None), (True, 48)], ids=["apart", "together", "shared"]
)
def test_the_trainer_scores_what_the_sampler_drew_and_computes_an_image_once_per_prompt(
    together: bool, shared: int | None
) -> None:
    batch = laid_out(ImageRows(SHAPE, together), shared)
    assert batch.images is not None
    assert len(batch.images.pixels_BMSSC) == (len(PROMPTS) if together else len(PROMPTS) * SAMPLES)
    mask = batch.mask_BT > 0
    np.testing.assert_allclose(scored(batch)[mask], batch.sampler_logps_BT[mask], atol=TOLERANCE)
    blind = scored(batch._replace(images=batch.images._replace(slots_BT=np.zeros_like(batch.images.slots_BT))))
    seeing = mask.any(axis=1) & (np.arange(len(mask)) < 2 * SAMPLES)
    assert np.abs((blind - batch.sampler_logps_BT)[seeing][mask[seeing]]).max() > 0.1, "pictures matter"


def test_rows_that_are_taken_over_have_their_prompts_images() -> None:
    whole, refilled = sampled(), sampled(rows=5)
    np.testing.assert_array_equal(refilled.tokens_NT, whole.tokens_NT)
    np.testing.assert_allclose(refilled.logps_NT, whole.logps_NT, atol=TOLERANCE)


@lru_cache
def speculation(of: str) -> Speculation:
    """Guesses by lookup, of a model that sees, of its text alone, whose tower is missing."""
    if of == "lookup":
        return Speculation(Ngram(2, 2))
    seeing, params = model()
    blind = Model(replace(seeing.config, vision=None))
    draft = seeing if of == "sees" else blind
    weights = params if of == "sees" else {name: value for name, value in params.items() if name != "vision"}
    return Speculation(Draft(2, draft), jax.jit(draft.for_decoding)(weights), draft)


@pytest.mark.parametrize("of", ["lookup", "sees", "blind"])
def test_samples_are_the_same_whoever_guesses_them(of: str) -> None:
    engine = NativeEngine(model()[0], byte_tokenizer(), speculation=speculation(of))
    done = engine.generate(model()[1], prompts(), SAMPLES, SAMPLING, Draw(0, 0))
    np.testing.assert_array_equal(done.lengths_N, sampled().lengths_N)
    for row in range(len(done.lengths_N)):
        assert done.tokens(row) == sampled().tokens(row)
    np.testing.assert_allclose(done.logps_NT, sampled().logps_NT, atol=TOLERANCE)
    if of == "sees":
        assert done.facts[ACCEPTED] == done.facts[PROPOSED], "it is the model itself, with the same pictures"


@pytest.mark.parametrize(
    ("of_tower", "of_text", "sees"),
    [({}, {"num_hidden_layers": 1}, True), ({"image_size": 84}, {}, False), (None, {}, False)],
    ids=["smaller", "larger pictures", "text alone"],
)
def test_a_draft_sees_where_its_tower_reads_the_same_arrays(
    tmp_path: Path, of_tower: dict[str, int] | None, of_text: dict[str, int], sees: bool
) -> None:
    text = RAW["text_config"] | of_text
    raw = text if of_tower is None else RAW | {"text_config": text, "vision_config": RAW["vision_config"] | of_tower}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    draft = DraftModel.model_validate({"uri": tmp_path.as_uri()})
    _, structure = draft_of(draft, model()[0], lambda _: None, weights=False)
    assert (structure.config.vision is not None) == sees
    assert structure.config.layers == text["num_hidden_layers"]


def test_later_turns_of_one_question_share_its_pixels() -> None:
    turns = [prompt for prompt in prompts() for _ in range(SAMPLES)]
    images = prefill.padded_images(turns, 64)
    assert images is not None
    assert len(images.pixels_BMSSC) == 2
    engine = NativeEngine(model()[0], byte_tokenizer())
    done = engine.generate(model()[1], turns, 1, SAMPLING, Draw(0, 0))
    first = [row * SAMPLES for row in range(len(PROMPTS))]
    alone = engine.generate(model()[1], prompts(), 1, SAMPLING, Draw(0, 0))
    np.testing.assert_allclose(done.logps_NT[first], alone.logps_NT, atol=TOLERANCE)


def test_prompts_with_images_are_computed_whole_where_others_are_kept() -> None:
    engine = NativeEngine(model()[0], byte_tokenizer(), keeps_prompts=True)
    done = engine.generate(model()[1], prompts(), SAMPLES, SAMPLING, Draw(0, 0))
    np.testing.assert_array_equal(done.logps_NT, sampled().logps_NT)
    assert done.facts == {}


@pytest.mark.parametrize("shared", [None, 48])
def test_micro_batches_and_checkpoints_keep_images_with_their_rows(shared: int | None) -> None:
    batch = laid_out(ImageRows(SHAPE, True), shared)
    once_more = batch_json.from_json(json.loads(json.dumps(batch_json.to_json(batch))))
    jax.tree.map(np.testing.assert_array_equal, once_more, batch)
    whole, parts = scored(batch), batch.split(3)
    for part in range(3):
        own: Batch = jax.tree.map(lambda x, part=part: x[part], parts)
        assert isinstance(own.images, Images)
        rows = slice(part * SAMPLES, (part + 1) * SAMPLES)
        mask = batch.mask_BT[rows] > 0
        np.testing.assert_allclose(scored(own)[mask], whole[rows][mask], atol=TOLERANCE)


def test_a_critic_reads_the_pictures_also_where_rows_get_one_more_token() -> None:
    laid = laid_out(ImageRows(SHAPE, True))
    wider = ppo.with_last_token(laid)
    values = value_step(model()[0], Critic(model()[0].config.d_model), here(), 1.0, scored=True)
    weight = np.random.default_rng(0).standard_normal(model()[0].config.d_model).astype(np.float32)
    of_critic = {"value": {"weight": weight, "bias": np.float32(0)}}
    mask, T = laid.mask_BT > 0, laid.mask_BT.shape[1]
    values_BT, logps_BT = values(model()[1], of_critic, laid)
    assert logps_BT is not None
    np.testing.assert_allclose(np.asarray(logps_BT)[mask], laid.sampler_logps_BT[mask], atol=TOLERANCE)
    of_wider = np.asarray(values(model()[1], of_critic, wider)[0])[:, :T]
    np.testing.assert_allclose(of_wider[mask], np.asarray(values_BT)[mask], atol=1e-3)


def test_an_opening_of_an_episode_moves_the_slots_and_cannot_speak_of_images() -> None:
    chat = chat_with_images(TOKENS)
    asking = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    before = chat.prompt_ids(asking)
    assert chat.images is not None
    own_T = slots(np.array(before), chat.images.part_id, [[TOKENS]], TOKENS, "a prompt")
    images = Images(pixels(0, 1)[None], own_T[None])
    opening = chat.without_specials(f"Welcome{GEMMA_IMAGE_TOKENS[0]}{GEMMA_IMAGE_TOKENS[1]}")
    earlier = [{"role": "user", "content": opening}, {"role": "assistant", "content": "!"}]
    after = chat.prompt_ids([*earlier, *asking])
    moved = row_images.moved(chat, after, images)
    assert moved is not None
    np.testing.assert_array_equal(moved.slots_BT[0] > 0, np.array(after) == chat.images.part_id)
