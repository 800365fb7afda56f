"""ptctl's cluster verbs under test: the whole program on a GKE and a Compute API of this process."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.builders.gke.compute import ComputeServer
from tests.builders.gke.model import GkeModel
from tests.builders.gke.server import PROJECT, GkeServer


@dataclass
class Google:
    """The APIs that ptctl asks."""

    model: GkeModel
    gke: GkeServer
    compute: ComputeServer


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """No cluster is there. A change takes a twentieth of a second."""
    model = GkeModel(time.monotonic, seconds=0.05, cluster=None)
    with GkeServer(model) as gke, ComputeServer() as compute:
        for name, value in (
            ("GOOGLE_CLOUD_PROJECT", PROJECT),
            ("GOOGLE_OAUTH_ACCESS_TOKEN", "ya29.token"),
            ("PTCTL_GKE_ENDPOINT", gke.endpoint),
            ("PTCTL_COMPUTE_ENDPOINT", compute.endpoint),
            ("PTCTL_POLL_SECONDS", "0.01"),
        ):
            monkeypatch.setenv(name, value)
        yield Google(model, gke, compute)
