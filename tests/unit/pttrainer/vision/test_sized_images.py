"""Models whose images have as many tokens as their sizes make: against numbers of transformers, and in rollouts."""

import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import pytest
from tests.builders.peers import gemma4_images, llama4_images, mistral_images, qwen_images
from tests.builders.peers.image_models import load_model
from tests.builders.peers.sized_images import SizedImages

from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.image_patches import PLACE
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, from_hf, to_hf
from pttrainer.rollout import groups
from pttrainer.rollout.engine import Draw, Prompt, Sampling
from pttrainer.rollout.groups import Group, ImageRows, Sample
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.train_step.scoring import score_step

TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is 0.4 to 1.4. Not to be loosened."""
OF_FAMILIES = (gemma4_images.MODELS, llama4_images.MODELS, mistral_images.MODELS, qwen_images.MODELS)
MODELS = {case: models for models in OF_FAMILIES for case in models.references}
CASES = {case: raw for models in OF_FAMILIES for case, raw in models.cases.items()}


@lru_cache
def model(case: str) -> tuple[SizedImages, Model, Params]:
    with TemporaryDirectory() as directory:
        models = MODELS[case]
        return models, *load_model(models.write_checkpoint(Path(directory), models.cases[case]))


@pytest.mark.parametrize("case", CASES)
def test_a_config_is_written_as_it_is_read_and_text_alone_is_a_model_of_its_own(case: str) -> None:
    whole = from_hf(CASES[case], images=True)
    assert from_hf(json.loads(json.dumps(to_hf(whole))), images=True) == whole
    text = from_hf(CASES[case])
    assert text.vision is None
    assert "vision_config" not in to_hf(text)


@pytest.mark.parametrize("case", MODELS)
def test_logits_with_images_are_those_of_transformers_alone_and_packed(case: str) -> None:
    expected = np.load(Path(__file__).with_name(f"{case}.npz"))
    models, of, params = model(case)
    alone, packed_TV = models.packed_and_alone(of, params)
    start = 0
    for (tokens, _), ours_TV, name in zip(models.examples, alone, expected.files, strict=True):
        assert np.abs(ours_TV[::3] - expected[name]).max() <= TOLERANCE
        assert np.abs(packed_TV[start : start + len(tokens)][::3] - expected[name]).max() <= TOLERANCE
        start += len(tokens)


SAMPLES = 2
SAMPLING = Sampling(max_new_tokens=7, max_length=96)


@pytest.mark.parametrize(
    ("case", "shared"), [
        ("qwen-3-vl", None), ("qwen-3-vl", 64), ("qwen-3.5", None), ("gemma-4", 80), ("gemma-4-small", None),
        ("llama-4", 88),
    ],
)  # fmt: skip
def test_the_trainer_scores_what_the_sampler_drew_from_pictures(case: str, shared: int | None) -> None:
    """With prompts of several sizes of images, through the cache that knows nothing of images."""
    models, of, params = model(case)
    examples = [each for each in models.examples if len(each[0]) + SAMPLING.max_new_tokens <= SAMPLING.max_length]
    prompts = [
        Prompt(tokens.tolist(), n, models.images_of(tokens[None], [pictures]) if pictures else None)
        for n, (tokens, pictures) in enumerate(examples)
    ]
    done = NativeEngine(of, byte_tokenizer()).generate(params, prompts, SAMPLES, SAMPLING, Draw(0, 0))
    made = []
    for n, prompt in enumerate(prompts):
        rows = range(n * SAMPLES, (n + 1) * SAMPLES)
        own = [Sample(done.tokens(row), done.logps_NT[row, : done.lengths_N[row]], True, "", {}, 1.0) for row in rows]
        made.append(Group(Question(prompt.tokens, "", {}), own, prompt.images))
    pictures = [each for _, of_example in examples for each in of_example]
    shape = (3, *models.format.shape(each.size for each in pictures))
    batch = groups.lay_out(made, np.ones((len(made), SAMPLES)), 0, SAMPLING.max_length, shared, ImageRows(shape, True))
    here = jax.sharding.NamedSharding(jax.make_mesh((1,), ("x",)), jax.sharding.PartitionSpec())
    mask = batch.mask_BT > 0
    scored = np.asarray(score_step(of, here)(params, batch, 1.0).logps_BT)
    np.testing.assert_allclose(scored[mask], batch.sampler_logps_BT[mask], atol=2e-5)
    assert batch.images is not None
    pixels = batch.images.pixels_BMSSC
    of_place = PLACE if pixels.ndim == 4 else 0  # patches have places; tiles have none
    grey = batch.images._replace(pixels_BMSSC=np.where(np.arange(pixels.shape[-1]) < of_place, pixels, 0))
    blind = np.asarray(score_step(of, here)(params, batch._replace(images=grey), 1.0).logps_BT)
    assert np.abs(blind - scored)[mask].max() > 0.01, "pictures matter"
