"""Jinja for chat templates, which are a checkpoint's code: immutable, limited in time and in the size of its numbers.

Loops and macros are where a template may go on for ever; each turn of them checks its thread's processor time.
"""

import datetime
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

LIMIT_S = 10.0
"""Processor time of one rendering; templates in use need milliseconds."""
LARGEST = 2**20
"""Bits of a number, or characters of a text, that a multiplication may give."""
BEGIN, END = "\ufdd0", "\ufdd1"
"""Around the text that a template marks as the assistant's. Unicode reserves them for such use: no text holds them."""
_rendering = threading.local()


class TimeLimitError(Exception):
    """A rendering takes longer than `LIMIT_S`."""


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if _size(operator, left, right) > LARGEST:
            raise jinja2.TemplateError(f"{operator} gives something larger than {LARGEST} bits or characters")
        return super().call_binop(context, operator, left, right)


def _size(operator: str, left: Any, right: Any) -> int:
    """Return the size of a product or power, as far as it matters."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    text, times = (right, left) if isinstance(left, int) else (left, right)
    return len(text) * times if isinstance(times, int) and hasattr(text, "__len__") else 0


class _Marks(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text; `check` ends what takes too long."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def check(self) -> jinja2.nodes.Node:
        """Return the statement that checks the time."""
        return jinja2.nodes.ExprStmt(self.call_method("_check_time"))

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{BEGIN}{caller()}{END}"

    def _check_time(self) -> None:
        if time.thread_time() > _rendering.until:
            raise TimeLimitError


def compiled(source: str) -> jinja2.Template:
    """Return a template whose loops and macros check the time; raise jinja2.TemplateError."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Marks])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    tree = environment.parse(source)
    marks = environment.extensions[_Marks.identifier]
    assert isinstance(marks, _Marks)
    node: Any  # of these kinds, each of which has a body
    for node in tree.find_all((jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)):
        node.body.insert(0, marks.check().set_lineno(node.lineno))
    return environment.from_string(tree)


def render(template: jinja2.Template, **variables: Any) -> str:
    """Return the template's text; raise TimeLimitError, or whatever the template raises."""
    _rendering.until = time.thread_time() + LIMIT_S
    return template.render(**variables)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON: Jinja's own filter escapes HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
