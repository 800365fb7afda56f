"""Who may see the page. On this machine: whoever has the link with its token, which `ptctl ui` prints, as in Jupyter.

The token in a link becomes a cookie, and leaves the address bar. The Host header must name this machine, so that no web
site whose name leads here (DNS rebinding) reaches the page; there is no CORS.
In a cluster: who is logged in at the proxy in front, and sees what their Kubernetes rights allow (`callers.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from html import escape
from urllib.parse import urlsplit

from aiohttp import web

from ptctl.errors import CliError
from ptctl.page.answers import Answers
from ptctl.page.callers import CallersJobs, Identities, RefusedError, Rights
from ptctl.page.job_sources import ClusterJobs
from ptctl.page.run_files import RunFiles

ANSWERS = web.RequestKey("answers", Answers)
"""Of a request that is let in: what it reads from."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HERE = ("127.0.0.1", "localhost", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FORM = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>posttrain: token</title><link rel="stylesheet" href="/static/style.css">
<main><h1>This page needs its token</h1>
<p>Open the link that <code>ptctl ui</code> printed, or paste the token that stands in it.</p>
<form method="get"><label>Token <input name="token" type="password" autocomplete="off" required></label>{kept}
<button>Open</button></form></main></html>
"""


@web.middleware
async def add_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the headers that keep other sites, and scripts in samples, out of the page."""
    try:
        response = await handler(request)
    except web.HTTPException as answer:
        answer.headers.update(_HEADERS)
        raise
    response.headers.update(_HEADERS)
    return response


class TokenAccess:
    """Admits requests to this machine's own name that carry the token; all of them read the same."""

    def __init__(self, answers: Answers, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._once: set[str] = set()
        self._answers = answers

    def for_one_use(self) -> str:
        """Return a token for a browser's command line, which every user of the machine can read."""
        token = secrets.token_urlsafe(24)
        self._once.add(token)
        return token

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a foreign Host, and everything but the style of the form without the token."""
        if urlsplit(f"//{request.host}").hostname not in _HERE:
            raise web.HTTPForbidden(text=f"Host: {request.host!r}; accepted: {', '.join(_HERE)}\n")
        token = request.query.get("token", "")
        if self._is_valid(token) or token in self._once:
            self._once.discard(token)
            return self._without_token(request)
        if self._is_valid(request.cookies.get(_cookie(request), "")) or request.path == "/static/style.css":
            request[ANSWERS] = self._answers
            return await handler(request)
        if request.path.startswith("/api/"):
            raise web.HTTPUnauthorized(text="the token is not valid\n")
        kept = "".join(
            f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
            for name, value in request.query.items()
            if name != "token"
        )
        return web.Response(status=401, text=_FORM.format(kept=kept), content_type="text/html")

    def _is_valid(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    def _without_token(self, request: web.Request) -> web.Response:
        rest = [(name, value) for name, value in request.query.items() if name != "token"]
        answer = web.Response(status=303, headers={"Location": str(request.rel_url.with_query(rest))})
        answer.set_cookie(_cookie(request), self.token, httponly=True, samesite="Lax")
        return answer


class CallerAccess:
    """Admits requests with a signed token of the proxy in front; each reads what its caller may."""

    def __init__(self, everything: ClusterJobs, rights: Rights, identities: Identities) -> None:
        self._everything, self._rights, self._identities = everything, rights, identities
        self._files = RunFiles(with_local_files=False)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what carries no valid token, but for the kubelet's probe."""
        if request.path == "/healthz":
            return web.Response(text="ok\n")
        try:
            caller = await asyncio.to_thread(self._identities.caller, request.headers)
        except CliError as error:
            kind = web.HTTPUnauthorized if isinstance(error, RefusedError) else web.HTTPBadGateway
            raise kind(text=f"{error.message}\nhint: {error.hint}\n") from error
        jobs = CallersJobs(self._everything, self._rights, caller)
        request[ANSWERS] = Answers(jobs, self._files, jobs)
        return await handler(request)


def _cookie(request: web.Request) -> str:
    """Return the cookie's name: cookies are shared by all ports of a machine."""
    return f"posttrain-{urlsplit(f'//{request.host}').port or 80}"
