"""The CEL rules of a schema, run on a value: what Kubernetes wraps around the language.

Programs are compiled when first needed and kept; the value is given to the evaluator once for all its rules. A rule
that reads oldSelf runs only where there is an old value. At the root, self is the whole object, of whose metadata
rules see name and generateName alone.
"""

from typing import Any

from ptlocal.apiserver.errors import FieldError
from ptlocal.apiserver.schema.cel.environment import CelError, activation, program
from ptlocal.apiserver.schema.cel.values import as_cel
from ptlocal.apiserver.schema.validation import MISSING, parts

Schema = dict[str, Any]
_REASONS = {
    "FieldValueRequired": "Required value: {message}",
    "FieldValueForbidden": "Forbidden: {message}",
    "FieldValueDuplicate": 'Duplicate value: "{type}": {message}',
}


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
        """Return what the schema's rules refuse in a value."""
        return self._errors(value, self._schema, "", old)

    def _errors(self, value: Any, schema: Schema, path: str, old: Any) -> list[FieldError]:
        if not self._has_rules[id(schema)] or value is None or (old is not MISSING and old == value):
            return []
        field_errors: list[FieldError] = []
        if schema.get("x-kubernetes-validations"):
            field_errors += _run(value, old, schema, path)
        for item, item_schema, item_path, item_old in parts(value, schema, path, old):
            field_errors += self._errors(item, item_schema, item_path, item_old)
        return field_errors


def _run(value: Any, old: Any, schema: Schema, path: str) -> list[FieldError]:
    rules = [rule for rule in schema["x-kubernetes-validations"] if old is not MISSING or not _reads_old(rule)]
    try:
        variables = _variables(value, old, schema, path)
    except RecursionError:
        return [_error(rule, _failed("the value is nested too deeply", rule), schema, path) for rule in rules]
    field_errors = []
    for rule in rules:
        try:
            if program(rule["rule"]).run(variables) is True:
                continue
            message = _message(rule, variables)
        except CelError as error:
            message = _failed(str(error), rule)
        field_errors.append(_error(rule, message, schema, path))
    return field_errors


def _reads_old(rule: dict[str, Any]) -> bool:
    try:
        return program(rule["rule"]).reads_old
    except CelError:  # its definition was stored before this version refused it
        return False


def _variables(value: Any, old: Any, schema: Schema, path: str) -> Any:
    variables = {"self": as_cel(_visible(value, path), schema)}
    if old is not MISSING:
        variables["oldSelf"] = as_cel(_visible(old, path), schema)
    return activation(variables)


def _failed(why: str, rule: dict[str, Any]) -> str:
    return f"{why} evaluating rule: {rule.get('message') or rule['rule']}"


def _visible(value: Any, path: str) -> Any:
    if path or not isinstance(value, dict) or "metadata" not in value:
        return value
    meta = {key: value["metadata"][key] for key in ("name", "generateName") if key in value["metadata"]}
    return {**value, "metadata": meta}


def _message(rule: dict[str, Any], variables: Any) -> str:
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
