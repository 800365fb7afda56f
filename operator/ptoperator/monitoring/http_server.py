"""Serve /healthz, /readyz and /metrics on one port."""

from collections.abc import Callable

from aiohttp import web

from ptoperator.monitoring.metrics import CONTENT_TYPE, Metrics


class Endpoints:
    """The HTTP server. why_not_alive: returns a sentence if this process should be restarted, else nothing."""

    def __init__(self, host: str, port: int, metrics: Metrics, why_not_alive: Callable[[], str]) -> None:
        self._host = host or None
        self._port = port
        self._metrics = metrics
        self._why_not_alive = why_not_alive
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Start to listen, unless the port is 0."""
        if not self._port:
            return
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._health), web.get("/readyz", self._health), web.get("/metrics", self._prometheus)]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def stop(self) -> None:
        """Stop to listen."""
        if self._runner:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        why = self._why_not_alive()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _prometheus(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
