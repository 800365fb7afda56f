"""Traces of some steps (`training.profile`), where TensorBoard's profile plugin and XProf look for them.

    <run>/tensorboard/plugins/profile/<time>/<host>.xplane.pb and .trace.json.gz

The leading process traces itself: with several hosts they all run the same program, and one trace shows it. A trace
is written to this machine first; a run directory in a bucket gets it uploaded. Tracing only watches: losses stay the
same to the bit. A resumed run traces again if it passes the first step again.
"""

import tempfile
from pathlib import Path

import jax

from ptapi import run_directory
from ptapi.spec import Profile
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.place import Place


class Trace:
    """Steps are counted from 0 here, as in the loop: `profile.start: 3` traces from just before step 2."""

    def __init__(self, profile: Profile | None, place: Place, total: int, *, leader: bool) -> None:
        if profile is not None:
            check(profile, total)
        self._first = None if profile is None or not leader else profile.start - 1
        self._end = 0 if profile is None else profile.start - 1 + profile.steps
        self._place = place
        self._running: tempfile.TemporaryDirectory[str] | None = None

    def is_edge(self, step: int) -> bool:
        """Return True if a trace starts or ends before this step, so that dispatched work must finish first."""
        return step == self._first or (self._running is not None and step == self._end)

    def before(self, step: int) -> None:
        """Start or stop the trace. Call with each step's number before it begins, and with the total at the end."""
        if step == self._first:
            self._running = tempfile.TemporaryDirectory(prefix="posttrain-trace-")
            jax.profiler.start_trace(self._running.name)
        elif self._running is not None and step == self._end:
            jax.profiler.stop_trace()
            upload(Path(self._running.name), self._place)
            self._running.cleanup()
            self._running = None


def check(profile: Profile, total: int) -> None:
    """Raise ConfigError if the run does not have all the steps to trace."""
    last = profile.start + profile.steps - 1
    if last > total:
        raise ConfigError(
            f"spec.training.profile: start {profile.start} and steps {profile.steps} end at step {last}: the run has "
            f"{total} steps; accepted: start + steps - 1 of at most {total}"
        )


def upload(traced: Path, place: Place) -> None:
    """Upload what jax wrote below `plugins/profile/` to the run directory."""
    for file in sorted(traced.rglob("*")):
        if file.is_file():
            place.upload(f"{run_directory.TENSORBOARD}/{file.relative_to(traced)}", file)
