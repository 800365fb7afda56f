"""CustomResourceDefinitions: names, versions, structural schemas; Established as soon as they are stored."""

import re
from typing import Any

from ptlocal.apiserver.errors import FieldError, invalid_value, not_supported, required
from ptlocal.apiserver.rules.base import Manifest, Rules, unchanged
from ptlocal.apiserver.schema.cel import CelError, program
from ptlocal.apiserver.schema.validation import compiled
from ptlocal.apiserver.writes.object_meta import now

_EVALUATES_TO = {
    "rule": ("BOOL", "cel expression must evaluate to a bool"),
    "messageExpression": ("STRING", "messageExpression must evaluate to a string"),
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _default(crd: Manifest) -> None:
    spec = crd["spec"]
    names = spec.get("names")
    if isinstance(names, dict) and isinstance(names.get("kind"), str):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})


def _create(crd: Manifest) -> None:
    spec = crd["spec"]
    stored = [v.get("name") for v in spec.get("versions") or [] if isinstance(v, dict) and v.get("storage")]
    times = {"lastTransitionTime": now(), "status": "True"}
    crd["status"] = {
        "acceptedNames": spec.get("names") or {},
        "conditions": [
            {**times, "type": "NamesAccepted", "reason": "NoConflicts", "message": "no conflicts found"},
            {
                **times,
                "type": "Established",
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ],
        "storedVersions": stored,
    }


def _validate(crd: Manifest) -> list[FieldError]:
    spec = crd["spec"]
    errors: list[FieldError] = []
    for key in ("group", "scope"):
        if not spec.get(key):
            errors.append(required(f"spec.{key}"))
    names = spec.get("names") or {}
    for key in ("plural", "kind"):
        if not names.get(key):
            errors.append(required(f"spec.names.{key}"))
    if errors:
        return errors
    wanted = f"{names['plural']}.{spec['group']}"
    if crd["metadata"]["name"] != wanted:
        errors.append(
            invalid_value("metadata.name", crd["metadata"]["name"], 'must be spec.names.plural+"."+spec.group')
        )
    if "." not in spec["group"]:
        errors.append(invalid_value("spec.group", spec["group"], "should be a domain with at least one dot"))
    if not _LABEL.fullmatch(names["plural"]):
        errors.append(invalid_value("spec.names.plural", names["plural"], "must be a DNS-1035 label"))
    if spec["scope"] not in ("Cluster", "Namespaced"):
        errors.append(not_supported("spec.scope", spec["scope"], ["Cluster", "Namespaced"]))
    return errors + _version_errors(spec.get("versions") or [])


def _version_errors(versions: list[Manifest]) -> list[FieldError]:
    errors: list[FieldError] = []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(
            invalid_value(
                "spec.versions",
                [v.get("name") for v in versions],
                "must have exactly one version marked as storage version",
            )
        )
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        if not _LABEL.fullmatch(str(version.get("name") or "")):
            errors.append(invalid_value(f"{path}.name", version.get("name"), "must be a DNS-1035 label"))
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            errors.append(required(f"{path}.schema.openAPIV3Schema", "schemas are required"))
        else:
            errors += _schema_errors(schema, f"{path}.schema.openAPIV3Schema", is_root=True)
    return errors


def _schema_errors(schema: Any, path: str, is_root: bool = False) -> list[FieldError]:
    """Return errors that would break later walks over the schema; a real server checks more."""
    if not isinstance(schema, dict):
        return [invalid_value(path, schema, "must be an object")]
    errors: list[FieldError] = []
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if is_root and schema.get("type") != "object":
        errors.append(invalid_value(f"{path}.type", schema.get("type", ""), "must be object at the root"))
    elif not schema.get("type") and not free:
        errors.append(required(f"{path}.type", "must not be empty for specified object fields"))
    if "pattern" in schema:
        try:
            compiled(schema["pattern"])
        except (re.error, TypeError) as error:
            errors.append(
                invalid_value(
                    f"{path}.pattern", schema["pattern"], f"must be a valid regular expression, but isn't: {error}"
                )
            )
    errors += _rule_errors(schema, path)
    for name, child in (schema.get("properties") or {}).items():
        errors += _schema_errors(child, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        errors += _schema_errors(schema["items"], f"{path}.items")
    if isinstance(schema.get("additionalProperties"), dict):
        errors += _schema_errors(schema["additionalProperties"], f"{path}.additionalProperties")
    return errors


def _rule_errors(schema: Manifest, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or []):
        for key in _EVALUATES_TO:
            source = rule.get(key)
            if source is None and key == "messageExpression":
                continue
            where = f"{path}.x-kubernetes-validations[{index}].{key}"
            if not source:
                errors.append(required(where, "rule is not specified"))
                continue
            if problem := _compilation_error(source, *_EVALUATES_TO[key]):
                errors.append(invalid_value(where, source, problem))
    return errors


def _compilation_error(source: str, kind: str, problem: str) -> str:
    try:
        return "" if program(source).return_type in (kind, "DYN") else problem
    except CelError as error:
        return f"compilation failed: {error}"


def _validate_update(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    now_spec, before = new["spec"], old["spec"]
    return [
        *unchanged("spec.group", now_spec.get("group"), before.get("group")),
        *unchanged("spec.scope", now_spec.get("scope"), before.get("scope")),
        *unchanged("spec.names.plural", now_spec["names"].get("plural"), before["names"].get("plural")),
        *unchanged("spec.names.kind", now_spec["names"].get("kind"), before["names"].get("kind")),
    ]


RULES = Rules(default=_default, create=_create, validate=_validate, validate_update=_validate_update)
