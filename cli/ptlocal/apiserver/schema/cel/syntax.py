"""CEL source to a syntax tree: a regular-expression lexer and a recursive-descent parser.

Nodes are plain tuples whose first element names them:
("const", value) ("name", text) ("select", of, field, is_optional) ("index", of, key) ("call", name, receiver, args)
("list", items) ("map", entries) ("has", of, field) ("macro", name, range, variable, bodies)
("?:", condition, then, else) ("&&", left, right) ("||", left, right)
"""

from __future__ import annotations

import re
from typing import Any

Node = tuple[Any, ...]


class CelError(Exception):
    """A rule that cannot be parsed or compiled, or that failed while it ran."""


_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<int>0[xX][0-9a-fA-F]+[uU]?|\d+[uU]?)
    |(?P<string>[bBrR]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<op>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MACROS = {"all": 2, "exists": 2, "exists_one": 2, "existsOne": 2, "filter": 2, "map": 3}
_RELATIONS = ("<", "<=", ">", ">=", "==", "!=", "in")


def parse(source: str) -> Node:
    parser = _Parser(source)
    node = parser.expression()
    parser.expect_end()
    return node


def _tokens(source: str) -> list[tuple[str, str, int]]:
    found, position = [], 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if not match or match.lastgroup is None:
            raise CelError(f"syntax error at {position}: token recognition error at {source[position]!r}")
        if match.lastgroup != "space":
            found.append((match.lastgroup, match.group(), position))
        position = match.end()
    return [*found, ("end", "", len(source))]


class _Parser:
    def __init__(self, source: str) -> None:
        self._tokens = _tokens(source)
        self._at = 0

    def _next(self) -> tuple[str, str, int]:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _take(self, *texts: str) -> str:
        """The next token's text if it is one of these, else ""."""
        kind, text, _ = self._tokens[self._at]
        if kind in ("op", "name") and text in texts:
            self._at += 1
            return text
        return ""

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(f"expecting {text!r}")

    def _unexpected(self, wanted: str) -> CelError:
        _, text, position = self._tokens[self._at]
        seen = repr(text) if text else "<EOF>"
        return CelError(f"syntax error at {position}: unexpected {seen}, {wanted}")

    def expect_end(self) -> None:
        if self._tokens[self._at][0] != "end":
            raise self._unexpected("expecting <EOF>")

    def expression(self) -> Node:
        condition = self._or()
        if self._take("?"):
            then = self._or()
            self._expect(":")
            condition = ("?:", condition, then, self.expression())
        return condition

    def _or(self) -> Node:
        node = self._and()
        while self._take("||"):
            node = ("||", node, self._and())
        return node

    def _and(self) -> Node:
        node = self._relation()
        while self._take("&&"):
            node = ("&&", node, self._relation())
        return node

    def _relation(self) -> Node:
        node = self._sum()
        while operator := self._take(*_RELATIONS):
            node = ("call", f"_{operator}_", None, [node, self._sum()])
        return node

    def _sum(self) -> Node:
        node = self._product()
        while operator := self._take("+", "-"):
            node = ("call", f"_{operator}_", None, [node, self._product()])
        return node

    def _product(self) -> Node:
        node = self._unary()
        while operator := self._take("*", "/", "%"):
            node = ("call", f"_{operator}_", None, [node, self._unary()])
        return node

    def _unary(self) -> Node:
        if self._take("!"):
            return ("call", "!_", None, [self._unary()])
        if self._take("-"):
            node = self._unary()
            if node[0] == "const" and isinstance(node[1], int | float) and not isinstance(node[1], bool):
                return ("const", -node[1])
            return ("call", "-_", None, [node])
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if selector := self._take(".", ".?"):
                kind, name, _ = self._next()
                if kind != "name":
                    self._at -= 1
                    raise self._unexpected("expecting a field or function name")
                node = self._call(name, node) if self._take("(") else ("select", node, name, selector == ".?")
            elif bracket := self._take("[", "[?"):
                node = ("index", node, self.expression(), bracket == "[?")
                self._expect("]")
            else:
                return node

    def _call(self, name: str, receiver: Node | None) -> Node:
        args = self._until(")")
        if receiver is not None and name in _MACROS and 2 <= len(args) <= _MACROS[name]:
            if args[0][0] != "name":
                raise CelError(f"{name}: the first argument must be a variable's name")
            return ("macro", name, receiver, args[0][1], args[1:])
        if receiver is None and name == "has":
            if len(args) != 1 or args[0][0] != "select":
                raise CelError("has() takes one field selection, as in has(self.name)")
            return ("has", args[0][1], args[0][2])
        if (
            receiver is not None
            and receiver[0] == "name"
            and receiver[1] in ("math", "sets", "strings", "base64", "optional", "cidr", "ip")
        ):
            return ("call", f"{receiver[1]}.{name}", None, args)
        return ("call", name, receiver, args)

    def _until(self, end: str) -> list[Node]:
        items: list[Node] = []
        while not self._take(end):
            items.append(self.expression())
            if not self._take(","):
                self._expect(end)
                break
        return items

    def _primary(self) -> Node:
        kind, text, _ = self._tokens[self._at]
        if kind == "int":
            self._at += 1
            return ("const", int(text.rstrip("uU"), 0 if text[:2].lower() == "0x" else 10))
        if kind == "float":
            self._at += 1
            return ("const", float(text))
        if kind == "string":
            self._at += 1
            return ("const", _literal(text))
        if self._take("("):
            node = self.expression()
            self._expect(")")
            return node
        if self._take("["):
            return ("list", self._until("]"))
        if self._take("{"):
            return ("map", self._entries())
        if kind == "name":
            self._at += 1
            constants = {"true": True, "false": False, "null": None}
            if text in constants:
                return ("const", constants[text])
            return self._call(text, None) if self._take("(") else ("name", text)
        raise self._unexpected("expecting an expression")

    def _entries(self) -> list[tuple[Node, Node]]:
        entries = []
        while not self._take("}"):
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
            if not self._take(","):
                self._expect("}")
                break
        return entries


def _literal(text: str) -> str | bytes:
    prefix = re.match(r"[bBrR]*", text)
    flags = prefix.group().lower() if prefix else ""
    body = text[len(flags) :]
    body = body[3:-3] if body[:3] in ('"""', "'''") else body[1:-1]
    if "r" not in flags:
        body = re.sub(
            r"\\(x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)",
            _unescape,
            body,
            flags=re.DOTALL,
        )
    return body.encode() if "b" in flags else body


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "xXuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) == 3:
        return chr(int(code, 8))
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code in "\\?\"'`":
        return code
    raise CelError(f"unknown escape \\{code}")
