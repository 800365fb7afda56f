"""Small models whose images have as many tokens as their sizes make: what their builders share."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.builders.peers import inference
from tests.builders.peers.models import write_with_images
from tests.builders.pictures import drawn

from pttrainer.__main__ import main
from pttrainer.batch import Images
from pttrainer.data.tokenization.image_slots import slots
from pttrainer.data.tokenization.pixels import PatchFormat
from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.models import Model, Params
from pttrainer.models.config.vision import MOST_TOKENS

Example = tuple[np.ndarray, list[Image.Image]]


@dataclass(frozen=True)
class SizedImages:
    """A family's small models. part: the token of a part; words: ids of text; picture_tokens: of one picture, whole.

    files: the processor's, by name. references: the cases whose numbers are committed. single: sides of the picture of
    an example that has one. centred_at_zero: norms multiply by 1 + scale.
    """

    cases: dict[str, dict[str, Any]]
    references: tuple[str, ...]
    format: PatchFormat | TileFormat
    files: dict[str, Any]
    part: int
    words: tuple[int, int]
    picture_tokens: Callable[[Image.Image], list[int]]
    single: tuple[int, int] = (7, 6)
    centred_at_zero: bool = False

    def write_checkpoint(self, directory: Path, raw: dict[str, Any]) -> Path:
        """`config.json`, the processor's files and `model.safetensors`, with the names of the released files."""
        return write_with_images(directory, raw, self.files, self.centred_at_zero)

    @cached_property
    def examples(self) -> list[Example]:
        """Tokens and pictures: wide and tall ones, one at the start of a row, none, three."""
        three = [(90, 13), (17, 17), (5, 8)]
        of_each = [(7, [(23, 9), (12, 31)], 21), (0, [self.single], 5), (19, [], 0), (1, three, 3)]
        made = []
        for seed, (before, sizes, behind) in enumerate(of_each):
            rng, pictures = np.random.default_rng(seed), [drawn(*size, 10 * seed + n) for n, size in enumerate(sizes)]
            ids = [*rng.integers(*self.words, before)]
            for picture in pictures:
                ids += [*self.picture_tokens(picture), int(rng.integers(*self.words))]
            made.append((np.array([*ids, *rng.integers(*self.words, behind)], np.int32), pictures))
        return made

    def images_of(self, tokens_BT: np.ndarray, of_rows: Sequence[Sequence[Image.Image]]) -> Images:
        """What a batch of rows carries; each row's image tokens in order are its images'."""
        arrays = [[self.format.array(each) for each in of_row] for of_row in of_rows]
        shape = self.format.shape(each.size for of_row in of_rows for each in of_row)
        padded = np.zeros((len(of_rows), max(map(len, of_rows)), *shape), np.float32)
        for row, of_row in enumerate(arrays):
            for image, array in enumerate(of_row):
                padded[row, image, : len(array)] = array
        runs = [[self.format.runs(each.size) for each in of_row] for of_row in of_rows]
        of_each = [slots(ids, self.part, row, MOST_TOKENS, "a row") for ids, row in zip(tokens_BT, runs, strict=True)]
        return Images(padded, np.stack(of_each))

    def packed_and_alone(self, model: Model, params: Params) -> tuple[list[np.ndarray], np.ndarray]:
        """Our logits of each example in a row of its own, and of all of them in one row."""
        return inference.packed_and_alone(model, params, self.examples, self.images_of)


def generated(directory: Path, rows: list[list[int]], files: Any) -> int:
    """Run `pttrainer generate` with images, for one token; its exit code."""
    tokens, images = directory.parent / "ids.json", directory.parent / "images.json"
    tokens.write_text(json.dumps(rows))
    images.write_text(json.dumps(files))
    options = ["--tokens", str(tokens), "--images", str(images), "--max-new", "1"]
    return main(["generate", "--model", f"file://{directory}", *options])
