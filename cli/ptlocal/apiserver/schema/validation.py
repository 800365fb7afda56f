"""A value against its structural schema: types, bounds, patterns, formats, required fields, junctors.

Returns every error with the path and the words of a real API server. With `old`, parts of the object that did not
change are skipped: Kubernetes lets an update pass whose wrong fields were wrong before ("ratcheting"), and it keeps
status updates of large objects cheap. CEL rules are a walk of their own (cel/validation_rules.py), after this one.
"""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

from ptapi import quantity
from ptlocal.apiserver.errors import FieldError, invalid_value, not_supported, required, show

Schema = dict[str, Any]
MISSING: Any = object()
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_GO_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def errors(value: Any, schema: Schema, path: str = "", old: Any = MISSING) -> list[FieldError]:
    """Return what a schema refuses in a value; unchanged parts of an update are not checked."""
    if old is not MISSING and old == value:
        return []
    field_errors = _own_errors(value, schema, path)
    if not any(error.reason == "FieldValueTypeInvalid" for error in field_errors):
        for item, item_schema, item_path, item_old in parts(value, schema, path, old):
            field_errors += errors(item, item_schema, item_path, item_old)
    return field_errors


def _own_errors(value: Any, schema: Schema, path: str) -> list[FieldError]:
    if value is None:
        if schema.get("nullable") or not schema.get("type"):
            return []
        return [_wrong_type(path, schema["type"], "null")]
    if schema.get("x-kubernetes-int-or-string"):
        is_quantity = schema.get("format") == "quantity"  # of the built-in kinds, which take fractions, too
        if not any(_is_type(value, kind) for kind in ("integer", "string", *(["number"] if is_quantity else []))):
            return [_wrong_type(path, "integer,string", _type_name(value))]
        if is_quantity and not quantity.is_quantity(value):
            return [invalid_value(path, value, quantity.RULE)]
    elif schema.get("type") and not _is_type(value, schema["type"]):
        return [_wrong_type(path, schema["type"], _type_name(value))]
    return [*_bounds(value, schema, path), *_junctors(value, schema, path)]


def parts(value: Any, schema: Schema, path: str, old: Any) -> Iterator[tuple[Any, Schema, str, Any]]:
    """Yield the parts of a value that the schema describes: (part, schema, path, old part or MISSING)."""
    if isinstance(value, dict):
        properties: dict[str, Schema] = schema.get("properties") or {}
        additional = schema.get("additionalProperties")
        old_map = old if isinstance(old, dict) else {}
        for key, item in value.items():
            child = properties.get(key) or (additional if isinstance(additional, dict) else None)
            if child is not None:
                yield item, child, f"{path}.{key}" if path else key, old_map.get(key, MISSING)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        partner = _partners(schema, old)
        for index, item in enumerate(value):
            yield item, schema["items"], f"{path}[{index}]", partner(item)


def _partners(schema: Schema, old: Any) -> Callable[[Any], Any]:
    """Old items are found by their map keys; items of other lists have no older self."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list):
        return lambda item: MISSING
    by_key = {_map_key(item, keys): item for item in old if isinstance(item, dict)}
    return lambda item: by_key.get(_map_key(item, keys), MISSING) if isinstance(item, dict) else MISSING


def _map_key(item: dict[str, Any], keys: list[str]) -> tuple[str, ...]:
    return tuple(repr(item.get(key)) for key in keys)


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _GO_TYPES.get(name, (object,)))


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    for name in ("boolean", "integer", "number", "string", "array", "object"):
        if _is_type(value, name):
            return name
    return "unknown"


def _wrong_type(path: str, wanted: str, actual: str) -> FieldError:
    return FieldError(
        path, "FieldValueTypeInvalid", f'Invalid value: "{actual}": {path} in body must be of type {wanted}: "{actual}"'
    )


def _bounds(value: Any, schema: Schema, path: str) -> list[FieldError]:
    field_errors: list[FieldError] = []
    if isinstance(value, str):
        field_errors += _string_errors(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        field_errors += _number_errors(value, schema, path)
    elif isinstance(value, list):
        field_errors += _list_errors(value, schema, path)
    elif isinstance(value, dict):
        field_errors += _map_errors(value, schema, path)
    accepted = schema.get("enum")
    if accepted is not None and value not in accepted:
        field_errors.append(not_supported(path, value, accepted))
    return field_errors


def _string_errors(value: str, schema: Schema, path: str) -> list[FieldError]:
    """Return the first error of a string."""
    most, least, pattern = schema.get("maxLength"), schema.get("minLength"), schema.get("pattern")
    if most is not None and len(value) > most:
        return [FieldError(path, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")]
    if least is not None and len(value) < least:
        return [invalid_value(path, value, f"{path} in body should be at least {least} chars long")]
    if pattern is not None and not compiled(pattern).search(value):
        return [invalid_value(path, value, f"{path} in body should match '{pattern}'")]
    if schema.get("format") == "date-time" and not is_date_time(value):
        why = f"{show(value)}: {path} in body must be of type date-time: {show(value)}"
        return [FieldError(path, "FieldValueTypeInvalid", f"Invalid value: {why}")]
    if schema.get("format") == "micro-time" and not _MICRO_TIME.fullmatch(value):
        why = f'{show(value)}: cannot parse it as "2006-01-02T15:04:05.000000Z07:00": six decimals are needed'
        return [FieldError(path, "FieldValueTypeInvalid", f"Invalid value: {why}")]
    return []


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Python's `$` also matches before a final newline, Go's does not; and Python wants flags before `^`."""
    flags_first = re.sub(r"^\^(\(\?[ims]+\))", r"\1^", pattern)
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", flags_first))


