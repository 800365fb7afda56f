"""Published shapes: their numbers of weights are those that their authors state."""

import re
from pathlib import Path

import pytest

from pttrainer.models import preset
from pttrainer.models.families.published_shapes import RAW
from pttrainer.models.shapes import parameters

GUIDE = Path(__file__).parents[4] / "docs/guides/preflight.md"
BILLIONS = {
    "llama3.1-8b": 8.03, "llama3.1-70b": 70.55, "llama3.2-1b": 1.236, "llama3.2-3b": 3.21, "mistral-7b": 7.25,
    "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.544, "qwen2.5-7b": 7.616, "qwen2.5-32b": 32.76,
    "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02, "qwen3-8b": 8.19, "qwen3-14b": 14.77,
    "qwen3-32b": 32.76, "qwen3-30b-a3b": 30.53, "gemma2-2b": 2.61, "gemma2-9b": 9.24, "gemma2-27b": 27.23,
    "gemma3-4b": 3.88, "gemma3-12b": 11.77, "gemma3-27b": 27.01, "gpt-oss-20b": 20.91, "gpt-oss-120b": 116.83,
    "qwen3-235b-a22b": 235.1,
    "qwen3-next-80b": 79.67, "deepseek-v3": 671.0, "deepseek-v3.2": 671.9, "glm-5": 744.0, "kimi-k2": 1026.4,
    "mixtral-8x7b": 46.70, "mixtral-8x22b": 140.63,
    "mistral-small-24b": 23.57, "ministral3-3b": 3.43, "ministral3-8b": 8.49, "ministral3-14b": 13.51, "olmo3-7b": 7.30,
    "olmo3-32b": 32.23, "smollm3-3b": 3.075, "phi4-14b": 14.66, "glm4.5-air": 106.85, "glm4.5": 352.8,
    "llama4-scout": 107.8, "llama4-maverick": 400.7, "llama3.1-405b": 405.85,
    "gemma4-31b": 30.7, "gemma4-26b-a4b": 25.2,
    # Their authors' 5.1 and 8 count the encoders of images (0.15) and of sound (0.3), too.
    "gemma4-e2b": 4.63, "gemma4-e4b": 7.46,
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_a_published_shape_has_the_published_number_of_weights(name: str) -> None:
    assert parameters.count(preset(name)) / 1e9 == pytest.approx(BILLIONS[name], rel=0.002)


def test_the_guide_names_every_published_shape() -> None:
    guide = GUIDE.read_text()
    listed = guide.partition("has the published shape. So have")[2].partition("Of an `hf://`")[0]
    named = {
        first[: first.rindex("-") + 1] + size if i else first
        for first, *sizes in (words.split("|") for words in re.findall("`([^`]+)`", listed))
        for i, size in enumerate([first, *sizes])
    }
    assert named == set(RAW)


def test_windows_and_scalings_are_those_of_the_real_models() -> None:
    assert preset("gemma3-4b").local_layers[:7] == (True, True, True, True, True, False, True)
    assert preset("mistral-7b").window is None
    assert preset("gpt-oss-20b").window == 128
    assert preset("llama3.2-1b").rope.scaling.factor == 32.0  # type: ignore[union-attr]
