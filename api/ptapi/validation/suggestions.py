"""What to write instead of a wrong value or an unknown key: hints, from the schema alone.

A hint is only given for a value that the schema accepts. Left out: the nearest accelerator (`ptapi.accelerators`).
"""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from ptapi.quantity import PATTERN
from ptapi.spec.openapi_schema import ANY_SCALAR, INT_OR_STRING, Schema
from ptapi.text import bucket_names
from ptapi.text.messages import shown

OTHER_NAMES = {
    "lr": "learningRate", "r": "rank", "loraRank": "rank", "loraAlpha": "alpha", "loraDropout": "dropout",
    "targetModules": "targets", "numGenerations": "groupSize", "numSamples": "groupSize", "epsilon": "clipLow",
    "epsilonHigh": "clipHigh", "klCoef": "beta", "numIterations": "updatesPerBatch", "maxSteps": "steps",
    "numTrainEpochs": "epochs", "numEpochs": "epochs", "perDeviceTrainBatchSize": "microBatchSize",
    "gradientAccumulationSteps": "microBatchSize", "gradientAccumulation": "microBatchSize",
    "maxLength": "sequenceLength", "maxSeqLength": "sequenceLength", "gradientCheckpointing": "remat",
    "lrSchedulerType": "kind", "warmupSteps": "warmupFraction", "warmupRatio": "warmupFraction",
    "saveSteps": "everySteps", "evalSteps": "everySteps", "saveTotalLimit": "keep",
    "maxCompletionLength": "maxNewTokens", "trainOnInputs": "lossOnPrompt", "path": "uri", "url": "uri",
    "test": "eval", "validation": "eval", "token": "tokenSecretRef",
    "tp": "tensor", "dp": "data", "sp": "sequence", "cp": "sequence", "context": "sequence", "ep": "expert",
}  # fmt: skip
"""Names of other tools for fields of a job."""
_FAR = 3
"""Steps of a path that is suggested for a key of another map."""
_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"\s*(\d+)\s*(s|sec|m|min|h|d)\s*")
_AMOUNT = re.compile(r"\s*(\d+\.?\d*)\s*([kmgtpe])(i?)b?\s*", re.IGNORECASE)
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def for_value(name: str, schema: Schema, value: Any) -> str:
    """Return a hint for a wrong value of a field, or nothing."""
    for hint, candidate in _candidates(name, schema, value):
        if fits(schema, candidate):
            return hint.format(shown(candidate))
    return _of_bucket(schema, value) if isinstance(value, str) and value.startswith("gs://") else ""


def fits(schema: Schema, value: Any) -> bool:
    """Return True if the schema accepts a value, without a look into maps and lists."""
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = schema.get("type")
    if schema.get(INT_OR_STRING):
        kind = "string" if isinstance(value, str) else "integer"
    if kind == "string":
        return isinstance(value, str) and _is_text_of(schema, value)
    if kind in ("integer", "number"):
        is_number = isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
        return is_number and _is_in_range(schema, value)
    return isinstance(value, {"boolean": bool, "array": list, "object": dict}.get(str(kind), object))


def for_name(schema: Schema, siblings: Schema, where: str, name: str, value: Any) -> str:
    """Return what an unknown key was meant for, or nothing; where: the path of the map that it stands in."""
    camel = _camel(name)
    meant = (camel, OTHER_NAMES.get(camel, camel))
    lower = {sibling.lower(): sibling for sibling in siblings}
    near = difflib.get_close_matches(camel, list(siblings), n=1, cutoff=0.7)
    if isinstance(value, str) and value in siblings:
        near = [value]
    close = next((lower[one.lower()] for one in meant if one.lower() in lower), "") or _variant(siblings, name)
    if close or near:
        return ".".join(filter(None, (where, close or near[0])))
    if "[" in where:
        return ""
    below = [path for path, node in _paths(schema, ()) if path[-1] in meant and _could_be(node, value)]
    below = [path for path in below if len(path) <= _FAR or ".".join(path).startswith(f"{where}.")]
    shortest = [path for path in below if len(path) == min(map(len, below)) and (path[0] == "spec" or not where)]
    return ".".join(shortest[0]) if len(shortest) == 1 else ""


