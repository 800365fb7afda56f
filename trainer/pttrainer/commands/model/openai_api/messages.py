"""Messages of OpenAI's API as a model's chat template takes them: text, calls of tools and their results, images.

Templates differ in what they can write. Where one writes no calls, or takes no results, they become text in the form
that the model's family has for them, as in rollouts.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from pttrainer.commands.model.openai_api.errors import RequestError
from pttrainer.data.sources.images import decoding, references
from pttrainer.data.sources.images.decoding import CheckedImage
from pttrainer.data.sources.images.in_messages import PLACE
from pttrainer.data.sources.images.references import ImageReference, Origin
from pttrainer.data.tokenization.chat_template import Chat, as_user_message
from pttrainer.environments import tool_call_parsing, tool_call_writing
from pttrainer.environments.tool_call_parsing import Call
from pttrainer.errors import DataError, TrainerError

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
PART = 'accepted: {"type": "text", "text": ...}'
IMAGE_PART = ', or in messages of users {"type": "image_url", "image_url": {"url": ...}}'
CALL: Message = {"id": "abcdefghi", "type": "function", "function": {"name": "call", "arguments": {"value": "probe"}}}
RESULT: Message = {"role": "tool", "name": "call", "tool_call_id": "abcdefghi", "content": "probe"}


class ImageAccess(NamedTuple):
    """Where images of requests may lie besides `data:` URLs. directory: of file:// URLs; https: the web."""

    directory: Path | None = None
    https: bool = False


class Conversation(NamedTuple):
    """Messages for the chat template, and the images that their parts stand for."""

    messages: list[Message]
    images: tuple[CheckedImage, ...]


def conversation(messages: Sequence[Mapping[str, Any]], access: ImageAccess) -> Conversation:
    """Return the messages of a request. Raises RequestError."""
    images: list[ImageReference] = []
    names: dict[str, str] = {}
    read = [_message(message, f"messages.{i}", names, access, images) for i, message in enumerate(messages)]
    try:
        return Conversation(read, decoding.checked(images))
    except TrainerError as error:
        raise RequestError("messages", None, str(error)) from error


def for_template(messages: Sequence[Message], chat: Chat) -> list[Message]:
    """Return the messages with calls and results of tools as the model's template can write them."""
    form = tool_call_parsing.format_of(chat.source)
    plain = [
        {**message, "content": chat.without_specials(message["content"])} if message["role"] == "tool" else message
        for message in messages
    ]
    if any("tool_calls" in message for message in plain) and not _writes_calls(chat):
        plain = [_with_calls_as_text(message, form) for message in plain]
    if any(message["role"] == "tool" for message in plain) and not _takes_results(chat):
        plain = _with_results_of_users(plain)
    return plain


