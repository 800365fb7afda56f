"""Write tool calls in the formats of model families (`tool_call_parsing`): where a chat template does not, and begun.

A turn that has to be a call is sampled from its beginning on, so it cannot become anything else.
"""

import json
from collections.abc import Sequence

from pttrainer.environments.tool_call_parsing import Call


def beginning(form: str, template: str | None, name: str | None) -> str:
    """Return what a turn that calls a function begins with, up to its arguments; name: None for any function."""
    match form:
        case "llama":
            return '{"name": "' if name is None else f'{{"name": "{name}", "parameters": '
        case "mistral" if "[ARGS]" in (template or ""):
            return "[TOOL_CALLS]" if name is None else f"[TOOL_CALLS]{name}[ARGS]"
        case "mistral":
            return '[TOOL_CALLS] [{"name": "' + ("" if name is None else f'{name}", "arguments": ')
        case "harmony":
            return "<|channel|>commentary to=functions." + (
                "" if name is None else f"{name} <|constrain|>json<|message|>"
            )
        case "gemma" if "<|tool_call>" in (template or ""):
            return "<|tool_call>call:" + ("" if name is None else f"{name}{{")
        case "gemma":
            return "[" if name is None else f"[{name}("
    return '<tool_call>\n{"name": "' + ("" if name is None else f'{name}", "arguments": ')


def written(form: str, calls: Sequence[Call]) -> str:
    """Return calls as text: Python for Gemma 2 and 3, else Hermes', whose templates are those that write no calls."""
    if form == "gemma":
        return "[" + ", ".join(_python(call) for call in calls) + "]"
    documents = (json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in calls)
    return "\n".join(f"<tool_call>\n{document}\n</tool_call>" for document in documents)


def _python(call: Call) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
