"""Conversations of a row: `{role, content}` messages for chat templates, from the formats that files use.

Null values are dropped (columnar files write every key of every message), text in parts is joined, and the `{from,
value}` of older files becomes `{role, content}`. With images among them the parts stay: `{type: text, text}`, and
`{type: image, image}` with what the row says, or None. Audio and video are refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pttrainer.errors import DataError
from pttrainer.runtime.io import json_text

ROLES = ("system", "user", "assistant", "tool", "developer")
IMAGE_KEYS = ("image", "url", "path")
"""What parts of type image call their image."""
SPEAKERS = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
"""ShareGPT's `from`, as a role."""


def turns(value: Any, column: str, where: str) -> list[Mapping[str, Any]]:
    """Return the checked messages of a column; raise DataError. Cells of CSV hold JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parsed(value, f"{where}: column {column!r}")
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: column {column!r}: is {kind(value)}; accepted: a list of {{role, content}}")
    return [_message(message, f"{where}: column {column!r}, message {turn}") for turn, message in enumerate(value)]


def tools(value: Any, where: str) -> Sequence[Any] | None:
    """Return the tools that the assistant may call, if the row has any."""
    if isinstance(value, str) and value.strip():
        value = parsed(value, f"{where}: column 'tools'")
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        entry = "a list with other entries" if isinstance(value, list) else kind(value)
        raise DataError(f"{where}: column 'tools': is {entry}; accepted: a list of functions")
    return value


def kind(value: Any) -> str:
    """Return a description of the value's type."""
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        dict: "an object",
        str: "a string",
        bytes: "bytes",
    }
    return "an empty list" if value == [] else names.get(type(value), "a list")


def _message(raw: Any, here: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise DataError(f"{here}: accepted: {{role, content}} with text as content")
    message = {key: value for key, value in raw.items() if value is not None}
    if "role" not in message and "from" in message and "value" in message:
        message = {"role": SPEAKERS.get(str(message["from"]), message["from"]), "content": message["value"]}
    if isinstance(message.get("content"), list):
        message["content"] = _joined([_part(part, here) for part in message["content"]])
    calls = message.get("role") == "assistant" and bool(message.get("tool_calls"))
    if not isinstance(message.get("content"), str | list) and not (calls and "content" not in message):
        raise DataError(f"{here}: accepted: {{role, content}} with text as content")
    if calls and not _are_calls(message["tool_calls"]):
        raise DataError(f"{here}: tool_calls; accepted: a list of {{function: {{name, arguments}}}}")
    if message.get("role") not in ROLES:
        raise DataError(f"{here}: role {message.get('role')!r}; accepted: {', '.join(ROLES)}")
    return message


def _are_calls(value: Any) -> bool:
    calls = value if isinstance(value, list) else [None]
    functions = [call.get("function", call) if isinstance(call, dict) else None for call in calls]
    return all(isinstance(function, dict) and isinstance(function.get("name"), str) for function in functions)


def _joined(parts: list[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Return the parts, or their text if none is an image."""
    if any(part["type"] == "image" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _part(part: Any, here: str) -> Mapping[str, Any]:
    """Return a part in one form: `{type: text, text}` or `{type: image, image}`."""
    fields = {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
    form = fields.get("type", "text")
    text = part if isinstance(part, str) else fields.get("text")
    if isinstance(text, str) and form not in ("image", "image_url"):  # libraries have names of their own for text
        return {"type": "text", "text": text}
    if form == "image":
        encoded = fields.get("base64")
        inline = None if encoded is None else f"data:image/*;base64,{encoded}"
        return {"type": "image", "image": next((fields[key] for key in IMAGE_KEYS if key in fields), inline)}
    if form == "image_url" and "image_url" in fields:
        return {"type": "image", "image": fields["image_url"]}
    raise DataError(
        f"{here}: has a part of type {form!r}; accepted: text, image, image_url with what they are named by"
    )


def parsed(text: str, here: str) -> Any:
    """Return the value of a cell that holds JSON text; raise DataError."""
    try:
        return json_text.loads(text)
    except ValueError as error:
        raise DataError(f"{here}: {error}; accepted: a list, or its JSON text") from error
