"""The CEL rules of a schema, run on a value: what Kubernetes wraps around the language.

Programs are compiled when first needed and kept. A rule that reads oldSelf runs only where there is an old value.
Numbers, times and durations get the type their schema gives them. At the root, self is the whole object, of whose
metadata rules see name and generateName alone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ptlocal.apiserver.errors import FieldError
from ptlocal.apiserver.schema.cel.compiling import Program, compile_text
from ptlocal.apiserver.schema.cel.extensions import to_duration
from ptlocal.apiserver.schema.cel.syntax import CelError
from ptlocal.apiserver.schema.validation import MISSING, parts

Schema = dict[str, Any]
_VARIABLES = ("self", "oldSelf")
_REASONS = {
    "FieldValueRequired": "Required value: {message}",
    "FieldValueForbidden": "Forbidden: {message}",
    "FieldValueDuplicate": 'Duplicate value: "{type}": {message}',
}


@lru_cache(maxsize=4096)
def program(source: str) -> Program:
    return compile_text(source, _VARIABLES)


class RuleWalk:
    """The rules of one schema; knows where in it there are any, so that nothing else is walked."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._has_rules: dict[int, bool] = {}
        self.has_rules = self._mark(schema)

    def _mark(self, schema: Schema) -> bool:
        children = [*(schema.get("properties") or {}).values()]
        children += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
        below = [self._mark(child) for child in children]
        self._has_rules[id(schema)] = any(below) or bool(schema.get("x-kubernetes-validations"))
        return self._has_rules[id(schema)]

    def errors(self, value: Any, old: Any = MISSING) -> list[FieldError]:
        return self._errors(value, self._schema, "", old)

    def _errors(self, value: Any, schema: Schema, path: str, old: Any) -> list[FieldError]:
        if not self._has_rules[id(schema)] or value is None or (old is not MISSING and old == value):
            return []
        found: list[FieldError] = []
        if schema.get("x-kubernetes-validations"):
            found += _run(value, old, schema, path)
        for item, item_schema, item_path, item_old in parts(value, schema, path, old):
            found += self._errors(item, item_schema, item_path, item_old)
        return found


def _run(value: Any, old: Any, schema: Schema, path: str) -> list[FieldError]:
    found = []
    variables = {"self": typed(_visible(value, path), schema)}
    if old is not MISSING:
        variables["oldSelf"] = typed(_visible(old, path), schema)
    for rule in schema["x-kubernetes-validations"]:
        code = program(rule["rule"])
        if "oldSelf" in code.names and old is MISSING:
            continue
        try:
            if code.run(variables) is True:
                continue
            message = _message(rule, variables)
        except CelError as error:
            message = f"{error} evaluating rule: {rule.get('message') or rule['rule']}"
        except RecursionError:
            message = f"the value is nested too deeply, evaluating rule: {rule.get('message') or rule['rule']}"
        found.append(_error(rule, message, schema, path))
    return found


def _visible(value: Any, path: str) -> Any:
    if path or not isinstance(value, dict) or "metadata" not in value:
        return value
    meta = {key: value["metadata"][key] for key in ("name", "generateName") if key in value["metadata"]}
    return {**value, "metadata": meta}


def _message(rule: dict[str, Any], variables: dict[str, Any]) -> str:
    if rule.get("messageExpression"):
        try:
            text = program(rule["messageExpression"]).run(variables)
        except CelError:
            text = ""
        if isinstance(text, str) and text.strip() and "\n" not in text:
            return text.strip()
    return str(rule.get("message") or f"failed rule: {rule['rule']}").strip()


def _error(rule: dict[str, Any], message: str, schema: Schema, path: str) -> FieldError:
    where = f"{path}{rule.get('fieldPath') or ''}".lstrip(".") or "<nil>"
    reason = rule.get("reason") or "FieldValueInvalid"
    form = _REASONS.get(reason, 'Invalid value: "{type}": {message}')
    return FieldError(where, reason, form.format(type=schema.get("type", ""), message=message))


def typed(value: Any, schema: Schema) -> Any:
    """The value with the types CEL gives it; the same object where nothing changes."""
    if isinstance(value, dict):
        return _typed_map(value, schema)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        items = [typed(item, schema["items"]) for item in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if isinstance(value, int) and not isinstance(value, bool) and schema.get("type") == "number":
        return float(value)
    if isinstance(value, float) and schema.get("type") == "integer":
        return int(value)
    if isinstance(value, str) and schema.get("format") in ("date-time", "date", "duration"):
        return _typed_text(value, schema["format"])
    return value


def _typed_map(value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    properties: dict[str, Schema] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    rest = additional if isinstance(additional, dict) else {}
    if not properties and not rest:
        return value
    changed = {}
    for key, item in value.items():
        made = typed(item, properties.get(key) or rest)
        if made is not item:
            changed[key] = made
    return {**value, **changed} if changed else value


def _typed_text(value: str, form: str) -> Any:
    try:
        if form == "duration":
            return to_duration(value)
        parsed = datetime.fromisoformat(value)
    except (ValueError, CelError):
        return value
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
