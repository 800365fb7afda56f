"""Which errors of the hub, of buckets and of the network may pass by themselves."""

import socket
from contextlib import AbstractContextManager

import pytest
import requests
from google.api_core import exceptions as google
from google.auth import exceptions as auth
from huggingface_hub import errors as hub

from pttrainer.errors import ConfigError, NetworkError, TrainerError
from pttrainer.runtime.io.huggingface import hub_errors
from pttrainer.runtime.io.outages import is_outage
from pttrainer.runtime.reporting import termination


def answered(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"{status}", response=response)


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(-3, "Temporary failure in name resolution"),
        ConnectionResetError("reset by peer"),
        TimeoutError("timed out"),
        requests.ConnectionError("no route"),
        requests.ReadTimeout("slow"),
        answered(429),
        answered(503),
        google.ServiceUnavailable("busy"),
        google.TooManyRequests("slow down"),
        google.RetryError("gave up", cause=None),
        auth.TransportError("metadata server"),
    ],
    ids=repr,
)
def test_what_may_pass_by_itself_is_an_outage(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize(
    "error",
    [
        answered(403),
        answered(404),
        google.Forbidden("no right"),
        google.NotFound("no bucket"),
        auth.DefaultCredentialsError("none"),
        hub.OfflineModeIsEnabled("HF_HUB_OFFLINE=1"),
        ValueError("a bug"),
    ],
    ids=repr,
)
def test_what_stays_wrong_is_none(error: Exception) -> None:
    assert not is_outage(error)


def test_the_client_hides_the_outage_behind_its_own_error() -> None:
    with pytest.raises(NetworkError, match=r"spec\.model\.uri: cannot be fetched") as raised, _model_errors():
        raise hub.LocalEntryNotFoundError("not in the cache") from requests.ConnectionError("no route")
    assert termination.exit_code(raised.value) == 68


def test_a_request_that_the_hub_refuses_stays_the_jobs_mistake() -> None:
    with pytest.raises(TrainerError) as raised, _model_errors():
        raise answered(401)
    assert type(raised.value) is ConfigError


def _model_errors() -> AbstractContextManager[None]:
    return hub_errors("spec.model.uri", "model", ConfigError)
