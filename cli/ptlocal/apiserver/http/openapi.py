"""OpenAPI v3 documents, one per group and version.

`kubectl explain` shows them, and kubectl learns from them that the server validates fields itself (the
`fieldValidation` parameter of PATCH). They contain only the paths that clients look at. OpenAPI v2 is served as plain
JSON with definitions only.
"""

import copy
import hashlib
from typing import Any

from ptlocal.apiserver.kinds import builtin_schemas
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.kinds.registry import Registry
from ptlocal.apiserver.storage.store import encode

Manifest = dict[str, Any]
_BUILTIN_PREFIX = "io.k8s."
_QUERY_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")


class Documents:
    """The documents of the current registry; built on request and cached until a definition changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._version = -1
        self._cache: dict[str, bytes] = {}

    def index(self) -> bytes:
        """Return the index of the v3 documents."""
        paths = {}
        for name, versions in self._registry.groups().items():
            for version in versions:
                path = f"apis/{name}/{version}" if name else f"api/{version}"
                digest = hashlib.sha256(self._document(path)).hexdigest()[:32].upper()
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return encode({"paths": paths})

    def v3(self, path: str) -> bytes | None:
        """Return the v3 document of a group version, or None."""
        return self._document(path) if self._kinds(path) else None

    def v2(self) -> bytes:
        """Return the v2 document."""
        definitions: Manifest = {}
        for kind in self._registry.kinds():
            definitions.update(_schemas(kind, "#/definitions/"))
        return encode({"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": definitions})

    def _kinds(self, path: str) -> list[Kind]:
        return [
            k
            for k in self._registry.kinds()
            if path == (f"apis/{k.group}/{k.version}" if k.group else f"api/{k.version}")
        ]

    def _document(self, path: str) -> bytes:
        if self._version != self._registry.version:
            self._cache, self._version = {}, self._registry.version
        if path not in self._cache:
            self._cache[path] = encode(_document(self._kinds(path)))
        return self._cache[path]


_INFO = {"title": "Kubernetes", "version": "posttrain-local"}


def _document(kinds: list[Kind]) -> Manifest:
    schemas: Manifest = {}
    paths: Manifest = {}
    for kind in kinds:
        schemas.update(_schemas(kind, "#/components/schemas/"))
        paths.update(_paths(kind))
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def _paths(kind: Kind) -> Manifest:
    base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    space = "/namespaces/{namespace}" if kind.namespaced else ""
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in _QUERY_PARAMETERS
    ]
    ok = {"200": {"description": "OK"}}
    by_verb = {
        verb: {
            "operationId": f"{verb}{kind.kind}",
            "x-kubernetes-action": verb,
            "x-kubernetes-group-version-kind": gvk,
            "parameters": parameters,
            "responses": ok,
        }
        for verb in ("get", "put", "patch", "delete")
    }
    create = {
        "operationId": f"create{kind.kind}",
        "x-kubernetes-action": "post",
        "x-kubernetes-group-version-kind": gvk,
        "parameters": parameters,
        "responses": ok,
    }
    return {f"{base}{space}/{kind.plural}": {"post": create}, f"{base}{space}/{kind.plural}/{{name}}": by_verb}


def _schemas(kind: Kind, prefix: str) -> Manifest:
    if kind.is_custom:
        return _custom_schemas(kind, prefix)
    definitions: Manifest = {}
    name = next(name for name, schema in builtin_schemas.linked().items() if schema is kind.schema)
    _collect(name, prefix, definitions)
    definitions[f"{_BUILTIN_PREFIX}{name}"]["x-kubernetes-group-version-kind"] = [
        {"group": kind.group, "version": kind.version, "kind": kind.kind}
    ]
    return definitions


def _custom_schemas(kind: Kind, prefix: str) -> Manifest:
    definitions: Manifest = {}
    _collect("ObjectMeta", prefix, definitions)
    schema = copy.deepcopy(kind.schema)
    properties = schema.setdefault("properties", {})
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {
        "allOf": [{"$ref": f"{prefix}{_BUILTIN_PREFIX}ObjectMeta"}],
        "default": {},
        "description": "Standard object metadata.",
    }
    schema["x-kubernetes-group-version-kind"] = [{"group": kind.group, "version": kind.version, "kind": kind.kind}]
    name = f"{'.'.join(reversed(kind.group.split('.')))}.{kind.version}.{kind.kind}"
    return {**definitions, name: schema}


def _collect(name: str, prefix: str, definitions: Manifest) -> None:
    """Return a definition and everything it refers to, with this document's references."""
    key = f"{_BUILTIN_PREFIX}{name}"
    if key in definitions:
        return
    schema = copy.deepcopy(builtin_schemas.unlinked()[name])
    definitions[key] = schema
    for reference in _rewrite(schema, prefix):
        _collect(reference, prefix, definitions)


def _rewrite(schema: Manifest, prefix: str) -> list[str]:
    """Turn `$ref: X` into `allOf: [{$ref: <prefix>X}]`, in place; return the names."""
    names: list[str] = []
    children = [*schema.get("properties", {}).values()]
    children += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    for child in children:
        if child.get("format") == "micro-time":
            child["format"] = "date-time"  # the name of times with six decimals
        if "$ref" in child:
            names.append(child["$ref"])
            child["allOf"] = [{"$ref": f"{prefix}{_BUILTIN_PREFIX}{child.pop('$ref')}"}]
        else:
            names += _rewrite(child, prefix)
    return names
