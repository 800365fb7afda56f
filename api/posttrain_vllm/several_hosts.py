"""A host of a vLLM server on several: starts `vllm serve` there, and ends with the servers of the other hosts.

    python3 -m posttrain_vllm.several_hosts --rank 1 --hosts 2 --leader HOST:PORT --health 8477 -- vllm serve MODEL …

vLLM's multiprocessing over hosts (`--nnodes`, read in vLLM 0.32.0) has one host that serves and others without a
server (`--headless`). It does not learn that another host is gone, nor take a new one in. So each host holds a
connection with the first as long as its part runs; when one breaks, all others end as if they had been told to, which
their Job does not count, and it makes all of them anew. Whoever connects shows the server's key (VLLM_API_KEY).

Runs in vLLM's image, with the standard library alone. Left out: how many chips each host has, which the flags after
`--` say.
"""

import argparse
import hmac
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

ENDED_WITH_OTHERS = 75
"""Exit code of a host whose peer has ended: posttrain's "stopped", which Jobs of samplers do not count."""
FAILED = 1
"""Exit code of a host whose part ended with 0, which no server does by itself."""
KEY = "VLLM_API_KEY"
MASTER_PORT = 29501
"""Where the processes of all hosts meet, on the first one; vLLM's own default."""
LOOK_S, RETRY_S = 0.5, 1.0
SETTLE_S = 5.0
"""How long the end of another host may take to show, once the own part has ended: it may be the cause."""
_LONGEST_KEY = 4096
_SIGNALLED = 128


class Peers(Protocol):
    """The other hosts."""

    def is_lost_within(self, limit_s: float) -> bool:
        """Return True if one of them has ended, or ends within so many seconds."""
        ...


class Followers:
    """The other hosts, as the first sees them: each holds a connection, after it has shown the key."""

    def __init__(self, port: int, key: str) -> None:
        self._key, self._greetings = key.encode() + b"\n", dict[socket.socket, bytes]()
        self._members: set[socket.socket] = set()
        self._listener = socket.create_server(("", port))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port = int(self._listener.getsockname()[1])

    def is_lost_within(self, limit_s: float) -> bool:
        """Return True if a host that had come is gone; meanwhile others may come."""
        deadline = time.monotonic() + limit_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            for key, _ in self._selector.select(left_s):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                elif self._has_ended(connection):
                    return True
            if time.monotonic() >= deadline:
                return False

    def close(self) -> None:
        """Let all connections go."""
        for connection in (self._listener, *self._greetings, *self._members):
            connection.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # gone before it was taken
        connection.setblocking(False)
        _keep_alive(connection)
        self._greetings[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _has_ended(self, connection: socket.socket) -> bool:
        """Take what a connection says; return True if it was a host's, and is over."""
        try:
            text = connection.recv(_LONGEST_KEY)
        except BlockingIOError:
            return False
        except OSError:
            text = b""
        if connection in self._members:
            return not text
        greeting = self._greetings[connection] + text
        if hmac.compare_digest(greeting, self._key):
            del self._greetings[connection]
            self._members.add(connection)
        elif text and self._key.startswith(greeting):
            self._greetings[connection] = greeting
        else:  # a stranger
            self._selector.unregister(connection)
            del self._greetings[connection]
            connection.close()
        return False


class Leader:
    """The first host, as another sees it."""

    def __init__(self, address: tuple[str, int], key: str) -> None:
        self._connection = _connected(address)
        self._connection.settimeout(None)
        _keep_alive(self._connection)
        self._connection.sendall(key.encode() + b"\n")

    def is_lost_within(self, limit_s: float) -> bool:
        """Return True if it has ended, or ends within so many seconds."""
        if not select.select([self._connection], [], [], limit_s)[0]:
            return False
        try:
            return not self._connection.recv(1)
        except OSError:
            return True

    def close(self) -> None:
        """Let the connection go."""
        self._connection.close()


def command(words: Sequence[str], rank: int, hosts: int, leader: str) -> list[str]:
    """Return the command of one host; words: that of a server on one host, without what the hosts differ in."""
    flags = ["--distributed-executor-backend", "mp", "--nnodes", str(hosts), "--node-rank", str(rank)]
    flags += ["--master-addr", leader, "--master-port", str(MASTER_PORT)]
    return [*words, *flags, *(["--headless"] if rank else [])]


def run(child: "subprocess.Popen[bytes]", peers: Peers) -> int:
    """Wait until this host's part or another's ends; return the exit code."""
    try:
        while (code := child.poll()) is None:
            if peers.is_lost_within(LOOK_S):
                return ENDED_WITH_OTHERS
        if peers.is_lost_within(SETTLE_S):
            return ENDED_WITH_OTHERS
        return code if code > 0 else FAILED if code == 0 else _SIGNALLED - code
    finally:
        end(child)


def end(child: "subprocess.Popen[bytes]") -> None:
    """Kill a part with its own processes: it has nothing to save."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def serve_health(port: int) -> int:
    """Answer /health from a thread, as the first host's server does: all pods have the same probes. Return the port."""
    server = ThreadingHTTPServer(("", port), _Health)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return int(server.server_address[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one host to its end; return the exit code."""
    parser = argparse.ArgumentParser(prog="posttrain_vllm.several_hosts", description="one host of a vLLM server")
    parser.add_argument("--rank", type=int, required=True, help="which of the hosts, from 0")
    parser.add_argument("--hosts", type=int, required=True, help="how many there are")
    parser.add_argument(
        "--leader", required=True, metavar="HOST:PORT", help="where the first host waits for the others"
    )
    parser.add_argument("--health", type=int, required=True, help="port of the server, where the others answer probes")
    parser.add_argument("words", nargs="+", metavar="-- COMMAND", help="the server's command on one host")
    options = parser.parse_args(arguments)
    host, _, port = options.leader.rpartition(":")
    signal.signal(signal.SIGTERM, _stop)
    peers: Peers
    try:
        if options.rank == 0:
            peers = Followers(int(port), os.environ[KEY])
        else:
            serve_health(options.health)
            peers = Leader((host, int(port)), os.environ[KEY])
        words = command(options.words, options.rank, options.hosts, host)
        return run(subprocess.Popen(words, start_new_session=True), peers)
    except _Stopped:
        return ENDED_WITH_OTHERS


class _Stopped(BaseException):
    """This host was told to end."""


def _stop(number: int, *_: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _Stopped


def _connected(address: tuple[str, int]) -> socket.socket:
    """Return a connection, once somebody listens there: the other pod may still wait for a node, or its image."""
    while True:
        try:
            return socket.create_connection(address, timeout=10.0)
        except OSError:
            time.sleep(RETRY_S)


def _keep_alive(connection: socket.socket) -> None:
    """Have the connection break some 40 seconds after the other machine has vanished without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class _Health(BaseHTTPRequestHandler):
    """Answers that this host lives."""

    timeout = 60.0

    def do_GET(self) -> None:
        """Answer /health."""
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    sys.exit(main())
