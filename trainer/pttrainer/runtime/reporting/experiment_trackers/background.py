"""A tracker in a thread of its own: the run hands over a step's metrics and goes on."""

import queue
import threading
from collections.abc import Callable, Mapping

from pttrainer.runtime.reporting.experiment_trackers.tracked_run import Tracker

WAITING = 10_000
"""Steps that may wait for a tracker that does not answer; later ones are left out."""

LAST_S = 30.0
"""Time that a tracker gets at the end of a run to send what is left."""

_Step = tuple[int, Mapping[str, float], float]


class Background:
    """Starts a tracker, sends to it and ends it; no method waits for it but `close`."""

    def __init__(self, name: str, start: Callable[[], Tracker], reported: int, note: Callable[[str], None]) -> None:
        self._name, self._start, self._note = name, start, note
        self._last = reported or -1
        self._is_failed = False
        self._steps: queue.Queue[_Step | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Hand over a step's finite metrics, unless the tracker has that step."""
        if step <= self._last:
            return
        self._last = step
        if self._thread.is_alive():
            try:
                self._steps.put_nowait((step, values, time_s))
            except queue.Full:
                self._note(f"warning: {self._name} does not answer: step {step} is not reported there")

    def close(self, *, is_failed: bool) -> None:
        """End the tracked run; give up after `LAST_S`."""
        self._is_failed = is_failed
        if self._thread.is_alive():
            try:
                self._steps.put(None, timeout=LAST_S)
            except queue.Full:
                pass  # the thread hangs, which the next line says
            self._thread.join(LAST_S)
        if self._thread.is_alive():
            self._note(f"warning: {self._name} has not taken everything within {LAST_S:.0f} s; metrics.jsonl has it")

    def _run(self) -> None:
        try:
            tracker = self._start()
            while (item := self._steps.get()) is not None:
                tracker.log(*item)
            tracker.finish(is_failed=self._is_failed)
        except BaseException as error:  # wandb and gradio raise their own, and SystemExit
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._note(
                f"warning: {self._name} gets no more metrics ({reason}); the run goes on, metrics.jsonl has them"
            )
