"""vLLM as the engine of prompts with images, against a stand-in for it: the answers are the native engine's."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.builders.peers import gemma4_images, mistral_images, qwen_images
from tests.builders.peers.image_models import load_model
from tests.builders.peers.templates import chat_with_images, chat_with_sized_images
from tests.builders.pictures import drawn
from tests.builders.vllm import fake as vllm_fake
from tests.builders.vllm.context import context
from tests.builders.vllm.fake import Brain, FakeServer

from ptapi.spec import Vllm
from pttrainer.batch import Images
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.pixels import Colours, PatchFormat, PixelFormat
from pttrainer.data.tokenization.shown_pixels import shown
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.vllm import http_server, in_process
from pttrainer.rollout.vllm import vllm_engine as vllm
from pttrainer.rollout.vllm.image_prompts import with_marks
from pttrainer.rollout.vllm.requests import seed_of

SAMPLING, DRAW = Sampling(max_new_tokens=6, max_length=96), Draw(7, 3)
KNOWN = {seed_of(DRAW, number): (DRAW, number) for number in range(8)}
CHAT = chat_with_sized_images(qwen_images.FORMAT)
PART = int(CHAT.tokenizer.engine.token_to_id("<|image_pad|>"))


@lru_cache
def base() -> tuple[Model, Params]:
    with TemporaryDirectory() as directory:
        return load_model(qwen_images.write_trainable(Path(directory)))


def processor(tokens: list[int], pictures: list[Image.Image]) -> tuple[list[int], Images]:
    """What vLLM makes of marks and pictures."""
    left = iter(pictures)
    parts = [[token] if token != PART else [PART] * qwen_images.FORMAT.tokens(next(left).size) for token in tokens]
    ids = [token for part in parts for token in part]
    assert next(left, None) is None
    return ids, images_of(ids, pictures)


def images_of(ids: list[int], pictures: list[Image.Image]) -> Images:
    models = replace(qwen_images.MODELS, part=PART)
    padded = [*ids, *[0] * (vllm_fake.SLOTS - len(ids))]
    return models.images_of(np.array([padded]), [pictures])


def prompt_of(text: str, sizes: list[tuple[int, int]], number: int) -> Prompt:
    """A question about pictures of these sizes, as a row of data becomes one."""
    pictures = [drawn(*size, number) for size in sizes]
    content = [*({"type": "image", "size": size} for size in sizes), {"type": "text", "text": text}]
    ids = CHAT.prompt_ids([{"role": "user", "content": content}])
    if not sizes:
        return Prompt(ids, number)
    of_row = images_of(ids, pictures)
    return Prompt(ids, number, of_row._replace(slots_BT=of_row.slots_BT[:, : len(ids)]))


@lru_cache
def prompts() -> tuple[Prompt, ...]:
    return prompt_of("which?", [(13, 7)], 0), prompt_of("and these?", [(23, 9), (6, 12)], 1), prompt_of("hello", [], 2)


@lru_cache
def native() -> Completions:
    model, params = base()
    return NativeEngine(model, CHAT.tokenizer).generate(params, prompts(), 2, SAMPLING, DRAW)


def assert_native(completions: Completions) -> None:
    wanted = native()
    for row in range(len(wanted.lengths_N)):
        assert completions.tokens(row) == wanted.tokens(row)
        count = wanted.lengths_N[row]
        np.testing.assert_allclose(completions.logps_NT[row, :count], wanted.logps_NT[row, :count], atol=1e-5)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(vllm, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(http_server, "LOOK_S", 0.01)
    made = FakeServer(Brain(*base(), KNOWN, processor))
    yield made
    made.close()


def engine(tmp_path: Path, **how: Any) -> vllm.VllmEngine:
    spec = Vllm.model_validate({"retries": 1, "timeout_seconds": 300.0} | how)
    return vllm.vllm_engine(context(tmp_path, base()[0], chat=CHAT)[0], spec)


def of_server(fake: FakeServer, tmp_path: Path) -> vllm.VllmEngine:
    return engine(tmp_path, endpoint=fake.url, weights_directory=f"{tmp_path}/shared")


def test_a_rollout_with_pictures_through_the_server_is_the_native_one(fake: FakeServer, tmp_path: Path) -> None:
    assert_native(of_server(fake, tmp_path).generate(base()[1], prompts(), 2, SAMPLING, DRAW))
    bodies = fake.bodies("/inference/v1/generate")
    assert [len(body["content_parts"]) for body in bodies[1:]] in ([1, 2], [2, 1]), "after the check of the weights"
    assert len(fake.bodies("/v1/completions")) == 1, "text alone goes where it always went"


def test_so_it_is_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = vllm_fake.package(Brain(*base(), KNOWN, processor))
    monkeypatch.setattr(in_process.importlib, "import_module", lambda name: package)
    assert_native(engine(tmp_path).generate(base()[1], prompts(), 2, SAMPLING, DRAW))


def test_a_server_that_counts_a_pictures_tokens_otherwise_is_refused(fake: FakeServer, tmp_path: Path) -> None:
    def larger(tokens: list[int], pictures: list[Image.Image]) -> tuple[list[int], Images]:
        return processor(tokens, [picture.resize((60, 30)) for picture in pictures])

    fake.brain.processor = larger
    with pytest.raises(
        ConfigError, match=r"tokens of a prompt with images that has .* here, and they differ from token"
    ):
        of_server(fake, tmp_path).generate(base()[1], prompts()[:1], 1, SAMPLING, DRAW)


def test_a_server_without_that_endpoint_is_named_with_what_turns_it_on(fake: FakeServer, tmp_path: Path) -> None:
    fake.scale_out = False
    with pytest.raises(ConfigError, match=r"404.*hint: start the server, 0.32 or later, with --enable-scale-out"):
        of_server(fake, tmp_path).generate(base()[1], prompts()[:1], 1, SAMPLING, DRAW)


@pytest.mark.parametrize(
    "format_", [qwen_images.FORMAT, gemma4_images.FORMAT, mistral_images.FORMAT], ids=["qwen", "gemma4", "mistral"]
)
def test_patches_are_shown_as_the_picture_that_they_came_from(format_: PatchFormat) -> None:
    array = format_.array(drawn(50, 23))
    padded = np.zeros((len(array) + 8, array.shape[1]), np.float32)
    padded[: len(array)] = array
    again = shown(padded, format_)
    assert again.shape[:2] == format_.resized((50, 23))[::-1]
    np.testing.assert_array_equal(format_.array(Image.fromarray(again)), array)


def test_so_are_pixels_of_one_size() -> None:
    format_ = PixelFormat(20, 24, Colours((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
    array = format_.array(drawn(33, 17))
    np.testing.assert_array_equal(format_.array(Image.fromarray(shown(array, format_))), array)


def test_a_mark_stands_for_gemmas_lines_around_a_picture_too() -> None:
    chat: Chat = chat_with_images(4)
    assert chat.images is not None
    content = [{"type": "text", "text": "a\n"}, {"type": "image", "size": (8, 8)}, {"type": "text", "text": "\nb"}]
    ids = chat.prompt_ids([{"role": "user", "content": content}])
    slots_T, place = np.zeros(len(ids), np.int32), 0
    for index, token in enumerate(ids):
        if token == chat.images.part_id:
            place += 1
            slots_T[index] = place
    written = with_marks(ids, slots_T, chat.images, chat.tokenizer)
    assert chat.tokenizer.decode(written, skip_special=False) == chat.tokenizer.decode(ids, skip_special=False).replace(
        f"{chat.images.before}{chat.images.part * 4}{chat.images.after}", chat.images.mark
    )
