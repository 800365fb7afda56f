"""Start, stop and inspect an embedded cluster, for `ptctl local` and the tests.

    info = up(Path("~/.posttrain/local"))
    ...
    down(info.data_dir)

Every function may be called at any time and from several processes at once; each data directory is its own cluster.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from ptlocal.locks import file_lock, lock_holder
from ptlocal.paths import Layout, default_data_dir
from ptlocal.supervisor.state import Component, Phase, State, read_state

Say = Callable[[str], None]

_START_TIMEOUT_S = 400.0  # longer than the timeout of each part
_POLL_S = 0.05
_LOG_LINES = 15


class LocalClusterError(Exception):
    """The cluster cannot do the requested operation; the message says why and where to look."""


@dataclass(frozen=True)
class Info:
    """A running cluster. `started` is False if it was already running."""

    data_dir: Path
    kubeconfig: Path
    server: str
    pid: int
    started: bool


@dataclass(frozen=True)
class Status:
    """The cluster's state. `phase` is "stopped" if no supervisor lives, even if a killed one left another."""

    data_dir: Path
    kubeconfig: Path
    phase: Phase
    pid: int | None = None
    server: str = ""
    message: str = ""
    components: list[Component] = field(default_factory=list)


def to_stderr(line: str) -> None:
    """Write a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def up(
    data_dir: Path | None = None, *, say: Say = to_stderr, api_server: Path | None = None, without: Collection[str] = ()
) -> Info:
    """Start the cluster, or find it running; return when it answers and the operator is ready.

    `api_server` is a kubeconfig (its current context) of a cluster to run controllers, kubelet and operator against
    instead of an API server of our own; `without` names parts to leave out there (see manager.PARTS, "operator").
    """
    layout = _layout(data_dir)
    layout.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    layout.data.chmod(0o700)
    with file_lock(layout.up_lock, wait_s=_START_TIMEOUT_S) as acquired:
        if not acquired:
            raise LocalClusterError(
                f"another start of {layout.data} is still in progress after {_START_TIMEOUT_S:.0f} s"
            )
        pid = lock_holder(layout.pid_file)
        state = read_state(layout)
        if pid and state and state.phase == "stopping":
            say("waiting for the cluster to stop")
            _wait_for_end(layout, say)
            pid = None
        if pid:
            return _wait_until_ready(layout, say, started=False)
        if api_server is not None:
            _copy_kubeconfig(api_server, layout.kubeconfig)
        options = ["--external"] if api_server else []
        try:
            _spawn(layout, [*options, *(f"--without={part}" for part in without)])
            return _wait_until_ready(layout, say, started=True)
        except KeyboardInterrupt:
            say("stopping the cluster")
            _signal(layout, signal.SIGINT)
            _wait_for_end(layout, say)
            raise


def down(data_dir: Path | None = None, *, say: Say = to_stderr, now: bool = False) -> bool:
    """Stop the cluster, each pod with its own grace period (`now`: two seconds); return True if it was running.

    If interrupted, the cluster continues to stop in the background.
    """
    layout = _layout(data_dir)
    if not layout.data.exists():
        return False
    was_running = _signal(layout, signal.SIGINT if now else signal.SIGTERM)
    if was_running:
        _wait_for_end(layout, say)
    _kill_leftover_processes(layout)
    return was_running


def reset(data_dir: Path | None = None, *, say: Say = to_stderr) -> bool:
    """Stop the cluster within seconds and delete its data directory; return True if there was one."""
    layout = _layout(data_dir)
    if not layout.data.exists():
        return False
    if not layout.cluster_file.exists() and any(p.name not in _FILES_BEFORE_FIRST_START for p in layout.data.iterdir()):
        raise LocalClusterError(f"{layout.data} is not an embedded cluster's directory; nothing was deleted")
    down(layout.data, say=say, now=True)
    shutil.rmtree(layout.data)
    return True


def status(data_dir: Path | None = None) -> Status:
    """Return the cluster's state; never starts anything."""
    layout = _layout(data_dir)
    pid = lock_holder(layout.pid_file)
    state = read_state(layout)
    if pid is None or state is None:
        failure = state.message if state and state.phase == "failed" else ""
        return Status(layout.data, layout.kubeconfig, "failed" if failure else "stopped", message=failure)
    return Status(layout.data, layout.kubeconfig, state.phase, pid, state.server, state.message, state.components)


