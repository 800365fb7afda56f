"""Parse tool calls in the formats of model families, as strictly as serving engines do.

hermes   <tool_call>{"name": "f", "arguments": {…}}</tool_call>, any number of them      Hermes, Qwen 2.5 and 3
    llama    {"name": "f", "parameters": {…}}, the whole turn, several separated by `;`;
             <|python_tag|> may precede it                                                   Llama 3.1 and later
    mistral  [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …], or
             [TOOL_CALLS]f[ARGS]{…}, any number of them                                      Mistral, Ministral 3
    harmony  <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>     gpt-oss
    gemma    [f(a=1), g()], the whole turn, or a line each in ```tool_code; or
             {"name": "f", "parameters": {…}}, the whole turn                                 Gemma 2 and 3
             <|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>, any number of them         Gemma 4

A turn that looks like a call but cannot be parsed is a call with an `error`: the model reads it, and it counts as
failed. Any other turn is an answer. `harmony` is OpenAI's published format; the recipient may precede the channel, as
gpt-oss' own chat template writes it. `gemma` is what Google's guide to function calling asks the model for, in Python
and in JSON form: its template teaches no format, so the job's system prompt has to; Gemma 4's template teaches its own.
Left out: the tokens of FunctionGemma, whose models the decoder does not support.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ptapi.spec import Environment as EnvironmentSpec


class Call(NamedTuple):
    """A call, or what is wrong with it."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


def parse_calls(form: str, text: str) -> list[Call]:
    """Return the calls of a turn, in order; none if it is an answer."""
    return PARSERS[form](text)


def chosen_format(spec: EnvironmentSpec, template: str | None) -> str:
    """Return the format in which an environment's calls are written: the job's, or what its chat template teaches."""
    return format_of(template) if spec.tool_format == "auto" else spec.tool_format


def format_of(template: str | None) -> str:
    """Return the format that a chat template teaches; `hermes` if it teaches none."""
    text = template or ""
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<|channel|>" in text and "<|message|>" in text:
        return "harmony"
    if "<tool_call>" not in text and ("<|python_tag|>" in text or "ipython" in text):
        return "llama"
    is_gemma = "<start_of_turn>" in text or "<|tool_call>" in text
    return "gemma" if is_gemma and "<tool_call>" not in text else "hermes"


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
    if body.lstrip()[:1] not in ("[", "{") and "[ARGS]" in body:
        return [_named(part) for part in body.split("[TOOL_CALLS]")]
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        return [Call("", {}, f"not valid JSON: {error}")]
    return [_checked(value, "arguments") for value in (document if isinstance(document, list) else [document])]


_ENDS = re.compile(r"<\|(?:end|call|return)\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def _harmony(text: str) -> list[Call]:
    """Parse messages of header and body; one whose header names a recipient is a call."""
    calls = []
    for message in _ENDS.split(text):
        header, has_body, body = message.partition("<|message|>")
        recipient = _RECIPIENT.search(header)
        if recipient is not None:
            calls.append(
                _addressed(recipient[1], body) if has_body else Call("", {}, "a recipient without <|message|>")
            )
    return calls


def _addressed(recipient: str, body: str) -> Call:
    space, _, name = recipient.partition(".")
    if space != "functions" or not name:
        return Call("", {}, f"recipient {recipient[:60]!r}; accepted: functions.NAME")
    try:
        return _checked({"name": name, "arguments": json.loads(body)}, "arguments")
    except (ValueError, RecursionError) as error:
        return Call(name, {}, f"not valid JSON: {error}")


def _named(part: str) -> Call:
    """Parse a name and arguments with a mark between them, and perhaps an id."""
    head, _, body = part.partition("[ARGS]")
    return _addressed(f"functions.{head.partition('[CALL_ID]')[0].strip()}", body)


_FENCE = re.compile(r"```(\w*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


_MARKED_CALL = re.compile(r"<\|tool_call>(?:\s*call:([^\s{<]+))?(.*?)(<tool_call\|>|\Z)", re.DOTALL)
_BARE_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:")
_QUOTE = '<|"|>'


def _gemma(text: str) -> list[Call]:
    if "<|tool_call>" in text:
        answer = text.rpartition("<channel|>")[2]  # a call inside the model's reasoning is not a call
        return [_marked(*match.groups(default="")) for match in _MARKED_CALL.finditer(answer)]
    fences = [match[2] for match in _FENCE.finditer(text) if match[1] == "tool_code"]
    if fences:
        return [call for code in fences for call in _python(code)]
    alone = _FENCE.fullmatch(text.strip())
    body = (alone[2] if alone is not None else text).strip()
    if re.match(r"\[\s*[A-Za-z_]\w*\(", body):
        return _python(body)
    if re.match(r"\[?\s*\{\s*\"(name|parameters)\"", body):
        return _mistral(f"[TOOL_CALLS]{body}")
    return []


def _marked(name: str, arguments: str, end: str) -> Call:
    """Parse a call of Gemma 4: its keys have no quotes, and those of its strings are a token."""
    if not end:
        return Call(name, {}, "<|tool_call> without <tool_call|>")
    parts = arguments.split(_QUOTE)
    if not name or len(parts) % 2 == 0:
        return Call(name, {}, f"no call; accepted: call:NAME{{key:value}}, strings between {_QUOTE}")
    written = (json.dumps(part) if n % 2 else _BARE_KEY.sub(r'\1"\2":', part) for n, part in enumerate(parts))
    return _addressed(f"functions.{name}", "".join(written))


def _python(code: str) -> list[Call]:
    """Parse calls with named arguments and literal values; nothing is evaluated."""
    try:
        lines = ast.parse(code.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [Call("", {}, f"not valid Python: {error}")]
    calls = []
    for line in lines:
        value = line.value if isinstance(line, ast.Expr | ast.Assign) else None
        calls += [_called(node) for node in (value.elts if isinstance(value, ast.List) else [value])]
    return calls


def _called(node: ast.expr | None) -> Call:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print" and node.args:
        node = node.args[0]  # models like to print what a function gives
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return Call("", {}, "no call; accepted: f(name=value)")
    if node.args:
        return Call(node.func.id, {}, "an argument without a name; accepted: f(name=value)")
    try:
        arguments = {str(named.arg): ast.literal_eval(named.value) for named in node.keywords}
        return Call(node.func.id, json.loads(json.dumps(arguments)))  # Python has literals that JSON has not: 1j, {1}
    except (ValueError, TypeError, RecursionError, MemoryError):
        return Call(node.func.id, {}, "an argument that is not a literal; accepted: numbers, strings, lists and dicts")


PARSERS: dict[str, Callable[[str], list[Call]]] = {
    "hermes": _hermes,
    "llama": _llama,
    "mistral": _mistral,
    "harmony": _harmony,
    "gemma": _gemma,
}
"""By the name in `spec.environment.toolFormat`."""


def _after_thinking(text: str) -> str:
    """Return the text after the model's reasoning: a call inside it is not a call."""
    return text.rpartition("</think>")[2]


def _documents(text: str) -> Iterator[Any]:
    """Yield JSON objects separated by `;`."""
    decoder = json.JSONDecoder()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as error:
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