def is_date_time(text: str) -> bool:
    """Return True for an RFC 3339 date and time."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text or "t" in text


def _number_errors(value: float, schema: Schema, path: str) -> list[FieldError]:
    field_errors = []
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (schema.get("exclusiveMinimum") and value == least)):
        word = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        field_errors.append(invalid_value(path, value, f"{path} in body should be {word} {_number(least)}"))
    if most is not None and (value > most or (schema.get("exclusiveMaximum") and value == most)):
        word = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        field_errors.append(invalid_value(path, value, f"{path} in body should be {word} {_number(most)}"))
    step = schema.get("multipleOf")
    if step and abs(value / step - round(value / step)) > 1e-9:
        field_errors.append(invalid_value(path, value, f"{path} in body should be a multiple of {_number(step)}"))
    return field_errors


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _list_errors(value: list[Any], schema: Schema, path: str) -> list[FieldError]:
    field_errors = _size_errors(len(value), path, schema.get("maxItems"), schema.get("minItems"), "items")
    keys = schema.get("x-kubernetes-list-map-keys") if schema.get("x-kubernetes-list-type") == "map" else None
    if "x-kubernetes-patch-strategy" in schema:  # a built-in kind: its rules say which duplicates are wrong
        return field_errors
    if keys or schema.get("x-kubernetes-list-type") == "set":
        field_errors += _duplicates(value, keys, path)
    return field_errors


def _duplicates(value: list[Any], keys: list[str] | None, path: str) -> list[FieldError]:
    identities: set[Any] = set()
    field_errors = []
    for index, item in enumerate(value):
        if keys and not isinstance(item, dict):
            continue
        identity = _map_key(item, keys) if keys else repr(item)
        if identity in identities:
            shown = {key: item.get(key) for key in keys if key in item} if keys else item
            field_errors.append(
                FieldError(f"{path}[{index}]", "FieldValueDuplicate", f"Duplicate value: {show(shown)}")
            )
        identities.add(identity)
    return field_errors


def _map_errors(value: dict[str, Any], schema: Schema, path: str) -> list[FieldError]:
    most, least = schema.get("maxProperties"), schema.get("minProperties")
    missing = [key for key in schema.get("required") or [] if key not in value]
    return _size_errors(len(value), path, most, least, "properties") + [
        required(f"{path}.{key}" if path else key) for key in missing
    ]


def _size_errors(size: int, path: str, most: int | None, least: int | None, parts: str) -> list[FieldError]:
    if most is not None and size > most:
        return [FieldError(path, "FieldValueTooMany", f"Too many: {size}: must have at most {most} items")]
    if least is not None and size < least:
        return [invalid_value(path, size, f"{path} in body should have at least {least} {parts}")]
    return []


def _junctors(value: Any, schema: Schema, path: str) -> list[FieldError]:
    """allOf, anyOf, oneOf, not: only value checks, as structural schemas allow."""
    field_errors: list[FieldError] = []
    for part in schema.get("allOf") or []:
        field_errors += errors(value, part, path)
    for junctor, text in (
        ("anyOf", "validate at least one schema (anyOf)"),
        ("oneOf", "validate one and only one schema (oneOf). Found none valid"),
    ):
        if schema.get(junctor):
            failures = [errors(value, part, path) for part in schema[junctor]]
            valid = sum(not failed for failed in failures)
            if not valid:
                field_errors += [_junctor_error(f'"{path}" must {text}'), *min(failures, key=len)]
            elif junctor == "oneOf" and valid > 1:
                field_errors.append(
                    _junctor_error(
                        f'"{path}" must validate one and only one schema (oneOf). Found {valid} valid alternatives'
                    )
                )
    if schema.get("not") and not errors(value, schema["not"], path):
        field_errors.append(_junctor_error(f'"{path}" must not validate the schema (not)'))
    return field_errors


def _junctor_error(why: str) -> FieldError:
    return FieldError("<nil>", "FieldValueInvalid", f'Invalid value: "": {why}')