_FILES_BEFORE_FIRST_START = {"up.lock", "demo.lock", "supervisor.pid", "logs", "state.json"}


def _layout(data_dir: Path | None) -> Layout:
    return Layout((data_dir or default_data_dir()).expanduser().resolve())


def _spawn(layout: Layout, options: list[str]) -> None:
    """Start the supervisor; return when it holds its lock, even if interrupted, so that it can be stopped."""
    layout.state_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ptlocal.supervisor.supervisor", "--data", str(layout.data)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # an interrupted Popen would forget its process
    try:
        with open(layout.logs / "supervisor.log", "ab") as output:
            starter = subprocess.Popen(
                [*command, f"--detach={os.getpid()}", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=layout.data,
                env=_environment(),
                start_new_session=True,
            )
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = starter.wait()
        except KeyboardInterrupt:
            starter.wait()
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if code != 0:
        raise LocalClusterError(f"the cluster did not start:\n{_last_lines(layout)}\nhint: logs are in {layout.logs}")


def _copy_kubeconfig(source: Path, target: Path) -> None:
    """Copy the kubeconfig with absolute file names: relative ones are relative to its directory."""
    import yaml

    config = yaml.safe_load(source.read_text())
    for entry in [*(config.get("clusters") or []), *(config.get("users") or [])]:
        for fields in (entry.get("cluster"), entry.get("user")):
            for key in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
                if fields and fields.get(key):
                    fields[key] = str(source.parent.resolve() / fields[key])
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(config, file)


def _environment() -> dict[str, str]:
    """Return the child's environment with the source checkouts of sys.path, which a child does not inherit."""
    roots = [str(Path(path).resolve()) for path in sys.path if path and Path(path).is_dir()]
    source_roots = [
        root
        for root in roots
        if any((Path(root) / name).is_dir() for name in ("ptlocal", "ptoperator", "ptapi", "pttrainer"))
    ]
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*inherited, *source_roots]))}


def _wait_until_ready(layout: Layout, say: Say, *, started: bool) -> Info:
    deadline = time.monotonic() + _START_TIMEOUT_S
    last_message = ""
    while time.monotonic() < deadline:
        state = read_state(layout)
        pid = lock_holder(layout.pid_file)
        if state and state.phase == "ready" and pid:
            return Info(layout.data, layout.kubeconfig, state.server, pid, started)
        if state and state.phase == "starting" and state.message != last_message:
            last_message = state.message
            say(f"starting {last_message}")
        if (state and state.phase in ("failed", "stopped")) or (state and not pid):
            raise LocalClusterError(_failure(layout, state))
        time.sleep(_POLL_S)
    raise LocalClusterError(f"the cluster was not ready within {_START_TIMEOUT_S:.0f} s; see {layout.logs}")


def _failure(layout: Layout, state: State) -> str:
    why = state.message if state.phase == "failed" else f"its supervisor exited:\n{_last_lines(layout)}"
    return f"the cluster did not start: {why}\nhint: logs are in {layout.logs}"


def _last_lines(layout: Layout) -> str:
    log = layout.logs / "supervisor.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:]) if log.exists() else ""


def _wait_for_end(layout: Layout, say: Say) -> None:
    """Wait until the supervisor ends, however long its pods take, and report what it waits for."""
    waited_s, last_message = 0.0, ""
    while lock_holder(layout.pid_file):
        state = read_state(layout)
        if state and state.phase == "stopping" and state.message != last_message and waited_s > 0.5:
            last_message = state.message
            say(f"stopping {last_message}")
        time.sleep(_POLL_S)
        waited_s += _POLL_S


def _signal(layout: Layout, number: signal.Signals) -> bool:
    pid = lock_holder(layout.pid_file)
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _kill_leftover_processes(layout: Layout) -> None:
    from ptlocal.supervisor.identity import kill_leftovers

    kill_leftovers(layout)
