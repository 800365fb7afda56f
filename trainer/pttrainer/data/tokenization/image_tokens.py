"""How tokens stand for images: the chat template writes a mark for each, which becomes as many tokens as it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pttrainer.data.sources.images.in_messages import image_parts
from pttrainer.data.tokenization.crops import CropFormat
from pttrainer.data.tokenization.pixels import PatchFormat
from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.errors import DataError


@dataclass(frozen=True)
class ImageTokens:
    """A model's tokens of an image.

    mark: what the template writes for one; before, after: texts around its parts in the mark's place. part, part_id:
    the token for a part of the image, whose embedding is the vision tower's; most: of these in an image. ids: all
    tokens that are of images: none of them is learned. of_size: how many parts a picture's size makes; `most` of any
    without it. line_end: the text between two lines of parts, where the model has lines.
    """

    mark: str
    before: str
    after: str
    part: str
    part_id: int
    most: int
    ids: frozenset[int]
    of_size: PatchFormat | TileFormat | CropFormat | None = None
    line_end: str = ""

    def runs(self, size: tuple[int, int]) -> list[list[int]]:
        """Return the parts of each line of each array that a picture of this size becomes.

        Raises DataError on one of extreme sides.
        """
        if self.of_size is None or isinstance(self.of_size, CropFormat):
            return [[self.most]]
        return [self.of_size.runs(size)]

    def count(self, size: tuple[int, int]) -> int:
        """Return the parts of a picture of this width and height; raise DataError as `runs` does."""
        return sum(map(sum, self.runs(size)))

    def text(self, size: tuple[int, int]) -> str:
        """Return what stands in the place of a picture's mark; raise DataError as `runs` does."""
        [lines] = self.runs(size)
        return self.before + self.line_end.join(self.part * count for count in lines) + self.after


@dataclass(frozen=True)
class TileTokens(ImageTokens):
    """Llama 4's tokens: the tiles of each row, then the mark and the tile that shows the picture whole.

    line_end: between two tiles of a row; row_end: behind each row.
    """

    row_end: str = ""

    def text(self, size: tuple[int, int]) -> str:
        """Return what stands in the place of a picture's mark."""
        assert isinstance(self.of_size, TileFormat)
        rows, columns = self.of_size.canvas(size)
        tile = self.part * self.of_size.tokens_each
        cut = (self.line_end.join([tile] * columns) + self.row_end) * rows if rows * columns > 1 else ""
        return f"{self.before}{cut}{self.mark}{tile}{self.after}"


@dataclass(frozen=True)
class CropTokens(ImageTokens):
    """Gemma 3's tokens where wide and tall pictures are shown in crops, too: each is like a picture, between words."""

    def runs(self, size: tuple[int, int]) -> list[list[int]]:
        """Return the parts of the picture and of each crop."""
        return [[self.most]] * (1 + self._crops(size))

    def text(self, size: tuple[int, int]) -> str:
        """Return what stands in the place of a picture's mark."""
        one = self.before + self.part * self.most + self.after
        crops = self._crops(size)
        return WHOLE_AND_CROPS.format(whole=one, crops=" ".join([one] * crops)) if crops else one

    def _crops(self, size: tuple[int, int]) -> int:
        assert isinstance(self.of_size, CropFormat)
        return len(self.of_size.boxes(size))


WHOLE_AND_CROPS = "Here is the original image {whole} and here are some crops to help you see better {crops}"
"""What Gemma 3 was trained to read there, as transformers' processor writes it."""


def pixtral(texts: tuple[str, str, str], ids: Sequence[int], most: int, of_size: PatchFormat) -> ImageTokens:
    """Return Pixtral's tokens of a part, a line's end and the image's; its template writes one part for all."""
    part, line_end, end = texts
    return ImageTokens(part, "", end, part, ids[0], most, frozenset(ids), of_size, line_end)


def qwen(part: str, ids: tuple[int, int, int], most: int, of_size: PatchFormat) -> ImageTokens:
    """Return Qwen's tokens: its template writes begin, one part, which stands for all, and end."""
    return ImageTokens(part, "", "", part, ids[1], most, frozenset(ids), of_size)


def gemma4(texts: tuple[str, str, str], ids: tuple[int, int, int], most: int, of_size: PatchFormat) -> ImageTokens:
    """Return Gemma 4's tokens: its template writes one part, which stands for all of them between begin and end."""
    begin, part, end = texts
    return ImageTokens(part, begin, end, part, ids[1], most, frozenset(ids), of_size)


def gemma3(
    begin: str, part: str, end: str, ids: tuple[int, int, int], count: int, crops: CropFormat | None = None
) -> ImageTokens:
    """Return Gemma 3's tokens: begin, `count` parts and end, with an empty line on both sides."""
    texts = begin, f"\n\n{begin}", f"{end}\n\n", part
    if crops is not None:
        return CropTokens(*texts, ids[1], count, frozenset(ids), crops)
    return ImageTokens(*texts, ids[1], count, frozenset(ids))


def expanded(rendered: str, messages: Sequence[Mapping[str, Any]], images: ImageTokens | None) -> str:
    """Return a template's text with every image's tokens; raise DataError if it has others than the messages."""
    parts = [part for message in messages for part in image_parts(message)]
    count = len(parts)
    if images is None:
        if count:
            raise DataError("has images, and the model takes none; accepted: rows of text; hint: set "
                            "spec.model.images: true with a model that takes images (docs/guides/data.md)")  # fmt: skip
        return rendered
    if images.part != images.mark and images.part in rendered:
        raise DataError(f"a text holds {images.part!r}, which stands for a part of an image; accepted: images as parts")
    if rendered.count(images.mark) != count:
        raise DataError(
            f"chat template: writes {rendered.count(images.mark)} times {images.mark!r} for {count} images; accepted: "
            "once for each, and no such text in messages; hint: spec.model.chatTemplate names another template"
        )
    text, *others = rendered.split(images.mark)
    for part, behind in zip(parts, others, strict=True):
        text += images.text(part.get("size", _UNKNOWN)) + behind
    return text


_UNKNOWN = (0, 0)
"""Of a picture whose tokens are the same for any size."""
