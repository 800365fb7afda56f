"""Images in a conversation: each is a part `{type: image}` where the model meets it; the row holds them in this order.

A message may carry its images itself, or leave places for those of a column. Without places, a text's marks `<image>`
are them; without marks, images precede the first text of the user.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pttrainer.errors import DataError

Message = Mapping[str, Any]
MARK = "<image>"
"""What stands for an image in texts of data sets in LLaVA's form."""
PLACE: Message = {"type": "image"}


def image_parts(message: Message) -> list[Message]:
    """Return the parts of a message that are images."""
    content = message.get("content")
    return [part for part in content if part["type"] == "image"] if isinstance(content, list) else []


def text_of(message: Message) -> str:
    """Return a message's text, with a mark for each image."""
    content = message.get("content", "")
    return "".join(part.get("text", MARK) for part in content) if isinstance(content, list) else str(content)


def place(
    messages: Sequence[Message], column: str, values: Sequence[Any], where: str
) -> tuple[list[Message], list[tuple[str, Any]]]:
    """Return messages with a bare part for each image, and the images: where each is named, and what it says.

    column, values: the row's column of images, and its images, if it has any. Raises DataError.
    """
    carried = [part.get("image") for message in messages for part in image_parts(message)]
    here = f"{where}: column {column!r}"
    if not values:
        if any(value is None for value in carried):
            raise DataError(f"{where}: a message has an image part without an image; accepted: a column of images "
                            "(images, image), or {type: image_url, image_url: {url}}")  # fmt: skip
        return _bare(messages), [(f"{where}: image {n}", value) for n, value in enumerate(carried)]
    if any(value is not None for value in carried):
        raise DataError(f"{here}: messages carry images, too; accepted: images in messages, or in a column")
    named = [(f"{here}[{n}]", value) for n, value in enumerate(values)]
    if not carried:
        return _placed(messages, len(values), here), named
    if len(carried) != len(values):
        raise DataError(f"{here}: has {len(values)} images; accepted: {len(carried)}, as messages have image parts")
    return _bare(messages), named


def _bare(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with image parts that carry nothing."""

    def bare(message: Message) -> Message:
        parts = [PLACE if part["type"] == "image" else part for part in message["content"]]
        return {**message, "content": parts}

    return [bare(message) if image_parts(message) else message for message in messages]


def _placed(messages: Sequence[Message], count: int, here: str) -> list[Message]:
    """Return messages with a part for each image: at the marks in their texts, or before the first text of a user."""
    marks = sum(str(message.get("content", "")).count(MARK) for message in messages)
    if marks not in (0, count):
        raise DataError(f"{here}: has {count} images; accepted: {marks}, as texts have {MARK}")
    if marks:
        return [_at_marks(message) for message in messages]
    first = next((n for n, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise DataError(f"{here}: no user message that the images are part of; accepted: one, or image parts")
    parts = [PLACE] * count + [{"type": "text", "text": messages[first]["content"]}]
    return [*messages[:first], {**messages[first], "content": parts}, *messages[first + 1 :]]


def _at_marks(message: Message) -> Message:
    first, *others = str(message.get("content", "")).split(MARK)
    if not others:
        return message
    parts: list[Message] = [{"type": "text", "text": first}]
    for text in others:
        parts += [PLACE, {"type": "text", "text": text}]
    return {**message, "content": [part for part in parts if part.get("text", MARK)]}
