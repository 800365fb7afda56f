"""Turn a decoded body into an object fit to store: unknown fields, nulls, defaults, schema, rules, metadata.

The order is a real API server's: decoding errors (wrong type, unknown field with fieldValidation=Strict) are a 400,
then defaults are filled in, then all other errors are reported together as a 422.
"""

from functools import lru_cache
from typing import Any

from ptlocal.apiserver.errors import FieldError, Named, bad_request, invalid, invalid_value, show
from ptlocal.apiserver.kinds import builtin_schemas
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.rules import rules_of
from ptlocal.apiserver.schema import defaulting, pruning, validation
from ptlocal.apiserver.schema.cel import RuleWalk
from ptlocal.apiserver.write_options import FieldValidation
from ptlocal.apiserver.writes import object_meta

Manifest = dict[str, Any]
_BLOCKING = (
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
    "FieldValueNotSupported",
)
_NOT_CHECKED = FieldError(
    "<nil>",
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked "
    "because the object was invalid; correct the existing errors to complete validation",
)


def decode(obj: Any, kind: Kind, field_validation: FieldValidation, *, is_patched: bool = False) -> list[str]:
    """Check type, kind and unknown fields, in place; return warnings."""
    if not isinstance(obj, dict):
        raise bad_request(_cannot(kind, "the body must be an object"))
    obj.setdefault("apiVersion", kind.api_version)
    obj.setdefault("kind", kind.kind)
    if obj["apiVersion"] != kind.api_version:
        raise bad_request(
            f"the API version in the data ({obj['apiVersion']}) does not match the expected API version "
            f"({kind.api_version})"
        )
    if obj["kind"] != kind.kind:
        raise bad_request(f"the kind in the data ({obj['kind']}) does not match the expected kind ({kind.kind})")
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    meta_schema = builtin_schemas.schema_of("ObjectMeta")
    if isinstance(obj["metadata"], dict):
        pruning.drop_nulls(obj["metadata"], meta_schema)
    pruning.drop_nulls(obj, kind.schema)
    sent = show(obj) if is_patched and field_validation == "Strict" else ""
    unknown = pruning.prune_object(obj, kind.schema)
    if unknown and field_validation == "Strict":
        problems = ", ".join(f'unknown field "{path}"' for path in unknown)
        if is_patched:
            error = invalid_value("patch", sent, f"strict decoding error: {problems}")
            raise invalid(Named("", "", ""), [error])
        raise bad_request(_cannot(kind, f"strict decoding error: {problems}"))
    wrong = validation.errors(obj["metadata"], meta_schema, "metadata")
    if not kind.is_custom:
        wrong += [e for e in validation.errors(_without_meta(obj), kind.schema) if e.reason == "FieldValueTypeInvalid"]
    wrong = [e for e in wrong if e.reason in ("FieldValueTypeInvalid", "FieldValueInvalid")]
    if wrong and is_patched:
        raise invalid(Named("", "", ""), [invalid_value("patch", show(obj), ", ".join(map(str, wrong)))])
    if wrong:
        raise bad_request(_cannot(kind, ", ".join(map(str, wrong))))
    return [f'unknown field "{path}"' for path in unknown] if field_validation == "Warn" else []


def _cannot(kind: Kind, why: str) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}'


def _without_meta(obj: Manifest) -> Manifest:
    return {key: value for key, value in obj.items() if key != "metadata"}


def fill_in(obj: Manifest, kind: Kind) -> None:
    """Fill in defaults, in place."""
    if kind.is_custom:
        defaulting.apply_defaults(obj, kind.schema)
    elif "spec" in kind.schema["properties"] and not isinstance(obj.get("spec"), dict):
        obj["spec"] = {}
    rules_of(kind.storage_key).default(obj)
    object_meta.tidy(obj["metadata"])


def check(obj: Manifest, kind: Kind, old: Manifest | None = None, subresource: str = "") -> None:
    """Refuse an invalid object, with all errors at once."""
    errors: list[FieldError] = []
    if old is None or obj["metadata"] != old["metadata"]:
        errors += object_meta.errors_in(obj["metadata"], kind)
    if old is not None:
        errors += object_meta.added_finalizers(obj["metadata"], old["metadata"])
    errors += _schema_errors(obj, kind, old)
    if not errors:
        rules = rules_of(kind.storage_key)
        if old is None or subresource == "":
            errors += rules.validate(obj)
        if old is not None:
            errors += rules.validate_update(obj, old, subresource)
    if errors:
        raise invalid(kind.named(obj["metadata"].get("name", "")), errors)


def _schema_errors(obj: Manifest, kind: Kind, old: Manifest | None) -> list[FieldError]:
    if not kind.is_custom:
        before = validation.MISSING if old is None else _without_meta(old)
        return validation.errors(_without_meta(obj), kind.schema, "", before)
    before = validation.MISSING if old is None else old
    errors = validation.errors(_without_meta(obj), kind.schema, "", before if old is None else _without_meta(old))
    walk = _rules_of(kind)
    if walk.has_rules and any(error.reason in _BLOCKING for error in errors):
        return [*errors, _NOT_CHECKED]
    return errors + walk.errors(obj, before)


@lru_cache(maxsize=256)
def _rules_of(kind: Kind) -> RuleWalk:
    return RuleWalk(kind.schema)
