"""A PostTrainJob as Python writes it: the spec's fields as keyword arguments, next to name, namespace and labels.

The class inherits the fields of `ptapi.spec.PostTrainJobSpec`, so that editors complete and type checkers check them.
What is passed becomes a document, and `ptapi.load.parse_job` checks it as it checks a file: one edge for both.
Functions become the text of Python files in that document (`packing`), so that the job is complete in itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from posttrain import function_packing
from posttrain.errors import translated
from ptapi import spec
from ptapi.errors import Finding, SpecError
from ptapi.load import parse_job
from ptapi.spec.openapi_schema import Schema, child, structural
from ptapi.text import kubectl_yaml

Manifest = dict[str, Any]


class PostTrainJob(spec.PostTrainJobSpec):
    """A job to submit; parts may be models of `posttrain.spec` or dicts, keys in snake_case or camelCase.

    A reward, a tool or an environment may be a function or a class; its code goes into the job.
    Raises SpecError with every finding at once: field, value, what is accepted; Error for what cannot travel.
    """

    name: str
    """Name of the job and of its run directory."""
    namespace: str | None = None
    """Namespace; unset: the client's."""
    labels: dict[str, str] = {}
    """Labels."""
    annotations: dict[str, str] = {}
    """Annotations."""

    if not TYPE_CHECKING:  # type checkers take the fields above and those of the spec

        def __init__(self, **fields: Any) -> None:
            metadata = {name: fields.pop(name) for name in _METADATA if name in fields}
            document = _document(metadata, fields)
            job = parse_job(document)
            given = {name: getattr(job.spec, name) for name in job.spec.model_fields_set}
            super().__init__(**job.metadata.model_dump(exclude_unset=True), **given)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> PostTrainJob:
        """Return the job in a YAML or JSON file, as `ptctl workload create -f` takes it."""
        from ptctl.jobs.definition import file

        with translated():
            manifest, _ = file.without_server_fields(file.read(fspath(path)))
        job = parse_job(manifest)
        parts = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return cls(**job.metadata.model_dump(exclude_unset=True), **parts)

    def manifest(self) -> Manifest:
        """Return the Kubernetes object: what was set, without defaults."""
        fields = self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
        metadata = {name: fields.pop(name) for name in _METADATA if name in fields}
        return {
            "apiVersion": f"{spec.API_GROUP}/{spec.API_VERSION}",
            "kind": spec.KIND,
            "metadata": metadata,
            "spec": fields,
        }

    def to_yaml(self) -> str:
        """Return the job as the YAML of a file for `kubectl apply` or `ptctl workload create -f`."""
        return kubectl_yaml.write(self.manifest())


_METADATA = ("name", "namespace", "labels", "annotations")


def _document(metadata: Manifest, fields: Manifest) -> Manifest:
    findings: list[Finding] = []
    document = _in_camel_case(structural(spec.PostTrainJobSpec), fields, "spec", findings)
    if findings:
        raise SpecError(findings)
    return {
        "apiVersion": f"{spec.API_GROUP}/{spec.API_VERSION}",
        "kind": spec.KIND,
        "metadata": metadata,
        "spec": document,
    }


def _in_camel_case(schema: Schema | None, value: Any, where: str, findings: list[Finding]) -> Any:
    """Return models as dicts, functions as files, and keys that are fields in camelCase; keys of maps stay."""
    if callable(value) and (fields := (schema or {}).get("properties", {})).keys() & {"python", "code"}:
        return _packed(value) if "code" in fields else {"python": _packed(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, list | tuple):
        entries = enumerate(value)
        return [_in_camel_case(schema and child(schema, 0), one, f"{where}[{i}]", findings) for i, one in entries]
    if not isinstance(value, Mapping):
        return value
    document: Manifest = {}
    fields = (schema or {}).get("properties", {})
    for key, below in value.items():
        name = to_camel(key) if isinstance(key, str) and to_camel(key) in fields else key
        if name in document:
            findings.append(
                Finding(f"{where}.{name}", repr(below), "is given twice; accepted: snake_case or camelCase")
            )
        document[name] = _in_camel_case(schema and child(schema, name), below, f"{where}.{name}", findings)
    return document


def _packed(function: Any) -> Manifest:
    """Return a reward, a tool or an environment with its code in the job."""
    name, code = function_packing.python_file(function)
    return {"code": code, "className" if isinstance(function, type) else "function": name}
