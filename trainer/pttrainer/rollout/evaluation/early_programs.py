"""The sampler's programs of an evaluation, compiled before it.

Its prompts are known, and with them its programs, but for the sizes that rows come to, which follow from where answers
end. What a program returns, as shapes with shardings, the next one takes. The evaluation calls the same jitted
functions, with which JAX keeps what is compiled; so it compiles what is not there yet, and raises a compiler's error.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import jax

from pttrainer.models import Params
from pttrainer.rollout.native.decoding_weights import Call


class EarlyPrograms:
    """Programs that are lowered and compiled as one function is, one after the other.

    foresee: gives jitted functions to a compiler. evaluating: held by an evaluation while it runs, and here while a
    program is compiled, so that no program is compiled twice. is_first: an evaluation that begins needs these at once,
    and what is not compiled then is left to it; the others are compiled after it.
    """

    def __init__(self, foresee: Callable[[Params, Call], None], evaluating: threading.Lock, *, is_first: bool) -> None:
        self._foresee, self._evaluating, self._is_first = foresee, evaluating, is_first
        self._params: Params = {}

    def lower(self, params: Params) -> Self:
        """Take weights, as shapes with shardings."""
        self._params = params
        return self

    def compile(self) -> None:
        """Compile the programs in the order in which they are needed."""
        with suppress(_EvaluationBeganError):
            self._foresee(self._params, self._compiled)

    def _compiled(self, function: Any, *arguments: Any) -> Any:
        """Compile a function; return its results, as shapes with shardings and layouts."""
        if not self._evaluating.acquire(blocking=not self._is_first):
            raise _EvaluationBeganError
        try:
            compiled = function.lower(*arguments).compile()
        finally:
            self._evaluating.release()
        return jax.tree.map(_placed, function.eval_shape(*arguments), compiled.output_formats)


class _EvaluationBeganError(Exception):
    """Programs that an evaluation begins with are left to it."""


def _placed(shape: Any, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where, weak_type=shape.weak_type)
