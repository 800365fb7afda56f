"""What a reservation has left, asked of a server that answers as the Compute API does."""

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ptoperator.capacity.cloud import Reservation
from ptoperator.capacity.gke.reservations import Reservations, reader
from ptoperator.settings import Settings

ZONE = "us-east5-a"
PATH = "/compute/v1/projects/p/zones/us-east5-a/reservations/r1"


@dataclass
class ComputeApi:
    """answers: what is served, by path: a document, or a status code. asked: the paths of all requests."""

    answers: dict[str, Any] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    endpoint: str = ""


@pytest.fixture(scope="module")
def server() -> Iterator[ComputeApi]:
    api = ComputeApi()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.paths.append(self.path)
            answer = api.answers.get(self.path, 404)
            self.send_response(answer if isinstance(answer, int) else 200)
            body = b"" if isinstance(answer, int) else json.dumps(answer).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    api.endpoint = f"http://127.0.0.1:{running.server_port}"
    yield api
    running.shutdown()
    running.server_close()


@pytest.fixture
def api(server: ComputeApi) -> ComputeApi:
    server.answers, server.paths = {}, []
    return server


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reservations(api: ComputeApi, clock: Clock) -> Reservations:
    settings = Settings(gke_project="p", compute_endpoint=api.endpoint, cloud_poll_seconds=10.0)
    return Reservations(settings, seconds=clock)


@pytest.mark.parametrize(
    ("name", "path", "answer"),
    [
        ("r1", PATH, {"specificReservation": {"count": "16", "inUseCount": "8"}}),
        ("r1", PATH, {"aggregateReservation": {"hostCount": 16, "inUseHostCount": 8}}),
        ("projects/q/reservations/r1", PATH.replace("/p/", "/q/"), {"resource": {"count": 16, "inUseCount": 8}}),
        ("r1/reservationBlocks/b1", f"{PATH}/reservationBlocks/b1", {"resource": {"count": 16, "inUseCount": 8}}),
        (
            "projects/p/reservations/r1/reservationBlocks/b1/reservationSubBlocks/s1",
            f"{PATH}/reservationBlocks/b1/reservationSubBlocks/s1",
            {"resource": {"count": 16, "inUseCount": 8}},
        ),
    ],
)  # fmt: skip
def test_instances_hosts_blocks_and_sub_blocks_are_counted(
    reservations: Reservations, api: ComputeApi, name: str, path: str, answer: object
) -> None:
    api.answers[path] = answer
    assert reservations(name, ZONE) == Reservation(name, ZONE, hosts=16, in_use=8)
    assert api.paths == [path]


def test_a_reservation_that_nobody_uses_yet_is_all_free(reservations: Reservations, api: ComputeApi) -> None:
    api.answers[PATH] = {"specificReservation": {"count": "16"}}
    usage = reservations("r1", ZONE)
    assert usage.free == 16


@pytest.mark.parametrize("answer", [404, {"aggregateReservation": {"vmFamily": "VM_FAMILY_CLOUD_TPU_POD_SLICE_CT5P"}}])
def test_what_is_not_there_or_not_counted_is_not_known(
    reservations: Reservations, api: ComputeApi, answer: object
) -> None:
    api.answers[PATH] = answer
    assert reservations("r1", ZONE) is None


def test_a_refusal_is_said_once_and_asked_again_after_ten_minutes(
    reservations: Reservations, api: ComputeApi, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    api.answers[PATH] = 403
    with caplog.at_level(logging.WARNING):
        for clock.seconds in (0.0, 60.0, 120.0):
            assert reservations("r1", ZONE) is None
        assert len(api.paths) == 1
        clock.seconds = 700.0
        assert reservations("r1", ZONE) is None
    assert len(api.paths) == 2
    (record,) = caplog.records
    assert "hint: grant compute.reservations.get" in record.getMessage()
    api.answers[PATH] = {"specificReservation": {"count": "16", "inUseCount": "0"}}
    clock.seconds = 1400.0
    assert reservations("r1", ZONE) is not None


def test_one_question_per_half_poll_serves_all_jobs(reservations: Reservations, api: ComputeApi, clock: Clock) -> None:
    api.answers[PATH] = {"specificReservation": {"count": "16"}}
    for clock.seconds in (0.0, 1.0, 4.9, 5.1):
        reservations("r1", ZONE)
    assert len(api.paths) == 2


@pytest.mark.parametrize("trouble", [500, 429])
def test_what_was_known_counts_while_the_api_does_not_answer(
    reservations: Reservations, api: ComputeApi, clock: Clock, trouble: int
) -> None:
    api.answers[PATH] = {"specificReservation": {"count": "16", "inUseCount": "8"}}
    before = reservations("r1", ZONE)
    api.answers[PATH] = trouble
    clock.seconds = 60.0
    assert reservations("r1", ZONE) == before


def test_a_server_that_is_away_is_no_error(clock: Clock) -> None:
    settings = Settings(gke_project="p", compute_endpoint="http://127.0.0.1:9", cloud_timeout_seconds=1.0)
    assert Reservations(settings, seconds=clock)("r1", ZONE) is None


def test_beside_a_gke_of_tests_nobody_looks_for_googles_credentials(api: ComputeApi) -> None:
    tests_own = Settings(gke_project="p", gke_endpoint="http://127.0.0.1:9")
    assert reader(tests_own)("r1", ZONE) is None
    api.answers[PATH] = {"specificReservation": {"count": "16"}}
    assert reader(replace(tests_own, compute_endpoint=api.endpoint))("r1", ZONE) is not None
