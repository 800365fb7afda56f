"""Serve the tools for agents: on standard input and output, or over HTTP behind a token."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

from ptctl.jobs.agent_tools import program, server
from ptctl.ui.app import App, Target

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_ENV = "PTCTL_MCP_TOKEN"
HOST = "127.0.0.1"


def serve(app: App, target: Target, port: int | None, *, allow_writes: bool) -> None:
    """Serve until the client goes, or Ctrl-C. port: of HTTP; None: standard input and output."""
    tools = server(program(target), allow_writes=allow_writes)
    if port is None:
        tools.run()
        return
    import uvicorn

    token = os.environ.get(TOKEN_ENV) or secrets.token_urlsafe(24)
    shown = f"${TOKEN_ENV}" if os.environ.get(TOKEN_ENV) else token
    app.console.say(f"http://{HOST}:{port}/mcp; header: Authorization: Bearer {shown}; Ctrl-C ends it")
    uvicorn.run(WithToken(tools.streamable_http_app(), token), host=HOST, port=port, log_level="warning")


class WithToken:
    """An ASGI app that answers only requests with the token: other users of this machine reach the port, too."""

    def __init__(self, inner: ASGIApp, token: str) -> None:
        self._inner, self._expected = inner, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        headers: dict[bytes, Any] = dict(scope.get("headers") or ())
        is_known = secrets.compare_digest(headers.get(b"authorization", b""), self._expected)
        if scope["type"] != "http" or is_known:
            await self._inner(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]})
        await send(
            {"type": "http.response.body", "body": b"the header Authorization: Bearer TOKEN is missing or wrong"}
        )
