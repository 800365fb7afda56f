"""`ptctl workload exec`: a command in the container of one rank, with this terminal's input, output and exit code."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty as terminals
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ptctl.errors import InputError, MissingError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import JobView, view
from ptctl.runs.logs.ranks import ranks
from ptctl.ui import interrupts
from ptctl.ui.app import App, Target
from ptkube.objects import pod_phase
from ptkube.pod_exec import Container, RemoteCommand, started
from ptkube.resources import PODS
from ptoperator.kube import labels

if TYPE_CHECKING:
    from ptkube.client import Kube

_STDIN = 0
_CHUNK = 32 * 1024
_POLL_S = 0.5


def execute(app: App, target: Target, name: str, rank: int, command: Sequence[str], *, stdin: bool, tty: bool) -> int:
    """Run the command, and return its exit code."""
    if tty and not os.isatty(_STDIN):
        raise InputError("-t: stdin is not a terminal; accepted: -i alone, or neither")
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    place = _container(kube, job, rank)
    with (
        interrupts.handled(interrupts.raise_once),
        started(kube, place, command, stdin=stdin or tty, tty=tty) as remote,
        _raw_terminal(remote, is_wanted=tty),
    ):
        _pass_on(app, remote, reads=stdin or tty)
        return remote.exit_code()


def _container(kube: Kube, job: JobView, number: int) -> Container:
    """Return the container of a rank in the newest attempt. Raises MissingError with the ranks that there are."""
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items
    current = ranks([pod for pod in pods if pod_phase(pod) not in ("Succeeded", "Failed")])
    newest = {rank.number: rank for rank in current if rank.attempt == current[-1].attempt}
    if not newest:
        raise MissingError(f"job {job.name!r} has no pod that runs (phase {job.phase})")
    if number not in newest:
        raise MissingError(f"--rank {number}: job {job.name!r} has no such rank; accepted: 0 to {max(newest)}")
    rank = newest[number]
    if not rank.has_started:
        raise MissingError(f"rank {number} of job {job.name!r} does not run yet: {rank.waiting_for}")
    return Container(rank.pod, job.namespace, rank.container)


def _pass_on(app: App, remote: RemoteCommand, *, reads: bool) -> None:
    """Pass on input and output until the command ends."""
    poll = select.poll()
    poll.register(remote.socket, select.POLLIN)
    if reads:
        poll.register(_STDIN, select.POLLIN)
    while remote.is_running:
        ready = {descriptor for descriptor, _ in poll.poll(_POLL_S * 1000)}
        if _STDIN in ready and not _send_input(remote):
            poll.unregister(_STDIN)
        out, err = remote.receive(0)
        app.console.pass_on(out, err)


def _send_input(remote: RemoteCommand) -> bool:
    """Send what was typed or piped; return False at its end."""
    data = os.read(_STDIN, _CHUNK)
    if data:
        remote.send(data)
    else:
        remote.end_input()
    return bool(data)


@contextmanager
def _raw_terminal(remote: RemoteCommand, *, is_wanted: bool) -> Iterator[None]:
    """Let every key, Ctrl-C too, go to the command, and say how large the terminal is, now and when it changes."""
    if not is_wanted:
        yield
        return

    def resize(*_: object) -> None:
        size = os.get_terminal_size(_STDIN)
        remote.resize(size.columns, size.lines)

    before = termios.tcgetattr(_STDIN)
    earlier = signal.signal(signal.SIGWINCH, resize)
    try:
        terminals.setraw(_STDIN)
        resize()
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, earlier)