def _message(
    message: Mapping[str, Any], where: str, names: dict[str, str], access: ImageAccess, images: list[ImageReference]
) -> Message:
    """Return a message; add its images, and the names of its calls. Raises RequestError."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise RequestError(f"{where}.role", role, f"accepted: {', '.join(ROLES)}")
    calls = message.get("tool_calls") if role == "assistant" else None
    if content is None and calls:
        content = ""
    if isinstance(content, list):
        content = _joined([_part(part, f"{where}.content.{i}", role, access, images) for i, part in enumerate(content)])
    if not isinstance(content, str | list):
        raise RequestError(f"{where}.content", content, "accepted: text, or a list of parts of the type text")
    read: Message = {"role": "system" if role == "developer" else role, "content": content}
    if calls:
        read["tool_calls"] = _calls(calls, f"{where}.tool_calls", names)
    if role == "tool":
        read |= _result_of(message, where, names)
    return read


def _joined(parts: list[Message]) -> str | list[Message]:
    """Return the parts, or their text if none is an image: some templates take text alone."""
    return parts if PLACE in parts else "".join(part["text"] for part in parts)


def _part(part: Any, where: str, role: str, access: ImageAccess, images: list[ImageReference]) -> Message:
    kind = part.get("type") if isinstance(part, dict) else part
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    accepted = PART + IMAGE_PART
    if kind != "image_url" or role != "user":
        raise RequestError(f"{where}.type", kind, accepted)
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    if not isinstance(url, str):
        raise RequestError(f"{where}.image_url", part.get("image_url"), accepted)
    images.append(_image(url, where, access))
    return dict(PLACE)


def _image(url: str, where: str, access: ImageAccess) -> ImageReference:
    scheme = url.partition(":")[0]
    places = ["data: URLs", *["https://"] * access.https]
    places += [] if access.directory is None else [f"file:// in {access.directory}"]
    if scheme == "file":
        path = Path(unquote(urlparse(url).path)).resolve()
        if access.directory is not None and path.is_relative_to(access.directory.resolve()):
            return ImageReference(where, uri=f"file://{path}")
    elif scheme == "data" or (scheme == "https" and access.https):
        try:
            return references.reference({"url": url}, where, Origin("file:///", https=True))
        except DataError as error:
            raise RequestError(f"{where}.image_url", None, str(error)) from error
    hint = "; hint: serve with --image-files DIR" if scheme == "file" else ""
    hint = "; hint: serve with --https-images" if scheme == "https" else hint
    raise RequestError(f"{where}.image_url", url, f"accepted: {', '.join(places)}{hint}")


def _calls(calls: Any, where: str, names: dict[str, str]) -> list[Message]:
    """Return an assistant's calls as templates take them: with arguments as values. Raises RequestError."""
    if not isinstance(calls, list):
        raise RequestError(where, calls, "accepted: a list of calls")
    read = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{where}.{i}", call, 'accepted: {"id", "type": "function", "function": {"name", ...}}')
        names[str(call.get("id"))] = function["name"]
        named = {"name": function["name"], "arguments": _arguments(function.get("arguments"), f"{where}.{i}")}
        read.append({"id": call.get("id"), "type": "function", "function": named})
    return read


def _arguments(text: Any, where: str) -> Any:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, TypeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"{where}.function.arguments", text, "accepted: the text of a JSON object")
    return arguments


def _result_of(message: Mapping[str, Any], where: str, names: Mapping[str, str]) -> Message:
    """Return what names the call that a result is of. Raises RequestError."""
    call = str(message.get("tool_call_id"))
    if call not in names:
        accepted = f"the id of a call before it{': ' if names else ''}{', '.join(names)}"
        raise RequestError(f"{where}.tool_call_id", call, f"accepted: {accepted}")
    return {"tool_call_id": call, "name": names[call]}


def _writes_calls(chat: Chat) -> bool:
    """Return True if the template writes the calls of an assistant's turn."""
    return _renders(chat, {"role": "assistant", "content": "", "tool_calls": [CALL]})


def _takes_results(chat: Chat) -> bool:
    """Return True if the template writes a message with the role `tool`."""
    calling = {**CALL, "function": {"name": "call", "arguments": {}}}
    return _renders(chat, {"role": "assistant", "content": "call", "tool_calls": [calling]}, RESULT)


def _renders(chat: Chat, *messages: Message) -> bool:
    try:
        return "probe" in chat.render([{"role": "user", "content": "?"}, *messages], generate=False)
    except DataError:
        return False


def _with_calls_as_text(message: Message, form: str) -> Message:
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [Call(function["name"], function["arguments"]) for function in functions]
    text = "\n".join(part for part in (message["content"], tool_call_writing.written(form, calls)) if part)
    return {"role": "assistant", "content": text}


def _with_results_of_users(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which those of a user carry the results, all that follow each other in one."""
    changed: list[Message] = []
    results: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(message)
            continue
        changed += [dict(as_user_message(results))] * bool(results)
        results = []
        changed.append(message)
    return changed + [dict(as_user_message(results))] * bool(results)
