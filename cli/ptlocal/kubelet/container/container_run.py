"""One container of a pod and its runs: start it as a process, signal it, record how it ended."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from ptapi.quantity import parse_quantity
from ptkube.resources import Manifest
from ptkube.timestamps import timestamp
from ptlocal import processes
from ptlocal.exec_shim import START_ERROR
from ptlocal.kubelet.lifecycle import Container, Role

_MESSAGE_BYTES = 4096
_FALLBACK_BYTES = 2048
_KERNEL_COUNTERS = Path("/proc/vmstat")


class ContainerRun:
    """A container. Its state belongs to the kubelet's thread; `_await_end` runs on another and leaves a note."""

    def __init__(self, spec: Manifest, role: Role, folder: Path, log_file: Callable[[int], Path]) -> None:
        self.spec = spec
        self.name = str(spec["name"])
        self.role = role
        self.restarts = 0
        self.mounts: dict[str, str] = {}
        self.waiting: tuple[str, str] = ("ContainerCreating", "")
        self.started_at: str | None = None
        self.terminated: Manifest | None = None
        self.last_terminated: Manifest | None = None
        self.termination_file = folder / "termination" / self.name
        self._error_file = folder / "termination" / f"{self.name}.start-error"
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_monotonic = 0.0
        self._killed = False
        self._signalled = False
        self._born = 0.0
        self._container_id = ""
        self._oom_kills = 0
        self._over_memory = False
        self._memory_limit = _memory_limit(spec)

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if it does not run."""
        return self._process.pid if self._process else None

    @property
    def born(self) -> float:
        """Return when the process started, in seconds since the epoch."""
        return self._born

    def view(self) -> Container:
        """Return the state for the pure lifecycle."""
        exit_code = self.terminated["exitCode"] if self.terminated else None
        return Container(
            self.name, self.role, self._process is not None, exit_code, self._ended_monotonic, self.restarts
        )

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, on_end: Callable[[], None]) -> None:
        """Start the process; `on_end` is called from another thread when it ends."""
        if self.terminated:
            self.restarts += 1
            self.last_terminated, self.terminated = self.terminated, None
        self.termination_file.parent.mkdir(parents=True, exist_ok=True)
        self.termination_file.write_bytes(b"")
        log_file = self._log_file(self.restarts)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(log_file, "ab") as output:
            self._process = processes.start(argv, env, cwd, output, self._error_file)
        self._born = processes.start_time(self._process.pid) or time.time()
        self._container_id = f"posttrain-local://{self._process.pid}-{self._born:.2f}"
        self._oom_kills = _oom_kills()
        self._killed = self._signalled = self._over_memory = False
        self.started_at = timestamp()
        threading.Thread(
            target=_await_end, args=(self._process, on_end), name=f"wait-{self._process.pid}", daemon=True
        ).start()

    def fail_to_start(self, message: str) -> None:
        """Record that the program could not be started (no such working directory)."""
        if self.terminated:
            self.restarts += 1
            self.last_terminated = self.terminated
        self.terminated = _terminated(START_ERROR, "StartError", message, timestamp(), self._container_id)
        self._ended_monotonic = time.monotonic()

    def terminate(self) -> bool:
        """Send SIGTERM once; return True if this call sent it."""
        if self._process is None or self._signalled:
            return False
        self._signalled = True
        processes.signal_group(self._process.pid, signal.SIGTERM)
        return True

    def kill(self) -> None:
        """Send SIGKILL to the process group."""
        if self._process:
            self._killed = True
            processes.signal_group(self._process.pid, signal.SIGKILL)

    def enforce_memory(self) -> bool:
        """Kill it if its processes hold more than its memory limit; return True if there is a limit to watch."""
        if self._process is None or self._memory_limit is None:
            return False
        if processes.memory(processes.in_session(self._process.pid, self._born)) > self._memory_limit:
            self._over_memory = True
            processes.signal_group(self._process.pid, signal.SIGKILL)
        return True

    def collect(self) -> bool:
        """Record an end of the process; return True if there was one since the last call."""
        if self._process is None or self._process.returncode is None:
            return False
        process, self._process = self._process, None
        # a container's end also ends all processes that its program left behind
        processes.kill_all(lambda: processes.in_session(process.pid, self._born))
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        self._ended_monotonic = time.monotonic()
        self.terminated = _terminated(
            code, self._reason(process, code), self._message(code), self.started_at, self._container_id
        )
        return True

    def mark_lost(self, message: str, old_status: Manifest | None) -> None:
        """Record that the process died with its kubelet; `old_status` is the last reported status."""
        state = (old_status or {}).get("state") or {}
        self.restarts = int((old_status or {}).get("restartCount") or 0)
        self._container_id = str((old_status or {}).get("containerID") or "")
        self.started_at = (state.get("running") or state.get("terminated") or {}).get("startedAt")
        self.terminated = state.get("terminated") or _terminated(
            137, "ContainerStatusUnknown", message, self.started_at, self._container_id
        )

    def status(self) -> Manifest:
        """Return the containerStatus for the API."""
        running = self._process is not None
        state: Manifest = {"waiting": {"reason": self.waiting[0]}}
        if self.waiting[1]:
            state["waiting"]["message"] = self.waiting[1]
        if running:
            state = {"running": {"startedAt": self.started_at}}
        elif self.terminated and self.waiting[0] != "CrashLoopBackOff":
            state = {"terminated": self.terminated}
        last = self.last_terminated
        if self.terminated and "waiting" in state:
            last = self.terminated
        return {
            "name": self.name,
            "image": self.spec.get("image") or "",
            "imageID": "",
            "containerID": self._container_id,
            "state": state,
            "lastState": {"terminated": last} if last else {},
            "ready": running
            or (self.role == "init" and bool(self.terminated) and state["terminated"]["exitCode"] == 0),
            "started": running,
            "restartCount": self.restarts,
        }

    def _reason(self, process: subprocess.Popen[bytes], code: int) -> str:
        if code == START_ERROR and self._error_file.exists():
            return "StartError"
        if process.returncode == -signal.SIGKILL and (self._over_memory or self._was_killed_by_kernel()):
            return "OOMKilled"
        return "Completed" if code == 0 else "Error"

    def _was_killed_by_kernel(self) -> bool:
        return not self._killed and _oom_kills() > self._oom_kills

    def _message(self, code: int) -> str:
        if self._error_file.exists():
            return self._error_file.read_text()
        message = _head(self.termination_file, _MESSAGE_BYTES)
        if not message and code != 0 and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = _tail(self._log_file(self.restarts), _FALLBACK_BYTES)
        return message


def _await_end(process: subprocess.Popen[bytes], on_end: Callable[[], None]) -> None:
    process.wait()
    on_end()


def _terminated(code: int, reason: str, message: str, started: str | None, container_id: str) -> Manifest:
    state = {
        "exitCode": code,
        "reason": reason,
        "startedAt": started or timestamp(),
        "finishedAt": timestamp(),
        "containerID": container_id,
    }
    return {**state, "message": message} if message else state


def _head(path: Path, size: int) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""  # the program removed its own termination file


def _tail(path: Path, size: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", "replace")


def _memory_limit(spec: Manifest) -> Decimal | None:
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
    return None if limit is None else parse_quantity(limit)


def _oom_kills() -> int:
    """Return the kernel's number of out-of-memory kills since boot; 0 if it is not available."""
    try:
        lines = _KERNEL_COUNTERS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def write_record(file: Path, boot: float, runs: Sequence[ContainerRun]) -> None:
    """Write what is needed to find the pod's processes: after the kubelet dies, and to run commands beside them."""
    containers = {r.name: {"pid": r.pid, "born": r.born, "mounts": r.mounts} for r in runs if r.pid}
    record = {"boot": boot, "containers": containers}
    scratch = file.with_suffix(".new")
    scratch.write_text(json.dumps(record))
    scratch.replace(file)
