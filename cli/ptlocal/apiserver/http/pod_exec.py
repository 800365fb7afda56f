"""pods/NAME/exec: a command beside a container's program, over the WebSocket protocol of Kubernetes (v5 and v4).

A container is a process of this machine, so its environment and directory are those of its program, and paths below its
mounts are replaced as the kubelet does. Each message begins with a byte: 0 stdin, 1 stdout, 2 stderr, 3 how it ended, 4
the terminal's size, 255 (v5) the end of a channel. Left out: SPDY, which clients before Kubernetes 1.31 speak; attach.
"""

import asyncio
import fcntl
import json
import os
import pty
import secrets
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from aiohttp import WSMsgType, web

from ptlocal import exec_shim, processes
from ptlocal.apiserver.errors import StatusError, bad_request
from ptlocal.apiserver.http.pod_logs import container_of
from ptlocal.apiserver.write_options import flag
from ptlocal.paths import PROCESS_RECORD, Layout

Manifest = dict[str, Any]
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, END, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK = 32 * 1024
_POLL_S = 0.5
_LAST_OUTPUT_S = 0.5
"""How long output is awaited after the command's end, where what it left behind keeps the pipe open."""


@dataclass(frozen=True)
class ExecRequest:
    """A command for a running container."""

    argv: list[str]
    stdin: bool
    tty: bool
    env: dict[str, str]
    cwd: str
    container_pid: int
    container_born: float
    error_file: Path


def exec_request(layout: Layout, pod: Manifest, request: web.Request) -> ExecRequest:
    """Parse the request and check it against the pod; errors have the API server's and a kubelet's messages."""
    query = request.query
    name = container_of(pod, query.get("container") or "")
    command = query.getall("command", [])
    phase = (pod.get("status") or {}).get("phase")
    if not command:
        raise bad_request("you must specify at least 1 command for the container")
    if not pod["spec"].get("nodeName"):
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    if phase in ("Succeeded", "Failed"):
        raise bad_request(f"cannot exec into a container in a completed pod; current phase is {phase}")
    folder = layout.pod(pod["metadata"]["uid"])
    run = _running(folder, name)
    try:
        program = psutil.Process(run["pid"])
        env, cwd = dict(program.environ()), program.cwd()
    except psutil.Error:
        raise _no_container(name) from None
    tty = flag(query, "tty")
    return ExecRequest(
        [_local(argument, run.get("mounts") or {}) for argument in command],
        flag(query, "stdin"),
        tty,
        {**env, **({"TERM": "xterm"} if tty else {})},
        cwd,
        run["pid"],
        run["born"],
        folder / f"exec-{secrets.token_hex(4)}.start-error",
    )


def _running(folder: Path, name: str) -> dict[str, Any]:
    try:
        run: dict[str, Any] = json.loads((folder / PROCESS_RECORD).read_text())["containers"][name]
    except (OSError, ValueError, KeyError):
        raise _no_container(name) from None
    return run


def _no_container(name: str) -> StatusError:
    return StatusError(500, "InternalError", f'unable to upgrade connection: container not found ("{name}")')


def _local(argument: str, mounts: dict[str, str]) -> str:
    """Return the argument with a mounted path replaced by its place on this machine."""
    for path in sorted(mounts, key=len, reverse=True):
        if argument == path or argument.startswith(f"{path}/"):
            return mounts[path] + argument[len(path) :]
    return argument


async def run(request: web.Request, wanted: ExecRequest) -> web.WebSocketResponse:
    """Run the command until it, its container or the connection ends."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    if not socket.can_prepare(request).ok:
        raise bad_request("exec needs a WebSocket connection; this server does not speak SPDY (kubectl 1.31 or newer)")
    await socket.prepare(request)
    async with _started(wanted) as command:
        end = asyncio.create_task(command.process.wait())
        pumps = [asyncio.create_task(_pump(socket, channel, command)) for channel in command.outputs]
        others = [asyncio.create_task(each) for each in (_receive(socket, command), _container_end(wanted))]
        await asyncio.wait({end, *others}, return_when=asyncio.FIRST_COMPLETED)
        if not end.done():
            processes.signal_group(command.process.pid, signal.SIGKILL)
        code = await end
        await asyncio.wait(pumps, timeout=_LAST_OUTPUT_S)
        for task in (*pumps, *others):
            task.cancel()
    with suppress(ConnectionError):
        await socket.send_bytes(bytes([END]) + json.dumps(_status(code, wanted.error_file)).encode())
    wanted.error_file.unlink(missing_ok=True)
    await socket.close()
    return socket


@dataclass
class _Command:
    process: asyncio.subprocess.Process
    terminal: int | None

    @property
    def outputs(self) -> tuple[int, ...]:
        return (STDOUT,) if self.terminal is not None else (STDOUT, STDERR)

    async def read(self, channel: int) -> bytes:
        if self.terminal is not None:
            with suppress(OSError):  # EIO: nothing has the terminal open any more
                return await asyncio.to_thread(os.read, self.terminal, _CHUNK)
            return b""
        reader = self.process.stdout if channel == STDOUT else self.process.stderr
        assert reader is not None
        return await reader.read(_CHUNK)

    async def write(self, data: bytes) -> None:
        if self.terminal is not None:
            await asyncio.to_thread(os.write, self.terminal, data)
        elif self.process.stdin is not None:
            with suppress(ConnectionError):  # the command reads no more
                self.process.stdin.write(data)
                await self.process.stdin.drain()

    def end_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def resize(self, size: dict[str, int]) -> None:
        if self.terminal is not None:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))


@asynccontextmanager
async def _started(wanted: ExecRequest) -> AsyncIterator[_Command]:
    launcher = [sys.executable, "-I", "-S", exec_shim.__file__, str(os.getpid()), str(wanted.error_file)]
    terminal, other = pty.openpty() if wanted.tty else (None, None)
    pipe = asyncio.subprocess.PIPE if other is None else other
    try:
        process = await asyncio.create_subprocess_exec(
            *launcher,
            *wanted.argv,
            stdin=pipe if wanted.stdin or wanted.tty else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env=wanted.env,
            cwd=wanted.cwd,
            start_new_session=True,
        )
    finally:
        if other is not None:
            os.close(other)
    try:
        yield _Command(process, terminal)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what the command has left in the background
        if terminal is not None:
            os.close(terminal)


async def _pump(socket: web.WebSocketResponse, channel: int, command: _Command) -> None:
    with suppress(ConnectionError):  # `_receive` notices it as well
        while data := await command.read(channel):
            await socket.send_bytes(bytes([channel]) + data)


async def _receive(socket: web.WebSocketResponse, command: _Command) -> None:
    """Pass on what the client sends, until it is gone."""
    async for message in socket:
        data = message.data.encode() if message.type == WSMsgType.TEXT else bytes(message.data)
        if data[:1] == bytes([STDIN]):
            await command.write(data[1:])
        elif data[:1] == bytes([RESIZE]):
            with suppress(ValueError, KeyError, struct.error):
                command.resize(json.loads(data[1:]))
        elif data == bytes([CLOSE, STDIN]):
            command.end_input()


async def _container_end(wanted: ExecRequest) -> None:
    while processes.start_time(wanted.container_pid) == wanted.container_born:
        await asyncio.sleep(_POLL_S)


def _status(code: int, error_file: Path) -> Manifest:
    if code == exec_shim.START_ERROR and error_file.exists():
        message = f"error executing command in container: {error_file.read_text()}"
        return {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    code = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
