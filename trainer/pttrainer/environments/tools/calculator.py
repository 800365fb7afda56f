"""Arithmetic: + - * / // % **, brackets, abs, min, max, round, sqrt; exact decimals and fractions where possible.

Python's own parser reads the expression, and only numbers and these operators are evaluated: no names, no attributes.
Sizes are bounded, so a call takes microseconds whatever the model writes.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from pttrainer.environments.tool import Tool, ToolError, schema

MAX_CHARS = 200
MAX_EXPONENT = 64
_MAX_VALUE = Fraction(10) ** 60
_MAX_DENOMINATOR = 10**400
"""The largest denominator: small numbers cost as much as large ones, and repeated powers of them grow without end."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _root(value: Fraction) -> Fraction:
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else Fraction(math.sqrt(value))


_CALLS: dict[str, Callable[..., Any]] = {"abs": abs, "min": min, "max": max, "round": round, "sqrt": _root}


def call(arguments: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return the value of `arguments["expression"]`; raise ToolError."""
    expression = arguments["expression"]
    if len(expression) > MAX_CHARS:
        raise ToolError(f"the expression has {len(expression)} characters; accepted: at most {MAX_CHARS}")
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/"), mode="eval")
        return format_number(_value(tree.body))
    except ToolError:
        raise
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        raise ToolError(f"cannot evaluate {expression[:60]!r}; accepted: numbers and + - * / ** ( )") from None


def format_number(value: Fraction) -> str:
    """Format a whole number as such, a fraction as a decimal with at most ten significant digits."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _value(node: ast.expr) -> Fraction:
    value = _unbounded(node)
    if abs(value) > _MAX_VALUE:
        raise ToolError("the number is too large")
    if value.denominator > _MAX_DENOMINATOR:
        raise ToolError("the number is too small")
    return value


def _unbounded(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return Fraction(_BINARY[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS:
            return Fraction(_CALLS[name](*[_value(argument) for argument in args]))
    raise ValueError


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > MAX_EXPONENT:
        raise ToolError(f"the exponent is too large; accepted: up to {MAX_EXPONENT}")
    if exponent.denominator == 1:
        return Fraction(base**exponent.numerator)
    power = float(base) ** float(exponent)
    if isinstance(power, complex):
        raise ValueError
    return Fraction(power)


TOOL = Tool(
    schema(
        "calculator",
        "Evaluate an arithmetic expression.",
        {"expression": {"type": "string", "description": "For example (12 + 3) * 4 / 5."}},
    ),
    call,
)
