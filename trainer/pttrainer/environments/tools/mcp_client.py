"""A session with an MCP server over streamable HTTP: JSON-RPC by POST, answered as JSON or as events.

    initialize → notifications/initialized → tools/list (page by page) → tools/call, call after call

The revision of 2025-06-18 is asked for; what the server names is sent with every later request, and so is its session,
if it opens one. A session that the server has forgotten (404) is opened again, once. The tools' list is read once: a
model's prompts name it, so a change within a run would change the task.

Left out: requests of the server to the client (sampling, elicitation), which are not answered; OAuth. See https://modelcontextprotocol.io/specification/2025-06-18/basic/transports.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from pttrainer.runtime import http_client

PROTOCOL = "2025-06-18"
HELLO = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "posttrain", "version": "1"}}
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
"""JSON-RPC's codes of what the caller did wrong."""
MAX_PAGES = 100
_FORGOTTEN = 404
_SHOWN = 300


class ServerLost(Exception):
    """The server does not answer as it should: it, the network or the time limit is at fault, not the call."""


class WrongCall(Exception):
    """The server refuses the call itself."""


class Session:
    """Speaks to one server, from any number of threads. limit_s: of a request; key: sent as a bearer token."""

    def __init__(self, url: str, limit_s: float, max_bytes: int, key: str | None = None) -> None:
        self._url, self._limit_s, self._max_bytes, self._key = url, limit_s, max_bytes, key
        self._opener = http_client.build_opener()
        self._lock = threading.Lock()
        self._headers: dict[str, str] = {}
        self._numbers = count(1)

    @property
    def is_open(self) -> bool:
        """Return True once the session has been opened."""
        return bool(self._headers)

    def open(self) -> None:
        """Open the session. Raises ServerLost."""
        self._begin(self._headers)

    def tools(self) -> list[dict[str, Any]]:
        """Return the server's tools, as it describes them. Raises ServerLost."""
        try:
            return all_pages(lambda cursor: self._ask("tools/list", cursor, self._limit_s))
        except (WrongCall, ValueError) as error:
            raise ServerLost(f"{self._url}: tools/list: {error}") from error

    def call(self, tool: str, arguments: Mapping[str, Any], limit_s: float) -> tuple[str, bool]:
        """Return a result's text, and whether the tool calls it an error. Raises ServerLost or WrongCall."""
        result = self._ask("tools/call", {"name": tool, "arguments": dict(arguments)}, min(limit_s, self._limit_s))
        return text_of(result), bool(result.get("isError"))

    def close(self) -> None:
        """End the session, if the server opened one; it may refuse, or be gone."""
        if "Mcp-Session-Id" not in self._headers:
            return
        request = urllib.request.Request(self._url, headers=self._all_headers(self._headers), method="DELETE")
        try:
            with self._opener.open(request, timeout=min(self._limit_s, 5.0)):
                pass
        except (OSError, ValueError):
            pass

    def _begin(self, before: Mapping[str, str]) -> None:
        """Open a session in place of that with the headers `before`; another thread may have been faster."""
        with self._lock:
            if self._headers is not before:
                return
            answer, session = self._post(self._request("initialize", HELLO), self._limit_s, {})
            result = self._result("initialize", answer)
            headers = {"MCP-Protocol-Version": str(result.get("protocolVersion", PROTOCOL))}
            if session:
                headers["Mcp-Session-Id"] = session
            self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, self._limit_s, headers)
            self._headers = headers

    def _ask(self, method: str, params: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        until = time.monotonic() + limit_s
        used = self._headers
        try:
            answer, _ = self._post(self._request(method, params), limit_s, used)
        except _Forgotten:
            self._begin(used)
            try:
                answer, _ = self._post(self._request(method, params), until - time.monotonic(), self._headers)
            except _Forgotten as error:
                raise ServerLost(f"{self._url}: {error}") from error
        return self._result(method, answer)

    def _request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": dict(params)}

    def _result(self, method: str, answer: Any) -> dict[str, Any]:
        """Return the result of an answer. Raises WrongCall or ServerLost."""
        error = answer.get("error")
        if isinstance(error, dict):
            message = str(error.get("message", ""))[:_SHOWN]
            if error.get("code") in (METHOD_NOT_FOUND, INVALID_PARAMS):
                raise WrongCall(message)
            raise ServerLost(f"{self._url}: {method}: error {error.get('code')}: {message}")
        if not isinstance(answer.get("result"), dict):
            raise ServerLost(f"{self._url}: {method}: no result")
        result: dict[str, Any] = answer["result"]
        return result

    def _all_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        key = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        return {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **headers,
            **key,
        }

    def _post(self, message: Mapping[str, Any], limit_s: float, headers: Mapping[str, str]) -> tuple[Any, str]:
        """Return the answer to a message, {} to a notification, and the session's id if there is a new one."""
        body = json.dumps(message).encode()
        request = urllib.request.Request(self._url, body, self._all_headers(headers), method="POST")
        try:
            with self._opener.open(request, timeout=max(limit_s, 0.05)) as response:
                session = str(response.headers.get("Mcp-Session-Id") or "")
                if "id" not in message:
                    return {}, session
                is_events = response.headers.get_content_type() == "text/event-stream"
                return self._read(response, message["id"], is_events=is_events), session
        except urllib.error.HTTPError as error:
            with error:
                why = f"{error.code} {error.reason}: {http_client.body_excerpt(error)}"
            if error.code == _FORGOTTEN and "Mcp-Session-Id" in headers:
                raise _Forgotten(why) from error
            raise ServerLost(self._redacted(f"{self._url}: {why}")) from error
        except (OSError, ValueError, http_client.HttpError) as error:
            raise ServerLost(self._redacted(f"{self._url}: {type(error).__name__}: {error}")) from error

    def _read(self, response: Any, number: int, *, is_events: bool) -> dict[str, Any]:
        """Return the answer with this id; what else a stream of events holds is of no interest here."""
        if not is_events:
            return _object(self._limited(response.read(self._max_bytes + 1)))
        size, data = 0, b""
        for line in iter(lambda: response.readline(self._max_bytes + 1), b""):
            size += len(line)
            self._limited(b"", size)
            if line.startswith(b"data:"):
                data += line[5:].strip() + b"\n"
            elif not line.strip() and data:
                answer, data = _object(data), b""
                if answer.get("id") == number:
                    return answer
        raise ConnectionError("the stream ended without an answer")

    def _limited(self, content: bytes, size: int | None = None) -> bytes:
        if (len(content) if size is None else size) > self._max_bytes:
            raise ValueError(f"the answer has more than {self._max_bytes} bytes")
        return content

    def _redacted(self, text: str) -> str:
        return text if self._key is None else text.replace(self._key, "…")


class _Forgotten(Exception):
    """The server does not know the session."""


def all_pages(page_at: Callable[[dict[str, Any]], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of all pages of `tools/list`, each at its cursor. Raises ValueError."""
    tools: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        page = page_at(cursor)
        if not isinstance(page.get("tools"), list):
            break
        tools += [tool for tool in page["tools"] if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
        if not page.get("nextCursor"):
            return tools
        cursor = {"cursor": page["nextCursor"]}
    raise ValueError(f"not a list of tools of at most {MAX_PAGES} pages")


def text_of(result: Mapping[str, Any]) -> str:
    """Return what a model can read of a result: its texts, names for what is none, else its structured content."""
    parts = [_part(part) for part in result.get("content") or () if isinstance(part, dict)]
    if not parts and "structuredContent" in result:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return "\n".join(parts)


def _part(part: Mapping[str, Any]) -> str:
    if part.get("type") == "text":
        return str(part.get("text", ""))
    resource = part.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"({part.get('type', 'something')} that cannot be shown)"


def _object(content: bytes) -> dict[str, Any]:
    answer = json.loads(content)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer
