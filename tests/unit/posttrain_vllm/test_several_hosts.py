"""The hosts of one vLLM server: what each is started with, and that they end together."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain_vllm import several_hosts
from posttrain_vllm.several_hosts import Followers, Leader
from ptapi.failures import ExitCode

KEY = "of-this-job"
LIMIT_S = 60.0
STAND_IN = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:])); sys.stdin.read()"
"""In place of vLLM: writes its flags into a file, and ends with its standard input."""


class Alone:
    """Other hosts that are gone, or not."""

    def __init__(self, *, are_lost: bool) -> None:
        self._are_lost = are_lost

    def is_lost_within(self, limit_s: float) -> bool:
        if not self._are_lost:
            time.sleep(min(limit_s, 0.01))
        return self._are_lost


def test_the_first_host_serves_and_the_others_have_no_server() -> None:
    first, second = (several_hosts.command(["vllm", "serve", "m"], rank, 2, "pod-0.job") for rank in (0, 1))
    shared = ["vllm", "serve", "m", "--distributed-executor-backend", "mp", "--nnodes", "2"]
    meeting = ["--master-addr", "pod-0.job", "--master-port", "29501"]
    assert first == [*shared, "--node-rank", "0", *meeting]
    assert second == [*shared, "--node-rank", "1", *meeting, "--headless"]


def test_a_host_that_ends_with_others_is_one_that_was_told_to_end() -> None:
    assert several_hosts.ENDED_WITH_OTHERS == ExitCode.PREEMPTED_SAVED
    assert several_hosts.FAILED == ExitCode.UNKNOWN


@pytest.mark.parametrize(
    ("script", "code"),
    [("raise SystemExit(3)", 3), ("pass", 1), ("import os; os.kill(os.getpid(), 9)", 137)],
    ids=["a crash", "an end without an error", "a signal"],
)
def test_a_server_that_ends_by_itself_has_failed(script: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_hosts, "SETTLE_S", 0.0)
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    assert several_hosts.run(child, Alone(are_lost=False)) == code


def test_a_server_whose_peer_is_lost_is_killed_and_no_failure() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    with child:
        assert several_hosts.run(child, Alone(are_lost=True)) == 75
        assert child.returncode == -signal.SIGKILL


@pytest.fixture
def followers() -> Iterator[Followers]:
    """The first host's end."""
    made = Followers(0, KEY)
    yield made
    made.close()


def joined(followers: Followers, key: str = KEY) -> Leader:
    leader = Leader(("127.0.0.1", followers.port), key)
    assert not followers.is_lost_within(0.05)
    return leader


def test_a_host_that_goes_is_missed_by_the_first_and_the_first_by_all(followers: Followers) -> None:
    one, other = joined(followers), joined(followers)
    assert not one.is_lost_within(0.0)
    one.close()
    assert followers.is_lost_within(LIMIT_S)
    followers.close()
    assert other.is_lost_within(LIMIT_S)
    other.close()


@pytest.mark.parametrize("greeting", [b"", b"of-this", b"of-another-job\n", b"GET / HTTP/1.1\r\n"])
def test_a_stranger_is_no_host_and_its_end_ends_nobody(followers: Followers, greeting: bytes) -> None:
    member = joined(followers)
    with socket.create_connection(("127.0.0.1", followers.port)) as stranger:
        stranger.sendall(greeting)
        assert not followers.is_lost_within(0.05)
    assert not followers.is_lost_within(0.05)
    assert not member.is_lost_within(0.0)
    member.close()


def test_a_key_may_come_in_pieces(followers: Followers) -> None:
    with socket.create_connection(("127.0.0.1", followers.port)) as member:
        for piece in (b"of-this", b"-job\n"):
            member.sendall(piece)
            assert not followers.is_lost_within(0.05)
    assert followers.is_lost_within(LIMIT_S)


def _reserved() -> socket.socket:
    """A socket that keeps its port for whoever listens there with SO_REUSEADDR."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("", 0))
    return kept


def _text(file: Path) -> str:
    deadline = time.monotonic() + LIMIT_S
    while not file.exists() or not file.read_text():
        assert time.monotonic() < deadline, file
        time.sleep(0.01)
    return file.read_text()


def test_two_hosts_start_their_parts_answer_probes_and_end_together(tmp_path: Path) -> None:
    with _reserved() as meeting, _reserved() as health:
        ports = [kept.getsockname()[1] for kept in (meeting, health)]

        def host(rank: int) -> "subprocess.Popen[bytes]":
            words = ["--rank", str(rank), "--hosts", "2", "--leader", f"127.0.0.1:{ports[0]}", "--health"]
            part = [sys.executable, "-c", STAND_IN, str(tmp_path / str(rank)), "--port", "8477"]
            return subprocess.Popen(
                [sys.executable, "-m", several_hosts.__name__, *words, str(ports[1]), "--", *part],
                stdin=subprocess.PIPE,
                env={**os.environ, several_hosts.KEY: KEY},
            )

        first, second = host(0), host(1)
        try:
            assert _text(tmp_path / "0").startswith("--port 8477 --distributed-executor-backend mp --nnodes 2")
            assert "--headless" not in _text(tmp_path / "0")
            assert _text(tmp_path / "1").endswith("--headless")
            probe = http.client.HTTPConnection("127.0.0.1", ports[1], timeout=LIMIT_S)
            probe.request("GET", "/health")
            assert probe.getresponse().status == 200
            probe.close()
            second.terminate()
            assert (second.wait(LIMIT_S), first.wait(LIMIT_S)) == (75, 75)
        finally:
            for process in (first, second):
                process.kill()
                process.communicate(timeout=LIMIT_S)
