"""From a decoded body to an object fit to store: unknown fields, nulls, defaults, schema, kind's own rules, metadata.

The order is a real API server's: decoding problems (wrong type, unknown field with fieldValidation=Strict) are a 400,
then defaults are filled in, then everything wrong is reported together as a 422.
"""

from __future__ import annotations

from typing import Any

from ptlocal.apiserver import builtin_schemas, cel, defaulting, metadata, pruning, validation
from ptlocal.apiserver.kinds import Kind
from ptlocal.apiserver.options import FieldValidation
from ptlocal.apiserver.rules import rules_of
from ptlocal.apiserver.status import FieldError, bad_request, invalid

Manifest = dict[str, Any]
_plain = validation.Validator()
_with_cel = validation.Validator(cel.rule_errors)


def decode(obj: Any, kind: Kind, field_validation: FieldValidation) -> list[str]:
    """Check type, kind and unknown fields, in place; returns warnings."""
    if not isinstance(obj, dict):
        raise bad_request(_cannot(kind, "the body must be an object"))
    obj.setdefault("apiVersion", kind.api_version)
    obj.setdefault("kind", kind.kind)
    if obj["apiVersion"] != kind.api_version:
        raise bad_request(f"the API version in the data ({obj['apiVersion']}) does not match the expected API version "
                          f"({kind.api_version})")
    if obj["kind"] != kind.kind:
        raise bad_request(f"the kind in the data ({obj['kind']}) does not match the expected kind ({kind.kind})")
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    meta_schema = builtin_schemas.schema_of("ObjectMeta")
    if isinstance(obj["metadata"], dict):
        pruning.drop_nulls(obj["metadata"], meta_schema)
    pruning.drop_nulls(obj, kind.schema)
    unknown = pruning.prune_object(obj, kind.schema)
    if unknown and field_validation == "Strict":
        problems = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise bad_request(_cannot(kind, f"strict decoding error: {problems}"))
    wrong = _plain.errors(obj["metadata"], meta_schema, "metadata")
    if not kind.is_custom:
        wrong += [e for e in _plain.errors(_without_meta(obj), kind.schema) if e.reason == "FieldValueTypeInvalid"]
    wrong = [e for e in wrong if e.reason in ("FieldValueTypeInvalid", "FieldValueInvalid")]
    if wrong:
        raise bad_request(_cannot(kind, ", ".join(map(str, wrong))))
    return [f'unknown field "{path}"' for path in unknown] if field_validation == "Warn" else []


def _cannot(kind: Kind, why: str) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}'


def _without_meta(obj: Manifest) -> Manifest:
    return {key: value for key, value in obj.items() if key != "metadata"}


def fill_in(obj: Manifest, kind: Kind) -> None:
    """Defaults, in place."""
    if kind.is_custom:
        defaulting.apply_defaults(obj, kind.schema)
    elif "spec" in kind.schema["properties"] and not isinstance(obj.get("spec"), dict):
        obj["spec"] = {}
    rules_of(kind.storage_key).default(obj)
    metadata.tidy(obj["metadata"])


def check(obj: Manifest, kind: Kind, old: Manifest | None = None, subresource: str = "") -> None:
    """Refuse what is wrong, all of it at once."""
    found: list[FieldError] = []
    if old is None or obj["metadata"] != old["metadata"]:
        found += metadata.errors_in(obj["metadata"], kind)
    if old is not None:
        found += metadata.added_finalizers(obj["metadata"], old["metadata"])
    found += _schema_errors(obj, kind, old)
    if not found:
        rules = rules_of(kind.storage_key)
        if old is None or subresource == "":
            found += rules.validate(obj)
        if old is not None:
            found += rules.validate_update(obj, old, subresource)
    if found:
        raise invalid(kind.named(obj["metadata"].get("name", "")), found)


def _schema_errors(obj: Manifest, kind: Kind, old: Manifest | None) -> list[FieldError]:
    if not kind.is_custom:
        if old is None:
            return _plain.errors(_without_meta(obj), kind.schema)
        return _plain.errors(_without_meta(obj), kind.schema, "", _without_meta(old))
    # CEL rules at the root may read metadata.name, and metadata has its own checks
    if old is None:
        return _with_cel.errors(obj, kind.schema)
    return _with_cel.errors(obj, kind.schema, "", old)