def _candidates(name: str, schema: Schema, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a wrong value may have meant, with the hint that says so."""
    meant = "did you mean {}?"
    if isinstance(value, str):
        yield from ((meant, one) for one in _near_texts(schema, value))
        yield "without quotes it is a number: {}", _number(value)
        if "Seconds" in name and (duration := _DURATION.fullmatch(value)):
            yield "in seconds: {}", int(duration[1]) * _SECONDS[duration[2]]
        if value.strip().endswith("%"):
            yield "as a share of 1: {}", _share(value)
        yield "without quotes it is a boolean: {}", _TRUTH.get(value.lower())
    elif isinstance(value, bool) and schema.get("type") == "object":
        if value and not schema.get("required"):
            yield "{} is the map with its defaults", {}
    elif isinstance(value, float) and value == value and abs(value) < 1e18 and value == int(value):
        yield "as a whole number: {}", int(value)
    if isinstance(value, bool | int | float):
        yield "in quotes it is text: {}", shown(value)
        yield meant, _TRUTH.get(str(value))
    if "items" in schema and _could_be(schema["items"], value) and fits(schema["items"], value):
        yield "as a list: {}", value.split() if name == "command" and isinstance(value, str) else [value]
    properties = schema.get("properties", {})
    if isinstance(value, str) and properties.get(value, {}).get("type") == "object":
        yield meant, {value: {}}
    required = schema.get("required", [])
    if not isinstance(value, dict) and len(required) == 1 and fits(properties[required[0]], value):
        yield meant, {required[0]: value}


def _near_texts(schema: Schema, value: str) -> Iterator[str]:
    choices = {str(one).lower(): one for one in schema.get("enum", [])}
    for close in difflib.get_close_matches(value.lower().strip(), list(choices), n=1, cutoff=0.7):
        yield choices[close]
    if "enum" in schema:
        return
    if schema.get("pattern") == PATTERN and (amount := _AMOUNT.fullmatch(value)):
        yield amount[1] + (amount[2].upper() + "i" if amount[3] else amount[2].upper().replace("K", "k"))
    yield value.strip()
    yield value.strip().lower()
    yield value.strip().replace("_", "-")
    if value.startswith("/"):
        yield f"file://{value.strip()}"
    if re.fullmatch(r"file://[^/].*", value):
        yield f"file:///{value.removeprefix('file://')}"
    if value.count("/") == 1:
        yield f"hf://{value.strip()}"


def _of_bucket(schema: Schema, uri: str) -> str:
    is_wrong = bucket_names.problem(uri) and fits(schema, re.sub("^gs://[^/]*", "gs://bucket", uri))
    return f"a bucket has {bucket_names.ACCEPTED}" if is_wrong else ""


def _is_text_of(schema: Schema, value: str) -> bool:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return False
    return "pattern" not in schema or re.search(schema["pattern"], value) is not None


def _is_in_range(schema: Schema, value: float) -> bool:
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    if (value == low and schema.get("exclusiveMinimum")) or (value == high and schema.get("exclusiveMaximum")):
        return False
    return bool(low <= value <= high)


def _could_be(schema: Schema, value: Any) -> bool:
    """Return True unless the schema is of another kind of value: a map, a list, or one of neither."""
    if schema.get(ANY_SCALAR):
        return True
    kind = schema.get("type")
    return (kind == "object") == isinstance(value, dict) and (kind == "array") == isinstance(value, list)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 40 else None
        except ValueError:
            continue
    return None


def _share(text: str) -> Any:
    number = _number(text.strip().removesuffix("%"))
    return None if number is None else number / 100


def _variant(siblings: Schema, name: str) -> str:
    """Return the sibling that has a choice of this name: `dapo` is a loss of grpo."""
    for sibling, node in siblings.items():
        for field, below in node.get("properties", {}).items():
            if name in below.get("enum", []) and isinstance(name, str):
                return f"{sibling}.{field}: {name}"
    return ""


def _paths(schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Schema]]:
    for name, below in schema.get("properties", {}).items():
        yield (*path, name), below
        yield from _paths(below, (*path, name))


def _camel(name: str) -> str:
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)
