"""An MCP server that a command starts, over its standard input and output: a JSON-RPC message per line.

    child process (`sandbox.pool`)  ──stdin──▶  server        one server for each child, made again once it is gone
                                    ◀─stdout──

The child waits without a limit: the pool kills it when an answer is late, and with it the server and whatever that
started. The server dies with the child, too, which dies with the trainer. What it writes on standard error is logged.
A line that is no message is passed over, as MCP's own clients do.

See https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#stdio.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from pttrainer.environments.tools.mcp_client import HELLO, INVALID_PARAMS, METHOD_NOT_FOUND, all_pages, text_of
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError, ServerGone

_PR_SET_PDEATHSIG = 1
_SHOWN = 300


class StdioServer:
    """A server and its tools. environment: its variables. Raises RewardCodeError if it cannot start."""

    def __init__(self, command: list[str], environment: Mapping[str, str], max_bytes: int) -> None:
        self._command, self._environment, self._max_bytes = command, environment, max_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0
        self.tools = self._start()

    def call(self, request: list[Any]) -> dict[str, str]:
        """Return the text or the error of a call `[tool, arguments]`, as the model reads it. Raises ServerGone."""
        tool, arguments = request
        if self._process is None:
            self._start()
        result = self._ask("tools/call", {"name": tool, "arguments": arguments}, is_call=True)
        if "refused" in result:
            return {"text": "", "error": result["refused"] or "the server refuses the call"}
        text = text_of(result)
        return (
            {"text": "", "error": text or "the tool failed"} if result.get("isError") else {"text": text, "error": ""}
        )

    def _start(self) -> list[dict[str, Any]]:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        except OSError as error:
            raise RewardCodeError(f"{self._command[0]}: cannot be started: {error}") from error
        try:
            self._ask("initialize", HELLO)
            self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            return all_pages(lambda cursor: self._ask("tools/list", cursor))
        except ValueError as error:
            raise RewardCodeError(f"{self._command[0]}: tools/list: {error}") from error

    def _ask(self, method: str, params: Mapping[str, Any], *, is_call: bool = False) -> dict[str, Any]:
        """Return the result, or {"refused": why} of a call that is wrong. Raises ServerGone."""
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": dict(params)})
        answer = self._answer(method, self._number)
        error = answer.get("error")
        if isinstance(error, dict):
            message = str(error.get("message", ""))[:_SHOWN]
            if is_call and error.get("code") in (METHOD_NOT_FOUND, INVALID_PARAMS):
                return {"refused": message}
            raise ServerGone(f"{self._command[0]}: {method}: error {error.get('code')}: {message}")
        if not isinstance(answer.get("result"), dict):
            raise ServerGone(f"{self._command[0]}: {method}: no result")
        result: dict[str, Any] = answer["result"]
        return result

    def _answer(self, method: str, number: int) -> dict[str, Any]:
        """Read until the answer with this id; requests of the server's own are refused, but for pings."""
        while line := self._output().readline(self._max_bytes + 1):
            if len(line) > self._max_bytes:
                self._end()
                raise ServerGone(f"{self._command[0]}: {method}: the answer has more than {self._max_bytes} bytes")
            message = _message(line)
            if "method" in message and "id" in message:
                refusal = {"error": {"code": METHOD_NOT_FOUND, "message": "not offered"}}
                answer: dict[str, Any] = {"result": {}} if message["method"] == "ping" else refusal
                self._send({"jsonrpc": "2.0", "id": message["id"], **answer})
            elif message.get("id") == number:
                return message
        self._end()
        raise ServerGone(f"{self._command[0]}: {method}: the server ended")

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._end()
            raise ServerGone(f"{self._command[0]}: {message.get('method')}: the server ended") from error

    def _output(self) -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout

    def _end(self) -> None:
        """End the server; the next call makes another one."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        with suppress(OSError):  # what was not sent is lost with the server
            process.communicate()


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of a server's tools. Raises RewardCodeError if the server cannot start."""
    environment = _environment(source["packages"], source["python_path"])
    server = StdioServer(source["command"], environment, source["max_bytes"])
    return Handler(server.call, details={"tools": server.tools})


def _environment(packages: str | None, python_path: str) -> dict[str, str]:
    """Return the server's variables, in which the job's packages and their programs come last.

    python_path: that of the trainer; the child's own would lead another Python to this one's library.
    """
    programs = os.path.join(packages, "bin") if packages else ""
    paths = {"PYTHONPATH": (python_path, packages), "PATH": (os.environ.get("PATH"), programs)}
    return {**os.environ, **{name: os.pathsep.join(filter(None, parts)) for name, parts in paths.items()}}


def _die_with_parent() -> None:
    """Ask the kernel to kill the server when the child dies; the child has no other threads."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
