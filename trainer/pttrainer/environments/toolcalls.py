"""How models write that they call a tool, by family; read strictly, as whatever runs the model later will.

    hermes   <tool_call>{"name": "f", "arguments": {…}}</tool_call>, any number of them      Hermes, Qwen 2.5 and 3
    llama    {"name": "f", "parameters": {…}}, the whole turn, several parted by `;`;
             <|python_tag|> may stand before                                                  Llama 3.1 and later
    mistral  [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]                                Mistral

A turn that looks like a call and cannot be read is a call with an `error`: the model is told, and it counts as failed.
A turn that looks like none is an answer. Left out: gpt-oss' channels and Gemma's, which publishes no form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call, or what is wrong with it."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


def calls_of(form: str, text: str) -> list[Call]:
    """The calls that a turn makes, in order; none where it is an answer."""
    return FORMS[form](text)


def form_of(template: str | None) -> str:
    """The form that a chat template teaches; `hermes` where it teaches none."""
    text = template or ""
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<tool_call>" not in text and ("<|python_tag|>" in text or "ipython" in text):
        return "llama"
    return "hermes"


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _hermes(text: str) -> list[Call]:
    calls = []
    for part in _after_thinking(text).split(_OPEN)[1:]:
        body, closed, _ = part.partition(_CLOSE)
        calls.append(_read(body, "arguments") if closed else Call("", {}, f"{_OPEN} without {_CLOSE}"))
    return calls


def _llama(text: str) -> list[Call]:
    body = text.strip()
    is_tagged = body.startswith("<|python_tag|>")
    body = body.removeprefix("<|python_tag|>").strip()
    if not is_tagged and not re.match(r"\{\s*\"(name|type|function|parameters)\"", body):
        return []
    return [_checked(value, "parameters") for value in _documents(body)]


def _mistral(text: str) -> list[Call]:
    _, marked, body = text.partition("[TOOL_CALLS]")
    if not marked:
        return []
    try:
        found = json.loads(body)
    except ValueError as error:
        return [Call("", {}, f"not valid JSON: {error}")]
    return [_checked(value, "arguments") for value in (found if isinstance(found, list) else [found])]


FORMS: dict[str, Callable[[str], list[Call]]] = {"hermes": _hermes, "llama": _llama, "mistral": _mistral}
"""By the name in `spec.environment.toolFormat`."""


def _after_thinking(text: str) -> str:
    """A call that a model only thinks about is none."""
    return text.rpartition("</think>")[2]


def _documents(text: str) -> Iterator[Any]:
    """JSON objects parted by `;`."""
    decoder = json.JSONDecoder()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError as error:
            yield ValueError(f"not valid JSON: {error}")
            return
        yield value
        text = text[end:].lstrip().removeprefix(";").lstrip()


def _read(body: str, key: str) -> Call:
    try:
        return _checked(json.loads(body), key)
    except (ValueError, RecursionError) as error:
        return Call("", {}, f"not valid JSON: {error}")


def _checked(value: Any, key: str) -> Call:
    if isinstance(value, ValueError):
        return Call("", {}, str(value))
    accepted = f'accepted: {{"name": …, "{key}": {{…}}}}'
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", {}, f"no call; {accepted}")
    arguments = value.get(key, value.get("arguments", value.get("parameters", {})))
    if not isinstance(arguments, dict):
        return Call(value["name"], {}, f"{key} is a {type(arguments).__name__}; {accepted}")
    return Call(value["name"], arguments)
