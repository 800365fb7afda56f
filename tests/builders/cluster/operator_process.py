"""The operator as a process of its own, and a proxy that can kill it at any of its writes.

The proxy stands between operator and API server. It lets reads and watches through and asks `on_write` about every
write: before it is sent, and after it was carried out but not yet answered.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import aiohttp
import yaml
from aiohttp import web
from tests.builders.cluster.manifests import eventually
from tests.builders.trainer import forked

from ptkube.kubeconfig import load

_HOP = {"host", "content-length", "transfer-encoding", "connection"}
OnWrite = Callable[[str, str], bool]
"""Called with `before` and with `after`, and what is written; False: the write must not be sent."""


IMPORTED = ("ptoperator.__main__", "ptoperator.app", "ptoperator.handlers")
WITH_GKE = (*IMPORTED, "ptoperator.capacity.gke.client")
"""What an operator's process imports before it does anything."""


class OperatorProcess:
    """`python -m ptoperator`, started and killed as often as a test wants."""

    def __init__(
        self, kubeconfig: Path, folder: Path, namespace: str, port: int = 0, env: dict[str, str] | None = None
    ) -> None:
        self.log = folder / "operator.log"
        self.port = port
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self.env = env or {}
        self._process: forked.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        env = {
            **os.environ,
            "KUBECONFIG": str(self._kubeconfig),
            "POSTTRAIN_PROGRESS_SECONDS": "0.5",
            "POSTTRAIN_QUEUE_SECONDS": "1",
            "POSTTRAIN_SHARED_FILESYSTEM": "true",
            **self.env,
        }
        words = ("ptoperator", "-n", self._namespace, "--port", str(self.port))
        imported = WITH_GKE if "POSTTRAIN_GKE_PROJECT" in self.env else IMPORTED
        with self.log.open("ab") as log:
            self._process = forked.start(imported, words, env, stdout=log.fileno(), stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        end = time.monotonic() + 600
        while time.monotonic() < end:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"the operator is not ready: {self.log.read_text()}")

    def live_until(self, is_so: Callable[[], Any], starts: int = 120) -> None:
        """Start it again whenever it was killed, until it is so."""
        for _ in range(starts):
            if is_so():
                return
            if self.is_dead():
                self.start()
            eventually(lambda: self.is_dead() or is_so(), 120, lambda: self.log.read_text()[-5000:])
        raise AssertionError(self.log.read_text()[-5000:])

    def kill(self) -> None:
        """kill -9, from any thread."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(300)

    def is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(300)


class WriteProxy:
    """A plain HTTP address of the API server."""

    def __init__(self, kubeconfig: Path, folder: Path, on_write: OnWrite) -> None:
        self.kubeconfig = folder / "proxy-kubeconfig"
        self._source = kubeconfig
        self._access = load(str(kubeconfig))
        self._on_write = on_write
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._is_down = False
        self.late = ""
        """What is read at a path that ends so arrives a second late."""
        self._open: dict[int, web.Request] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def go_down(self) -> None:
        """Cut every connection, and every new one, until `come_back`."""
        self._loop.call_soon_threadsafe(self._cut)

    def come_back(self) -> None:
        self._is_down = False

    def _cut(self) -> None:
        self._is_down = True
        for request in self._open.values():
            if request.transport:
                request.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._stop())

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._access.tls or False, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        config = yaml.safe_load(self._source.read_text())
        for entry in config["clusters"]:
            entry["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def _stop(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self._is_down and request.transport:
            request.transport.abort()
        self._open[id(request)] = request
        try:
            return await self._pass_on(request)
        finally:
            del self._open[id(request)]

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        is_write = request.method != "GET"
        body = await request.read()
        what = _what(request, body)
        if is_write and not self._on_write("before", what):
            raise web.HTTPBadGateway(text="the operator was killed before this write")
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        url = f"{self._access.server}{request.rel_url}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, data=body or None, headers=headers, timeout=timeout
        ) as answer:
            if is_write:
                self._on_write("after", what)
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            try:
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    if self.late and request.path.endswith(self.late):
                        await asyncio.sleep(1)
                    await response.write(chunk)
            except ConnectionResetError:
                pass  # the operator was killed
            return response


class Killer:
    """Kills the operator at each write: at the first try before it is sent, at the second after it was carried out."""

    def __init__(self) -> None:
        self.operator: OperatorProcess | None = None
        self.tries: Counter[str] = Counter()

    def on_write(self, moment: str, what: str) -> bool:
        assert self.operator is not None
        if self.operator.is_dead():
            return False  # sent just before the kill, still on its way
        self.tries[what] += moment == "before"
        if (moment, self.tries[what]) in (("before", 1), ("after", 2)):
            self.operator.kill()
            return False
        return True


def _what(request: web.Request, body: bytes) -> str:
    """The same for every try of the same write: times and versions in it differ."""
    document = json.loads(body) if body else {}
    name = (document.get("metadata") or {}).get("name", "")
    status = document.get("status") or {}
    state = [(each["type"], each["status"], each["reason"]) for each in status.get("conditions") or []]
    return f"{request.method} {request.path} {name} {status.get('phase', '')} {state}"
