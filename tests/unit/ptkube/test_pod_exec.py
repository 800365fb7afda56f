"""Commands in containers, against a scripted WebSocket server: protocols, ends, refusals."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.client import Configuration

from ptkube.client import Kube
from ptkube.errors import ApiError, ConfigError, Forbidden, Unreachable
from ptkube.kubeconfig import Access
from ptkube.pod_exec import Container, output, started

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PLACE = Container("p", "n", "c")
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


@contextmanager
def serving(handler: Handler, **access: Any) -> Iterator[Kube]:
    """A client of a server with this handler."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    configuration = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    configuration.api_key = {"BearerToken": "Bearer planted"}
    try:
        yield Kube(Access(configuration, "tests", **access))
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def answering(*messages: bytes, protocol: str = V5) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer planted"
        assert request.path == "/api/v1/namespaces/n/pods/p/exec"
        assert request.query.getall("command") == ["cat", "a b&c"]
        socket = web.WebSocketResponse(protocols=[protocol])
        await socket.prepare(request)
        for message in messages:
            await socket.send_bytes(message)
        await socket.close()
        return socket

    return handle


def ended(**status: Any) -> bytes:
    return b"\x03" + json.dumps(status).encode()


def run(kube: Kube) -> bytes:
    return b"".join(output(kube, PLACE, ["cat", "a b&c"]))


def test_output_is_the_bytes_of_stdout_and_a_failure_brings_those_of_stderr() -> None:
    raw = bytes(range(256)) * 400
    with serving(answering(b"\x01" + raw, b"\x02warning", b"\x01end", ended(status="Success"))) as kube:
        assert run(kube) == raw + b"end"
    cause = {"causes": [{"reason": "ExitCode", "message": "3"}]}
    failure = ended(status="Failure", reason="NonZeroExitCode", details=cause)
    with serving(answering(b"\x02no such file", failure)) as kube, pytest.raises(ApiError) as raised:
        run(kube)
    assert str(raised.value) == "cat in pod p exits with code 3: no such file"


def test_a_command_that_cannot_start_and_a_connection_that_breaks_off_are_told_apart() -> None:
    failure = ended(status="Failure", reason="InternalError", code=500, message="executable file not found in $PATH")
    with serving(answering(failure)) as kube, pytest.raises(ApiError, match="executable file not found"):
        run(kube)
    with serving(answering(b"\x01half")) as kube, pytest.raises(Unreachable, match="before the command did"):
        run(kube)


def test_a_refusal_is_in_the_api_servers_words() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "reason": "Forbidden", "message": 'pods "p" is forbidden: cannot create pods/exec'}
        return web.json_response(body, status=403)

    with serving(refuse) as kube, pytest.raises(Forbidden, match="cannot create pods/exec"):
        run(kube)


def test_what_an_old_server_or_the_client_cannot_do_is_said() -> None:
    async def wait(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=[V4])
        await socket.prepare(request)
        await socket.receive()
        return socket

    command = {"stdin": True, "tty": False}
    with (
        serving(wait) as kube,
        started(kube, PLACE, ["cat"], **command) as remote,
        pytest.raises(ApiError, match=r"before 1\.30"),
    ):
        remote.end_input()
    with serving(wait, impersonate="somebody") as kube, pytest.raises(ConfigError, match="as: somebody"):
        run(kube)
