"""Convert documents to jobs and back: the only entry point, so that all other code can trust a job.

`parse_job` takes the output of a YAML parser or the API server, `load_job` the text of a file; `dump_job` writes a
file. An invalid job raises SpecError with every finding, never a parser's traceback. The one idea: this module accepts
exactly what the API server accepts from the CRD, so a file that passes on a laptop also passes `kubectl apply`.
"""

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
    """Parse the job in a YAML file. Raises SpecError; a syntax error names its line and column."""
    return parse_job(kubectl_yaml.read(text))


def parse_job(document: Any) -> PostTrainJob:
    """Parse a document into a job with defaults filled in. `status` is ignored: the operator writes it."""
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
