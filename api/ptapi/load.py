"""From a document to a job and back: the only way in, so that everything past it may trust what it holds.

`parse_job` takes what YAML or the API server gives, `load_job` takes the text of a file, `dump_job` writes one.
A wrong job raises SpecError with every finding, never a traceback of the parser. The one idea: what is accepted
here is what the API server accepts from the CRD, so a file that passes on a laptop passes `kubectl apply`.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJob
from ptapi.spec.openapi_schema import structural
from ptapi.text import kubectl_yaml
from ptapi.text.messages import accepted, shown
from ptapi.validation import check_job
from ptapi.validation.parse_errors import translate


def load_job(text: str) -> PostTrainJob:
    """The job in a YAML file. Raises SpecError; a syntax error names its line and column."""
    return parse_job(kubectl_yaml.read(text))


def parse_job(document: Any) -> PostTrainJob:
    """The job that a document describes, defaults filled in. `status` is ignored: the operator writes it."""
    if not isinstance(document, dict):
        raise SpecError([Finding("job", shown(document), accepted(structural(PostTrainJob)))])
    document = without_nulls({name: value for name, value in document.items() if name != "status"})
    try:
        job = PostTrainJob.model_validate(document, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError(translate(PostTrainJob, error, document)) from None
    findings = check_job(job)
    if findings:
        raise SpecError(findings)
    return job


def without_nulls(document: Any) -> Any:
    """The document as the API server reads it: a field that is null is a field that is not there."""
    if isinstance(document, dict):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    return [without_nulls(entry) for entry in document] if isinstance(document, list) else document


def manifest(job: PostTrainJob) -> dict[str, Any]:
    """The job as a Kubernetes object, defaults filled in."""
    return job.model_dump(mode="json", by_alias=True, exclude_none=True)


def dump_job(job: PostTrainJob) -> str:
    """The job as YAML, which `load_job` reads back as the same job."""
    return kubectl_yaml.write(manifest(job))
