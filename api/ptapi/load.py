"""Convert documents to jobs and back: the only entry point, so that all other code can trust a job.

`parse_job` takes the output of a YAML parser or the API server, `load_job` the text of a file; `dump_job` writes a
file. An invalid job raises SpecError with every finding, never a parser's traceback. The one idea: this module accepts
exactly what the API server accepts from the CRD, so a file that passes on a laptop also passes `kubectl apply`.
"""

import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJob
from ptapi.spec.openapi_schema import structural
from ptapi.text import kubectl_yaml
from ptapi.text.messages import accepted, shown
from ptapi.validation import check_job
from ptapi.validation.parse_errors import MISSING, dotted, translate

SERVER_METADATA = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
)
"""Metadata that the API server writes; `uid`, which it writes too, identifies the owner of a run directory."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def load_job(text: str) -> PostTrainJob:
    """Parse the job in a YAML file. Raises SpecError; a syntax error names its line and column."""
    return parse_job(kubectl_yaml.read(text))


def parse_job(document: Any) -> PostTrainJob:
    """Parse a document into a job with defaults filled in. `status` is ignored: the operator writes it."""
    if not isinstance(document, dict):
        raise SpecError([Finding("job", shown(document), accepted(structural(PostTrainJob)))])
    document = without_nulls(without_server_fields(document))
    if unprintable := list(_unprintable(document, ())):
        raise SpecError(unprintable)
    try:
        job = PostTrainJob.model_validate(document, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        findings = translate(PostTrainJob, error, document)
        other_kind = [one for one in findings if one.field in ("apiVersion", "kind") and one.value != MISSING]
        raise SpecError(other_kind or findings) from None
    findings = check_job(job)
    if findings:
        raise SpecError(findings)
    return job


def parse_accepted(document: dict[str, Any]) -> PostTrainJob:
    """Parse a job that an earlier version accepted, and that has begun: limits and rules of this version do not apply.

    Fields that this version does not know are left out. Raises SpecError where a required field is missing.
    """
    if missing := [name for name in PostTrainJob.model_fields if to_camel(name) not in document]:
        raise SpecError([Finding(name, MISSING, "is required") for name in missing])
    job: PostTrainJob = _built(PostTrainJob, without_nulls(without_server_fields(document)))
    return job


def _built(annotation: Any, value: Any) -> Any:
    """Return a value of a field of that type, with models in place of maps."""
    arguments = [one for one in get_args(annotation) if one is not type(None)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        fields = {field.alias or name: (name, field.annotation) for name, field in annotation.model_fields.items()}
        known = [(*fields[key], below) for key, below in value.items() if key in fields]
        return annotation.model_construct(**{name: _built(kind, below) for name, kind, below in known})
    if isinstance(value, list) and get_origin(annotation) is list:
        return [_built(arguments[0], one) for one in value]
    is_wrapper = get_origin(annotation) not in (None, list, dict)
    return _built(arguments[0], value) if is_wrapper and isinstance(value, dict | list) else value


def without_server_fields(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without what only the API server and the operator write, as in `get -o yaml`."""
    kept = {name: value for name, value in document.items() if name != "status"}
    metadata = kept.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"] = {name: value for name, value in metadata.items() if name not in SERVER_METADATA}
    return kept


def _unprintable(node: Any, path: tuple[str | int, ...]) -> Iterator[Finding]:
    """Yield a finding per text, key or value, that no program takes as a word, a path or an argument."""
    if isinstance(node, dict | list):
        for step, below in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _unprintable(below, (*path, step))
            yield from _unprintable(step, path) if isinstance(step, str) else ()
    elif isinstance(node, str) and _CONTROL.search(node):
        yield Finding(dotted(path), shown(node), "text without control characters, and encodable as UTF-8")


def without_nulls(document: Any) -> Any:
    """Return the document without null fields: the API server treats them as absent."""
    if isinstance(document, dict):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    return [without_nulls(entry) for entry in document] if isinstance(document, list) else document


def manifest(job: PostTrainJob) -> dict[str, Any]:
    """Return the job as a Kubernetes object, with defaults filled in."""
    return job.model_dump(mode="json", by_alias=True, exclude_none=True)


def dump_job(job: PostTrainJob) -> str:
    """Return the job as YAML, which `load_job` parses back into the same job."""
    return kubectl_yaml.write(manifest(job))
