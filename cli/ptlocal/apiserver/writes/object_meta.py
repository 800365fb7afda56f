"""ObjectMeta: what the server sets itself, and what it refuses.

Pure functions over plain dicts, except for the clock and random uids and names.
"""

import random
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ptlocal.apiserver.errors import FieldError, forbidden_field, invalid_value, required
from ptlocal.apiserver.kinds.builtin_kinds import Kind

Manifest = dict[str, Any]
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_RE = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LABEL_RE = re.compile(_LABEL)
_SERVICE_RE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED_RE = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE_RE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    rf"'{_LABEL}(\.{_LABEL})*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SERVICE_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
MAX_ANNOTATIONS_BYTES = 256 * 1024
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so no words; no characters that look alike
_SERVER_SET = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "resourceVersion",
    "generation",
)


def now(plus_s: float = 0.0) -> str:
    """Return the current time as RFC 3339."""
    return (datetime.now(UTC) + timedelta(seconds=plus_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def generated_name(prefix: str) -> str:
    """Return the prefix with a random suffix."""
    return prefix[:58] + "".join(random.choices(_SUFFIX_LETTERS, k=5))


def stamp_new(meta: Manifest, kind: Kind) -> None:
    """Set the metadata of a new object, in place."""
    for key in _SERVER_SET:
        meta.pop(key, None)
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = now()
    if kind.has_generation:
        meta["generation"] = 1


def keep_server_set(meta: Manifest, old: Mapping[str, Any]) -> None:
    """Restore the metadata that only the server sets, in place: an update cannot change it."""
    for key in (*_SERVER_SET, "generateName"):
        meta.pop(key, None)
        if key in old:
            meta[key] = old[key]


def tidy(meta: Manifest) -> None:
    """Remove empty maps and lists, like Go's omitempty, in place."""
    for key in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields", "generateName"):
        if key in meta and not meta[key]:
            del meta[key]


def errors_in(meta: Manifest, kind: Kind) -> list[FieldError]:
    """Return the errors in the metadata."""
    errors = name_errors(meta.get("name", ""), kind)
    errors += _label_errors(meta.get("labels") or {}, "metadata.labels")
    errors += _annotation_errors(meta.get("annotations") or {})
    errors += _owner_errors(meta.get("ownerReferences") or [])
    errors += _finalizer_errors(meta.get("finalizers") or [])
    return errors


def name_errors(name: str, kind: Kind) -> list[FieldError]:
    """Return the errors in the name."""
    path = "metadata.name"
    if not name:
        return [required(path, "name or generateName is required")]
    if kind.group == "rbac.authorization.k8s.io":
        bad = name in (".", "..") or "/" in name or "%" in name
        return [invalid_value(path, name, "may not be '.' or '..' nor contain '/' or '%'")] if bad else []
    if kind.plural == "services" and not kind.group:
        return _matching(path, name, _SERVICE_RE, _SERVICE_RULE, 63)
    if kind.dns_label_name:
        return _matching(path, name, _LABEL_RE, _LABEL_RULE, 63)
    return _matching(path, name, _SUBDOMAIN_RE, _SUBDOMAIN_RULE, 253)


def _matching(path: str, value: str, pattern: re.Pattern[str], rule: str, most: int) -> list[FieldError]:
    errors = []
    if len(value) > most:
        errors.append(invalid_value(path, value, f"must be no more than {most} bytes"))
    if not pattern.fullmatch(value):
        errors.append(invalid_value(path, value, rule))
    return errors


def qualified_name_errors(path: str, name: str) -> list[FieldError]:
    """Return the errors in a label or annotation key."""
    prefix, slash, rest = name.rpartition("/")
    errors = []
    if slash and not prefix:
        errors.append(invalid_value(path, name, "prefix part must be non-empty"))
    elif slash and not _SUBDOMAIN_RE.fullmatch(prefix):
        errors.append(invalid_value(path, name, f"prefix part {_SUBDOMAIN_RULE}"))
    if not rest:
        errors.append(invalid_value(path, name, "name part must be non-empty"))
    elif len(rest) > 63:
        errors.append(invalid_value(path, name, "name part must be no more than 63 bytes"))
    if not _QUALIFIED_RE.fullmatch(rest):
        errors.append(invalid_value(path, name, _QUALIFIED_RULE))
    return errors


def _label_errors(labels: Mapping[str, str], path: str) -> list[FieldError]:
    errors = []
    for key, value in labels.items():
        errors += qualified_name_errors(path, key)
        if len(value) > 63:
            errors.append(invalid_value(path, value, "must be no more than 63 bytes"))
        if not _LABEL_VALUE_RE.fullmatch(value):
            errors.append(invalid_value(path, value, _LABEL_VALUE_RULE))
    return errors


def _annotation_errors(annotations: Mapping[str, str]) -> list[FieldError]:
    errors = []
    for key in annotations:
        errors += qualified_name_errors("metadata.annotations", key.lower())
    total = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if total > MAX_ANNOTATIONS_BYTES:
        errors.append(
            FieldError(
                "metadata.annotations",
                "FieldValueTooLong",
                f"Too long: may not be more than {MAX_ANNOTATIONS_BYTES} bytes",
            )
        )
    return errors


def _owner_errors(owners: list[Manifest]) -> list[FieldError]:
    errors = []
    for owner in owners:
        for key, word in (("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")):
            if not owner.get(key):
                path = f"metadata.ownerReferences.{key}"
                errors.append(invalid_value(path, owner.get(key, ""), f"{word} must not be empty"))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        errors.append(
            invalid_value(
                "metadata.ownerReferences",
                owners,
                "Only one reference can have Controller set "
                f'to true. Found "true" in references for {controllers[0].get("name")} '
                f"and {controllers[1].get('name')}",
            )
        )
    return errors


def _finalizer_errors(finalizers: list[str]) -> list[FieldError]:
    errors = []
    for index, name in enumerate(finalizers):
        errors += qualified_name_errors("metadata.finalizers", name)
        if "/" not in name and name not in ("foregroundDeletion", "orphan", "kubernetes") and "." not in name:
            errors.append(
                invalid_value(
                    f"metadata.finalizers[{index}]",
                    name,
                    "name is neither a standard finalizer name nor is it fully qualified",
                )
            )
    return errors


def added_finalizers(meta: Mapping[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """Return an error for new finalizers: once deletion has begun they may only be removed."""
    if not old.get("deletionTimestamp"):
        return []
    added = [f for f in meta.get("finalizers") or [] if f not in (old.get("finalizers") or [])]
    if not added:
        return []
    listed = ", ".join(f'"{name}"' for name in added)
    return [
        forbidden_field(
            "metadata.finalizers",
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}",
        )
    ]
