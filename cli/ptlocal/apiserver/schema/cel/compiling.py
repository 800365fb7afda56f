"""A syntax tree to one Python closure: `compile_text("self.a > 1")` gives a function of the variables.

Errors are exceptions, and `&&`, `||`, `all` and `exists` absorb them where the other side decides, in either order, as
the language has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ptlocal.apiserver.schema.cel import library
from ptlocal.apiserver.schema.cel.syntax import CelError, Node, parse

Variables = dict[str, Any]
Code = Callable[[Variables], Any]
_TYPE_NAMES = ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type")


@dataclass(frozen=True)
class Program:
    run: Code
    names: frozenset[str]
    """The free variables it reads."""


def compile_text(source: str, variables: tuple[str, ...]) -> Program:
    compiler = _Compiler(variables)
    try:
        code = compiler.code(parse(source))
    except RecursionError:
        raise CelError("the expression is nested too deeply") from None
    return Program(code, frozenset(compiler.used))


class _Compiler:
    def __init__(self, variables: tuple[str, ...]) -> None:
        self._scope = list(variables)
        self.used: set[str] = set()

    def code(self, node: Node) -> Code:
        method: Callable[..., Code] = getattr(self, _METHODS[node[0]])
        return method(*node[1:])

    def _const(self, value: Any) -> Code:
        return lambda variables: value

    def _name(self, name: str) -> Code:
        if name in self._scope:
            self.used.add(name)
            return lambda variables: variables[name]
        if name in _TYPE_NAMES:
            value = library.TypeName(name)
            return lambda variables: value
        raise CelError(f"undeclared reference to '{name}'")

    def _select(self, of: Node, field: str, is_optional: bool) -> Code:
        inner, key = self.code(of), library.unescaped(field)
        if is_optional:
            return lambda variables: library.select_optional(inner(variables), key)
        return lambda variables: library.select(inner(variables), key)

    def _has(self, of: Node, field: str) -> Code:
        inner, key = self.code(of), library.unescaped(field)
        return lambda variables: library.has(inner(variables), key)

    def _index(self, of: Node, key: Node, is_optional: bool) -> Code:
        inner, inner_key = self.code(of), self.code(key)
        if is_optional:
            return lambda variables: library.select_optional(inner(variables), inner_key(variables))
        return lambda variables: library.index(inner(variables), inner_key(variables))

    def _call(self, name: str, receiver: Node | None, args: list[Node]) -> Code:
        function = (library.FUNCTIONS if receiver is None else library.METHODS).get(name)
        if function is None:
            raise CelError(f"undeclared reference to '{name}'")
        parts = [self.code(arg) for arg in ([] if receiver is None else [receiver]) + list(args)]
        if len(parts) == 1:
            only = parts[0]
            return lambda variables: library.call(function, name, only(variables))
        if len(parts) == 2:
            left, right = parts
            return lambda variables: library.call(function, name, left(variables), right(variables))
        return lambda variables: library.call(function, name, *(part(variables) for part in parts))

    def _list(self, items: list[Node]) -> Code:
        if all(item[0] == "const" for item in items):
            constants = [item[1] for item in items]
            return lambda variables: constants
        parts = [self.code(item) for item in items]
        return lambda variables: [part(variables) for part in parts]

    def _map(self, entries: list[tuple[Node, Node]]) -> Code:
        parts = [(self.code(key), self.code(value)) for key, value in entries]
        return lambda variables: {key(variables): value(variables) for key, value in parts}

    def _condition(self, condition: Node, then: Node, otherwise: Node) -> Code:
        test, yes, no = self.code(condition), self.code(then), self.code(otherwise)
        return lambda variables: yes(variables) if _truth(test(variables)) else no(variables)

    def _and(self, left: Node, right: Node) -> Code:
        first, second = self.code(left), self.code(right)

        def run(variables: Variables) -> bool:
            try:
                if not _truth(first(variables)):
                    return False
            except CelError:
                if not _truth(second(variables)):
                    return False
                raise
            return _truth(second(variables))

        return run

    def _or(self, left: Node, right: Node) -> Code:
        first, second = self.code(left), self.code(right)

        def run(variables: Variables) -> bool:
            try:
                if _truth(first(variables)):
                    return True
            except CelError:
                if _truth(second(variables)):
                    return True
                raise
            return _truth(second(variables))

        return run

    def _macro(self, name: str, over: Node, variable: str, bodies: list[Node]) -> Code:
        source = self.code(over)
        was_used = variable in self.used
        self._scope.append(variable)
        codes = [self.code(body) for body in bodies]
        self._scope.pop()
        if not was_used:
            self.used.discard(variable)
        return _MACRO_CODE[name](source, variable, codes)


_METHODS = {
    "const": "_const",
    "name": "_name",
    "select": "_select",
    "has": "_has",
    "index": "_index",
    "call": "_call",
    "list": "_list",
    "map": "_map",
    "?:": "_condition",
    "&&": "_and",
    "||": "_or",
    "macro": "_macro",
}


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise CelError("no such overload: a condition must be a bool")


def _elements(source: Any) -> list[Any]:
    if isinstance(source, list):
        return source
    if isinstance(source, dict):
        return list(source)
    raise CelError("no such overload: a comprehension needs a list or a map")


def _any_of(source: Code, variable: str, codes: list[Code], wanted: bool) -> Code:
    """`exists` looks for a true one, `all` for a false one; finding one outweighs errors on the others."""
    (predicate,) = codes

    def run(variables: Variables) -> bool:
        error: CelError | None = None
        inner = dict(variables)
        for item in _elements(source(variables)):
            inner[variable] = item
            try:
                if _truth(predicate(inner)) is wanted:
                    return wanted
            except CelError as seen:
                error = seen
        if error is not None:
            raise error
        return not wanted

    return run


def _exists_one(source: Code, variable: str, codes: list[Code]) -> Code:
    (predicate,) = codes
    return lambda variables: (
        sum(_truth(predicate({**variables, variable: item})) for item in _elements(source(variables))) == 1
    )


def _filter(source: Code, variable: str, codes: list[Code]) -> Code:
    (predicate,) = codes
    return lambda variables: [
        item for item in _elements(source(variables)) if _truth(predicate({**variables, variable: item}))
    ]


def _map_macro(source: Code, variable: str, codes: list[Code]) -> Code:
    *conditions, transform = codes

    def run(variables: Variables) -> list[Any]:
        found = []
        for item in _elements(source(variables)):
            inner = {**variables, variable: item}
            if all(_truth(condition(inner)) for condition in conditions):
                found.append(transform(inner))
        return found

    return run


_MACRO_CODE: dict[str, Callable[[Code, str, list[Code]], Code]] = {
    "all": lambda source, variable, codes: _any_of(source, variable, codes, wanted=False),
    "exists": lambda source, variable, codes: _any_of(source, variable, codes, wanted=True),
    "exists_one": _exists_one,
    "existsOne": _exists_one,
    "filter": _filter,
    "map": _map_macro,
}
