"""A job's services as the trainer reaches them: addresses, which replica is called, and when the first one answers."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ptapi.run_directory import SERVICES_ENV
from pttrainer.errors import ConfigError, ServiceLost
from pttrainer.runtime import http_client
from pttrainer.runtime.services import first_answer
from pttrainer.runtime.services.addresses import addresses
from pttrainer.runtime.services.replicas import Replicas

FIELD = "spec.rewards[0].judge.service"


def environ(value: Any) -> dict[str, str]:
    return {SERVICES_ENV: value if isinstance(value, str) else json.dumps(value)}


def test_a_service_has_the_addresses_of_its_replicas_in_their_order() -> None:
    both = environ({"judge": ["http://a:8000", "https://b/"], "game": ["http://c"]})
    assert addresses("judge", FIELD, both) == ["http://a:8000", "https://b"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", r"judge.service: judge: the environment variable POSTTRAIN_SERVICES is not set; hint: .*\"judge\": \["),
        ("{", r"environment: POSTTRAIN_SERVICES: '\{': is not JSON"),
        ({"game": ["http://c"]}, r"judge: POSTTRAIN_SERVICES has no such service; accepted: game; hint"),
        ([], r"has no such service; accepted: none; hint"),
        ({"judge": []}, r"POSTTRAIN_SERVICES: judge: \[\]: accepted: URLs"),
        ({"judge": ["a:8000"]}, r"POSTTRAIN_SERVICES: judge: \['a:8000'\]: accepted: URLs"),
    ],
)
def test_a_missing_or_wrong_address_names_the_field_and_how_it_is_set_by_hand(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        addresses("judge", FIELD, environ(value))


def test_calls_go_to_the_replica_with_the_fewest() -> None:
    replicas = Replicas(["a", "b", "c"])
    assert [replicas.take() for _ in range(4)] == [0, 1, 2, 0]
    replicas.release(1)
    assert replicas.take() == 1
    assert replicas.take(first=2) == 2  # of b and c, which have one call each


def test_a_replica_that_did_not_answer_is_left_out_for_a_while_and_then_called_again() -> None:
    replicas = Replicas(["a", "b"], away_s=0.2)
    assert replicas.lost(0)
    assert not replicas.lost(0)
    assert [replicas.take() for _ in range(3)] == [1, 1, 1]
    time.sleep(0.25)
    assert [replicas.take() for _ in range(3)] == [0, 1, 1]  # one call shows whether it is back
    assert replicas.answered(0)
    assert not replicas.answered(0)
    assert [replicas.take() for _ in range(2)] == [0, 0]


def test_where_no_replica_answers_the_one_that_is_out_the_longest_is_called() -> None:
    replicas = Replicas(["a", "b"], away_s=60.0)
    replicas.lost(1)
    replicas.lost(0)
    assert replicas.take() == 1


class Endpoint:
    """Answers with the next status of a list, the last one again and again."""

    def __init__(self, *statuses: int) -> None:
        left = list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def free_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_the_first_replica_that_is_ready_ends_the_wait_and_the_others_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_answer, "LOOK_S", 0.01)
    monkeypatch.setattr(first_answer, "NOTE_S", 0.0)
    loading, replicas = Endpoint(503, 503, 404), None
    notes, beats = [], []
    try:
        replicas = Replicas([free_url(), loading.url])
        assert first_answer.wait("judge", FIELD, replicas, notes.append, lambda: beats.append(1)) == 1
    finally:
        loading.close()
    assert "waiting for service judge has not answered" in notes[0]
    assert len(notes) == len(beats) == 5  # three of the first replica, two of the second
    assert [replicas.take() for _ in range(2)] == [1, 1]


def test_a_service_that_never_answers_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_answer, "LOOK_S", 0.01)
    monkeypatch.setattr(first_answer, "LIMIT_S", 0.05)
    replicas = Replicas([free_url()])
    with pytest.raises(ServiceLost, match=r"judge.service: service judge has not answered for .* refused; hint"):
        first_answer.wait("judge", FIELD, replicas, lambda line: None, lambda: None)


def test_a_connection_stands_soon_or_not_at_all_and_notices_a_machine_that_goes_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = http_client._Connecting("127.0.0.1", listening.getsockname()[1], timeout=77.0)
        connection.connect()
        assert connection.sock.gettimeout() == 77.0
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        connection.close()
