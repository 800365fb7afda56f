"""What Google refuses, as errors of `ptctl`: one line, what to do, and whether asking again may help."""

from __future__ import annotations

from google.api_core import exceptions

from ptapi.failures import FailureClass
from ptctl import errors
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.gke.convert import error_code, refusal_of

_HINTS: tuple[tuple[str, str], ...] = (
    ("has not been used in project", "gcloud services enable container.googleapis.com compute.googleapis.com"),
    ("requires billing to be enabled", "link the project to a billing account"),
    ("iam.serviceAccounts.actAs", "your account needs roles/iam.serviceAccountUser on the nodes' service account"),
    ("PERMISSION_DENIED", "your account needs roles/container.admin; `ptctl cluster doctor` names each permission"),
    ("UNAUTHENTICATED", "log in again: gcloud auth application-default login"),
    ("quota ", "ask for more of that quota, or choose another region or --spot"),
    ("Network", "--network and --subnetwork name networks of the project"),
)  # fmt: skip
_TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED", "UNKNOWN"})


class CloudError(errors.CliError):
    """Google refuses a request. grpc_code: Google's name of the error. is_transient: asking again may help."""

    def __init__(self, grpc_code: str, message: str, hint: str = "", *, is_transient: bool = False) -> None:
        super().__init__(message, hint)
        self.grpc_code = grpc_code
        self.is_transient = is_transient
        if grpc_code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
            self.code = errors.NOT_AUTHORISED


class MissingInCloudError(CloudError):
    """The named thing does not exist in the cloud."""

    code = errors.NOT_FOUND


class ConflictError(CloudError):
    """A thing of that name exists already."""


def cloud_error(error: exceptions.GoogleAPICallError) -> CloudError:
    """Return the error of a call, in one line."""
    code, failure = error_code(error), refusal_of(error)
    message, hint = described(failure)
    if code == "NOT_FOUND":
        return MissingInCloudError(code, message, hint)
    if code == "ALREADY_EXISTS":
        return ConflictError(code, message, hint, is_transient=True)
    is_transient = not failure.is_definite and (code in _TRANSIENT or is_busy(failure))
    return CloudError(code, message, hint, is_transient=is_transient)


def described(failure: CloudFailure) -> tuple[str, str]:
    """Return the failure in one line with its code, and what to do about it."""
    message = failure.message.partition("; hint: ")[0]
    text = f"{failure.code} {message}"
    hint = next((hint for mark, hint in _HINTS if mark in text), "")
    if failure.kind is FailureClass.STOCKOUT:
        hint = "run the same command again later, or use another --zone, --flex or --reservation"
    is_clear = failure.code in message or failure.kind is FailureClass.QUOTA
    return (message if is_clear else f"{failure.code}: {message}"), hint


def is_busy(failure: CloudFailure) -> bool:
    """Return True if GKE refuses a change because of another one."""
    return failure.kind is None and "operation" in failure.message.lower()
