"""How tokens stand for images: the chat template writes a mark for each, which becomes a fixed number of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pttrainer.data.sources.images.in_messages import image_parts
from pttrainer.errors import DataError


@dataclass(frozen=True)
class ImageTokens:
    """A model's tokens of an image.

    mark: what the template writes for one; text: what stands in its place. part, part_id: the token for a part of the
    image, whose embedding is the vision tower's; count: of these in an image. ids: all tokens that are of images: none
    of them is learned.
    """

    mark: str
    text: str
    part: str
    part_id: int
    count: int
    ids: frozenset[int]


def gemma3(begin: str, part: str, end: str, ids: tuple[int, int, int], count: int) -> ImageTokens:
    """Return Gemma 3's tokens: begin, `count` parts and end, with an empty line on both sides."""
    return ImageTokens(begin, f"\n\n{begin}{part * count}{end}\n\n", part, ids[1], count, frozenset(ids))


def expanded(rendered: str, messages: Sequence[Mapping[str, Any]], images: ImageTokens | None) -> str:
    """Return a template's text with every image's tokens; raise DataError if it has others than the messages."""
    count = sum(len(image_parts(message)) for message in messages)
    if images is None:
        if count:
            raise DataError("has images, and the model takes none; accepted: rows of text; hint: set "
                            "spec.model.images: true with a model that takes images (docs/guides/data.md)")  # fmt: skip
        return rendered
    if images.part in rendered:
        raise DataError(f"a text holds {images.part!r}, which stands for a part of an image; accepted: images as parts")
    if rendered.count(images.mark) != count:
        raise DataError(
            f"chat template: writes {rendered.count(images.mark)} times {images.mark!r} for {count} images; accepted: "
            "once for each, and no such text in messages; hint: spec.model.chatTemplate names another template"
        )
    return rendered.replace(images.mark, images.text)
