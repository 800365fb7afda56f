"""What trainer and samplers send each other: a JSON head and arrays, in one body of HTTP.

    4 bytes MAGIC | 4 bytes length of the head | head: JSON | the arrays' bytes, one after the other

The head's `arrays` lists number format and shape of each. Nothing is unpickled: a body can hold numbers and text only.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pttrainer.batch import Images
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling

MAGIC = b"PTS1"
_LENGTHS = struct.Struct("!4sI")


class Message(NamedTuple):
    """A head and its arrays."""

    head: Mapping[str, Any]
    arrays: Sequence[np.ndarray]


class MessageError(ValueError):
    """A body that is no message, or one that breaks off."""


def encode(head: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> list[bytes | memoryview]:
    """Return the parts of a body; the arrays are not copied."""
    whole = [np.ascontiguousarray(x) for x in arrays]
    forms = [[x.dtype.name, list(np.shape(given))] for x, given in zip(whole, arrays, strict=True)]
    text = json.dumps({**head, "arrays": forms}).encode()
    parts: list[bytes | memoryview] = [_LENGTHS.pack(MAGIC, len(text)), text]
    return parts + [x.reshape(-1).view(np.uint8).data for x in whole if x.size]


def size(parts: Sequence[bytes | memoryview]) -> int:
    """Return the bytes of a body."""
    return sum(len(part) for part in parts)


def decode(body: bytes) -> Message:
    """Return the message in a body; its arrays are views. Raises MessageError."""
    try:
        magic, length = _LENGTHS.unpack_from(body)
        if magic != MAGIC:
            raise MessageError("is not a message of a sampler or its trainer")
        at = _LENGTHS.size + length
        head = json.loads(body[_LENGTHS.size : at])
        arrays = []
        for name, shape in head.pop("arrays"):
            dtype = jnp.dtype(name)
            count = math.prod(shape)
            arrays.append(np.frombuffer(body, dtype, count, at).reshape(shape))
            at += count * dtype.itemsize
    except (struct.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise error if isinstance(error, MessageError) else MessageError(f"is damaged: {error}") from error
    if at != len(body):
        raise MessageError(f"has {len(body)} bytes, and its arrays end at {at}")
    return Message(head, arrays)


class Request(NamedTuple):
    """A call of `Engine.generate`, with the name of the weights."""

    version: str
    prompts: Sequence[Prompt]
    samples: int
    sampling: Sampling
    draw: Draw


def encode_request(request: Request) -> list[bytes | memoryview]:
    """Return the body of a request. Prompts that share their pixels share them here, too."""
    prompts = request.prompts
    tokens = np.array([token for prompt in prompts for token in prompt.tokens], np.int32)
    lengths_P = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    numbers_P = np.array([prompt.number for prompt in prompts], np.int64)
    sets: dict[int, np.ndarray] = {}
    images: list[int | None] = []
    slots = []
    for prompt in prompts:
        if prompt.images is not None:
            sets.setdefault(id(prompt.images.pixels_BMSSC), np.asarray(prompt.images.pixels_BMSSC))
            images.append(list(sets).index(id(prompt.images.pixels_BMSSC)))
            slots.append(np.asarray(prompt.images.slots_BT))
        else:
            images.append(None)
    sampling = request.sampling
    head = {
        "version": request.version,
        "samples": request.samples,
        "sampling": {name: getattr(sampling, name) for name in sampling.__dataclass_fields__},
        "draw": [request.draw.seed, request.draw.step],
        "images": images,
    }
    return encode(head, [tokens, lengths_P, numbers_P, *slots, *sets.values()])


def decode_request(message: Message) -> Request:
    """Return the request in a message. Raises MessageError."""
    head = message.head
    try:
        tokens, lengths_P, numbers_P, *rest = message.arrays
        chosen = [number for number in head["images"] if number is not None]
        slots, pixels = iter(rest[: len(chosen)]), rest[len(chosen) :]
        ends = np.cumsum(lengths_P)
        prompts = [
            Prompt(
                tokens[end - length : end].tolist(),
                int(number),
                None if of is None else Images(pixels[of], next(slots)),
            )
            for end, length, number, of in zip(ends, lengths_P, numbers_P, head["images"], strict=True)
        ]
        sampling = Sampling(**{**head["sampling"], "stop": tuple(head["sampling"]["stop"])})
        return Request(head["version"], prompts, head["samples"], sampling, Draw(*head["draw"]))
    except (ValueError, TypeError, KeyError, IndexError, StopIteration) as error:
        raise MessageError(f"is no request: {error}") from error


def encode_completions(completions: Completions) -> list[bytes | memoryview]:
    """Return the body of a reply."""
    routes, prompt_routes = completions.routes or [], completions.prompt_routes or []
    head = {"facts": dict(completions.facts), "routes": len(routes), "prompt_routes": len(prompt_routes)}
    return encode(head, [*completions[:4], *routes, *prompt_routes])


def decode_completions(message: Message) -> Completions:
    """Return the completions in a reply. Raises MessageError."""
    try:
        tokens_NT, logps_NT, lengths_N, ended_N, *routes = message.arrays
        count = message.head["routes"]
        return Completions(
            tokens_NT,
            logps_NT,
            lengths_N,
            ended_N,
            message.head["facts"],
            routes[:count] or None,
            routes[count:] or None,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError(f"is no reply to a request: {error}") from error
