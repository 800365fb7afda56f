"""What a field accepts and what was found instead, in words that a user can act on.

The words are derived from the field's schema, so they cannot drift from what is checked. The one idea: nobody should
have to read a regular expression, so every pattern of the spec has its description here.
"""

import json
import re
from typing import Any

from ptapi.quantity import PATTERN
from ptapi.spec import base, tracking
from ptapi.spec.openapi_schema import ANY_SCALAR, INT_OR_STRING, Schema

LONGEST_SHOWN = 80
_AMBIGUOUS = re.compile(r"|[-+.0-9].*|true|false|null|~|yes|no|on|off|y|n|\s.*|.*\s|.*(?:\n|: | #).*", re.I | re.S)

PATTERN_DESCRIPTIONS: dict[str, str] = {
    r"^eval/\S+$": "a metric of an evaluation, eval/…",
    base.DATA_URI: "a URI: gs://…, file:///… or hf://datasets/organisation/name, without steps . and ..",
    base.OUTPUT_URI: "a URI of a directory: gs://… or file:///…, without *, ?, # and steps . and ..",
    base.FILE_URI: "a URI of a file: gs://… or file:///…, without steps . and ..",
    base.CODE_URI: "a URI of a Python file: gs://…/name.py or file:///…/name.py, without steps . and ..",
    base.HTTP_URL: "a URL: https://… or http://…, without user, white space, ? and #",
    base.MODEL_URI: "a URI: hf://org/name, gs://bucket/dir, file:///dir or random://preset, without steps . and ..",
    base.ADAPTER_URI: "a URI: hf://org/name, gs://bucket/dir or file:///dir, without steps . and ..",
    base.REVISION: "a branch, tag or commit: letters, digits, ., _, - and /",
    base.GYMNASIUM_ID: "a name of Gymnasium's: Name-v0, namespace/Name-v0 or module:Name-v0",
    base.VERIFIERS_ID: "an environment's name or owner/name, such as wordle",
    base.PACKAGE: "a package and its version: name==1.2.3",
    base.IMAGE: "an image such as registry/name:tag or name@sha256:…, in lower case",
    base.DNS_NAME: "a Kubernetes name: lower-case letters, digits and -, in parts between dots",
    base.DNS_LABEL: "lower-case letters, digits and -, no - at either end",
    r"^[a-z]([-a-z0-9]*[a-z0-9])?$": "lower-case letters, digits and -, starting with a letter, no - at the end",
    r"^[a-z0-9][a-z0-9-]*$": "an accelerator such as v6e-16, v5p-128 or cpu-8",
    r"^[0-9]+x[0-9]+(x[0-9]+)?$": "a shape such as 4x4 or 4x4x8",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and _, not starting with a digit",
    base.ABSOLUTE_PATH: "an absolute path, without //, :, white space and steps . and ..",
    r"^[-._a-zA-Z0-9]+$": "a key: letters, digits, -, _ and .",
    r"^(auto)$": "auto",
    PATTERN: "a quantity such as 500m, 1.5 or 64Gi",
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$": "a label's value: letters, digits, -, _ and .",
    tracking.TRACKER_NAME: "a name without /, \\, #, ?, % and :",
    tracking.TRACKING_URI: "https://…, http://…, databricks or databricks://profile, without user, ?, #",
    tracking.SPACE: "a Space: name or organisation/name",
    r"^[A-Z_]+$": "a Linux capability such as SYS_RESOURCE",
    r"^[a-z]+-[a-z]+[0-9]+-[a-z0-9]+$": "a zone such as us-east5-a",
    r"^[-a-zA-Z0-9_./:]+$": "a name or path: letters, digits, -, _, ., : and /",
    base.LABEL_KEY: "a key such as team or example.com/team",
    r"^--xla_[a-z0-9_]+=[^\s]+$": "a flag of XLA: --xla_name=value, without white space",
    r"^/[^\s]*$": "a path such as /health, without white space",
    r"^--[^\s]+$": "a flag: --name=value, without white space",
    r"^[A-Za-z_][A-Za-z0-9_.]*=": "key=value",
    r"^[^\s-]": "a package as pip takes it",
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "letters, digits, ., _ and -, starting with a letter or digit",
}  # fmt: skip


def accepted(schema: Schema) -> str:
    """Return what a value of this schema may be, such as `a whole number from 1 to 64`."""
    if schema.get(INT_OR_STRING):
        return f"{_number('a whole number', schema)}, or {PATTERN_DESCRIPTIONS[schema['pattern']]}"
    if "enum" in schema:
        values = [shown(value) for value in schema["enum"]]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    kind = schema.get("type")
    if kind == "boolean":
        return "true or false"
    if kind == "integer":
        return _number("a whole number", schema)
    if kind == "number":
        return _number("a number", schema)
    if kind == "array":
        return _list(schema)
    if kind == "object":
        return _map(schema)
    return _text(schema)


def shown(value: Any) -> str:
    """Format a value for a message: short, printable, and quoted where it could be taken for something else."""
    if isinstance(value, str) and value.isprintable() and not _AMBIGUOUS.fullmatch(value):
        text = value
    else:
        text = quoted(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def quoted(value: Any) -> str:
    """Return a value as JSON, with escapes for what a terminal does not show as it is."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isprintable() else json.dumps(value, default=str)


def _number(noun: str, schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum", False), schema.get("exclusiveMaximum", False)
    if low is None and high is None:
        return noun
    if not above and not below and low is not None and high is not None:
        return f"{noun} from {_plain(low)} to {_plain(high)}"
    parts = []
    if low is not None:
        parts.append(f"{'above' if above else 'of at least'} {_plain(low)}")
    if high is not None:
        parts.append(f"{'below' if below else 'at most'} {_plain(high)}")
    return f"{noun} {' and '.join(parts)}"


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _text(schema: Schema) -> str:
    description = PATTERN_DESCRIPTIONS[schema["pattern"]] if "pattern" in schema else "text"
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if high is None:
        return description
    return f"{description} ({f'{low} to' if low else 'at most'} {high} characters)"


def _list(schema: Schema) -> str:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    size = "" if high is None else f" of {f'{low} to' if low else 'at most'} {high} entries"
    return f"a list{size}"


def _map(schema: Schema) -> str:
    properties = schema.get("properties", {})
    if not properties:
        if schema.get(ANY_SCALAR):
            return "a map, as in Kubernetes"
        return "a map of text to text" if "additionalProperties" in schema else "an empty map, {}"
    return f"a map with {', '.join(properties)}"
