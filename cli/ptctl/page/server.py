"""The page's server: its files, and JSON below /api. Reads run in threads, so that a slow bucket delays nobody else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from ptapi.errors import SpecError
from ptctl import errors
from ptctl.page.access import ANSWERS, CallerAccess, Handler, TokenAccess, add_headers
from ptctl.page.answers import Answers, Document, Query
from ptctl.ui.app import App
from ptctl.ui.exit_codes import api_hint
from ptkube.errors import ApiError, Forbidden, NotFound, Unauthorized

_STATIC = Path(__file__).parent / "static"
_VIEWS = ("/", "/job", "/capacity", "/diff")
_READS: dict[str, Callable[[Answers, Query], Document]] = {
    "jobs": Answers.jobs,
    "job": Answers.job,
    "metrics": Answers.metrics,
    "curve": Answers.curve,
    "samples": Answers.samples,
    "capacity": Answers.capacity,
    "diff": Answers.diff,
}
_STATUSES = {errors.USAGE: 400, errors.NOT_FOUND: 404}
_LEAST_COMPRESSED = 1024


def application(access: TokenAccess | CallerAccess) -> web.Application:
    """Return the server's paths behind its access checks."""
    app = web.Application(middlewares=[add_headers, access.check, _errors])
    for path in _VIEWS:
        app.router.add_get(path, _index)
    app.router.add_get("/api/{name}", _read)
    app.router.add_static("/static/", _STATIC)
    return app


def serve_here(app: App, answers: Answers, port: int, *, opens: bool) -> None:
    """Serve the page on this machine until Ctrl-C, and open it in a browser."""
    access = TokenAccess(answers)

    def ready(port: int) -> None:
        address = f"http://127.0.0.1:{port}/?token="
        app.console.say(f"{answers.source.title}: {address}{access.token} (Ctrl-C to stop)")
        if opens:
            import webbrowser

            address += access.for_one_use()
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    asyncio.run(_serve(access, "127.0.0.1", port, ready))


def serve_behind_proxy(app: App, access: CallerAccess, port: int) -> None:
    """Serve the page to a proxy, on every address of this pod, until SIGTERM."""
    asyncio.run(_serve(access, "0.0.0.0", port, lambda port: app.console.say(f"serving on port {port}")))


async def _serve(access: TokenAccess | CallerAccess, host: str, port: int, ready: Callable[[int], None]) -> None:
    runner = web.AppRunner(application(access), access_log=None)
    await runner.setup()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        hint = "--port 0 picks a free one"
        raise errors.InputError(
            f"--port {port}: {error.strerror}; accepted: a free port of this machine", hint
        ) from error
    ready(runner.addresses[0][1])
    await stopped.wait()
    await runner.cleanup()


async def _index(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _read(request: web.Request) -> web.StreamResponse:
    """Answer with a document, or with 304 where the browser has it already."""
    read = _READS.get(request.match_info["name"])
    if read is None:
        raise web.HTTPNotFound(text=f"{request.path}: accepted: {', '.join(_READS)}\n")
    body = await asyncio.to_thread(lambda: _encoded(read(request[ANSWERS], request.query)))
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    response = web.Response(body=body, content_type="application/json", headers=headers)
    if len(body) > _LEAST_COMPRESSED:
        response.enable_compression()
    return response


def _encoded(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), default=str).encode(errors="replace")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a failure of a read with its message and hint."""
    try:
        return await handler(request)
    except errors.CliError as error:
        return _error(_STATUSES.get(error.code, 502), error.message, error.hint)
    except ApiError as error:
        status = 404 if isinstance(error, NotFound) else 403 if isinstance(error, (Forbidden, Unauthorized)) else 502
        message, _, hint = str(error).partition("\nhint: ")
        return _error(status, message, hint or api_hint(error))
    except (SpecError, OSError) as error:
        return _error(502, str(error), "")


def _error(status: int, message: str, hint: str) -> web.Response:
    return web.json_response({"message": message, "hint": hint}, status=status)
