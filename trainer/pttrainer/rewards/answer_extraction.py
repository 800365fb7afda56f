r"""Extract the answer that a text marks: `<answer>…</answer>`, `#### …`, `\boxed{…}`."""

import re
from collections.abc import Iterator
from typing import NamedTuple

MARKER = "####"
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_BOX = re.compile(r"\\boxed\s*\{")
_BETWEEN = re.compile(r"[$,;]|\\[()\[\]]")


class MarkedAnswer(NamedTuple):
    """is_closed: a tag ends the answer; after `####` it extends to the end of the text."""

    text: str
    is_closed: bool
    start: int


def marked_answer(text: str) -> MarkedAnswer | None:
    """Return the last answer in a tag or after `####`, whichever comes later, or None if there is none."""
    at = text.rfind(MARKER)
    tag = None
    for tag in _TAG.finditer(text):  # noqa: B007 - the last one
        pass
    if tag is not None and tag.start() > at:
        return MarkedAnswer(tag.group(1), True, tag.start())
    return None if at < 0 else MarkedAnswer(text[at + len(MARKER) :], False, at)


def final_answer(text: str) -> tuple[str, bool]:
    """Return the last marked answer, boxes included, and True; or all that follows the reasoning, and False.

    After `####` the answer is one line. Boxes separated only by `,` or `and` are one answer; any other later box
    replaces those before it.
    """
    text = text.rpartition("</think>")[2]
    if text.count("<answer>") > text.count("</answer>"):  # a stop string takes the tag with it
        text += "</answer>"
    marked, last_end = marked_answer(text), 0
    boxed: list[str] = []
    for start, content, end in _boxes(text):
        if _BETWEEN.sub(" ", text[last_end:start]).split() not in ([], ["and"], ["or"]):
            boxed = []
        if marked is None or start > marked.start:
            boxed.append(rf"\boxed{{{content}}}")
        last_end = end
    if boxed:
        return ", ".join(boxed), True
    if marked is None:
        return text, False
    return marked.text if marked.is_closed else _line(marked.text.strip()), True


def _line(text: str) -> str:
    """Return the first line; all of an environment or display that begins in it."""
    line = text.partition("\n")[0]
    return text if re.search(r"\\begin\b|\\\[\s*$|\$\$\s*$", line) else line


def _boxes(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield start, content and end of every outermost box that holds something."""
    end = 0
    for box in _BOX.finditer(text):
        if box.start() >= end:
            end = _closed(text, box.end())
            if content := text[box.end() : end].removesuffix("}").strip():
                yield box.start(), content, end


def _closed(text: str, at: int) -> int:
    """Return the index after the brace that closes the one opened before `at`, or the end of the text."""
    depth = 1
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at
