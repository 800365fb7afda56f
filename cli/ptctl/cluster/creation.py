"""Make a cluster: look, decide, act, until nothing is left to do.

Every answer may be lost, and the program may end anywhere: the next look shows what has happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from ptctl.cluster.cloud.cloud_errors import CloudError, is_busy
from ptctl.cluster.cloud.compute import Compute
from ptctl.cluster.cloud.gke import ClusterView, Gke
from ptctl.cluster.definition.requests import prerequisites
from ptctl.cluster.definition.spec import ClusterSpec
from ptctl.cluster.next_step import Action, Attempts, Decision, Observed, decide
from ptctl.cluster.progress import Progress
from ptctl.errors import INTERRUPTED, CliError
from ptctl.ui import interrupts
from ptctl.ui.console import Console
from ptoperator.capacity.cloud_errors import of_call

_MAX_SILENT_POLLS = 30
"""This many polls in a row without an answer end the wait; the same command continues it."""


@dataclass
class Creation:
    """One run. sleep: waits between polls; seconds: a clock."""

    gke: Gke
    compute: Compute
    console: Console
    poll_s: float
    sleep: Callable[[float], None] = time.sleep
    seconds: Callable[[], float] = time.monotonic
    _existing: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of the prerequisites that were there: nothing asks for them again while a cluster takes minutes."""

    def run(self, spec: ClusterSpec, again: str) -> ClusterView:
        """Return the cluster when it and its pools run. again: the command line that continues it.

        Raises CliError with what could not be made; the rest stays.
        """
        attempts = Attempts()
        progress = Progress(self.console, self.seconds)
        with interrupts.handled(_interruption(spec, again)):
            observed, decision = self._reach(spec, attempts, progress)
        progress.end()
        if decision.problem:
            raise CliError(decision.problem, decision.hint)
        if decision.failed:
            lines = "".join(f"\n  node pool {name}: {reason}" for name, reason in decision.failed.items())
            raise CliError(
                f"cluster {spec.name} runs, without {len(decision.failed)} of its node pools:{lines}",
                f"fix the reason, then: {again}",
            )
        assert observed.cluster is not None
        return observed.cluster

    def _reach(self, spec: ClusterSpec, attempts: Attempts, progress: Progress) -> tuple[Observed, Decision]:
        silent = 0
        while True:
            try:
                observed = self._observe(spec)
                decision = decide(spec, observed, attempts)
                for action in decision.actions:
                    self._carry_out(spec, action, attempts, progress)
                silent = 0
            except CloudError as error:
                silent += 1
                if not error.is_transient or silent > _MAX_SILENT_POLLS:
                    raise
                self.sleep(self.poll_s)
                continue
            if decision.problem or decision.is_done:
                return observed, decision
            progress.show(decision.waits or tuple(each.name for each in decision.actions), observed)
            self.sleep(self.poll_s)

    def _observe(self, spec: ClusterSpec) -> Observed:
        # operations first: what an operation has made is in the later answer
        operations = self.gke.operations(spec.parent, spec.name)
        self._existing |= {
            (each.kind, each.name)
            for each in prerequisites(spec)
            if (each.kind, each.name) not in self._existing and self.compute.has(each.collection, each.name)
        }
        return Observed(self.gke.get(spec.path), operations, self._existing)

    def _carry_out(self, spec: ClusterSpec, action: Action, attempts: Attempts, progress: Progress) -> None:
        progress.begin(action)
        try:
            operation = self._send(spec, action)
        except CloudError as error:
            if is_busy(of_call(error.grpc_code, error.message)):
                return  # another change is going on: asked again at the next poll
            if action.kind != "pool" or error.is_transient:
                raise
            attempts.failed[action.name] = ". ".join(filter(None, (error.message, error.hint)))
            return
        if action.verb == "create":
            attempts.created[action.name] += 1
            attempts.operations[action.name] = operation

    def _send(self, spec: ClusterSpec, action: Action) -> str:
        """Send the change; return the operation's name, if it has one."""
        body = action.request.body if action.request else {}
        match action.verb, action.kind:
            case "create", _ if action.request and action.request.collection:
                self.compute.request("POST", action.request.collection, body)
                return ""
            case "create", "cluster":
                return self.gke.create_cluster(body)
            case "create", _:
                return self.gke.create_pool(body)
            case _, "cluster":
                return self.gke.delete_cluster(spec.path)
        return self.gke.delete_pool(f"{spec.path}/nodePools/{action.name}")


def _interruption(spec: ClusterSpec, again: str) -> interrupts.Handler:
    """Return a handler of Ctrl-C that says what Google does without this program."""

    def handler(number: int, frame: FrameType | None) -> NoReturn:
        interrupts.say(
            f"\nInterrupted. Google continues with the requests it has: cluster {spec.name} in {spec.location}.\n"
            f"to continue: {again}\n"
            f"to look:     ptctl cluster describe {spec.name} --project {spec.project} --location {spec.location}\n"
            f"to undo:     ptctl cluster delete {spec.name} --project {spec.project} --location {spec.location}"
        )
        os._exit(INTERRUPTED)

    return handler
