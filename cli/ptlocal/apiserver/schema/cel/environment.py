"""CEL by Google's evaluator, set up as Kubernetes does it: source to a program, and what its errors say.

Variables have no declared type: a rule that misuses a literal or a function is refused when its definition is created,
one that misuses a field fails when it runs. Declared ones would refuse what Kubernetes accepts, because the evaluator's
checker compares no integer with a double.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cel_expr_python import cel

from ptlocal.apiserver.schema.cel import functions

_LIBRARIES = "extensions: [{name: optional}, {name: strings}, {name: math}, {name: sets}]"
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
_WORDS = (
    (re.compile(r'Key not found in map : "(.*)"'), r"no such key: \1"),
    (re.compile(r"Index error: index=(-?\d+) size=\d+"), r"index out of bounds: \1"),
    (re.compile(r"^divide by zero"), "division by zero"),
    (re.compile(r"^No matching overloads found"), "no such overload"),
    (re.compile(r"^Iteration budget exceeded"), "comprehensions of more than 10,000 steps are not evaluated here"),
)


class CelError(Exception):
    """A rule that cannot be compiled, or that failed while it ran."""


@dataclass(frozen=True)
class Program:
    """A compiled expression."""

    expression: Any
    reads_old: bool
    """Whether it is a transition rule: one that reads oldSelf."""

    def run(self, variables: Any) -> Any:
        """Return its value. Make `variables` with `activation`, once for all the rules of an object."""
        try:
            result = self.expression.eval(variables)
            value = result.plain_value()
        except RuntimeError as error:
            raise CelError(_words(error)) from None
        except TypeError:
            raise CelError("the result is an optional, not a value") from None
        if result.type() == cel.Type.ERROR:
            raise CelError(_words(value))
        return value

    @property
    def return_type(self) -> str:
        """Return the type as CEL names it; DYN where only running it tells."""
        return str(self.expression.return_type().name())


@lru_cache(maxsize=4096)
def program(source: str) -> Program:
    """Return the compiled program of an expression; raise CelError if it does not compile."""
    expression = _compiled(source, "self", "oldSelf")
    return Program(expression, reads_old="oldSelf" in source and not _compiles(source, "self"))


def _compiled(source: str, *variables: str) -> Any:
    try:
        return _environment(*variables).compile(source)
    except RuntimeError as error:
        raise CelError(_words(error)) from None


def _compiles(source: str, *variables: str) -> bool:
    try:
        _compiled(source, *variables)
    except CelError:
        return False
    return True


def activation(variables: Mapping[str, Any]) -> Any:
    """Bind variables for programs to run on: plain values of JSON, and protobuf's times."""
    return _environment("self", "oldSelf").Activation(dict(variables))


@lru_cache
def _environment(*names: str) -> Any:
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_LIBRARIES),
        variables=dict.fromkeys(names, cel.Type.DYN),
        extensions=[functions.extension()],
    )


def _words(error: object) -> str:
    """Return Kubernetes' own words where programs may look for them, without status codes of C++."""
    text = _STATUS.sub("", str(error))
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text
