"""Estimate the memory of a job that skips preflight, by the trainer's own command in a child process.

The estimate rejects nothing: whoever writes `preflight: Skip` wants no verdict. But it costs half a second of a CPU and
no library beyond the operator's own, so a job that can never fit gets a warning. What the formula cannot tell (a model
behind a URI that this process cannot read, no trainer beside the operator) is left out.
"""

import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from ptapi.conditions import ConditionType
from ptapi.errors import SpecError
from ptapi.load import manifest
from ptapi.spec import PostTrainJobSpec
from ptkube.resources import Manifest
from ptoperator.observe.observed_parts import Estimate
from ptoperator.observe.state import Observed

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "pttrainer", "preflight")
_LONGEST_S = 20.0
_KEPT = 1024
_GIB = 2**30


@dataclass
class Estimates:
    """The estimates, one per shape of a job. Safe to share between threads.

    One child runs at a time; only jobs of a new shape wait for it.
    """

    command: Sequence[str] = COMMAND
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, Estimate | None] = field(default_factory=dict)

    def of(self, state: Observed) -> Estimate | None:
        """Return the estimate of a job that has no Preflighted condition yet; None for any other."""
        parsed = state.job.parsed
        if isinstance(parsed, SpecError) or not _is_wanted(state, parsed.spec):
            return None
        job = manifest(parsed)
        shape = _shape(job)
        if shape not in self._known:
            with self._lock:
                if shape not in self._known:
                    answer = _run_preflight(self.command, job)
                    self._known = dict([*self._known.items(), (shape, answer)][-_KEPT:])
        return self._known.get(shape)


def _is_wanted(state: Observed, spec: PostTrainJobSpec) -> bool:
    is_reported = state.status.condition(ConditionType.PREFLIGHTED) is not None
    is_over = state.job.is_deleting or state.status.phase.is_terminal
    is_on_cpu = spec.accelerator.type.startswith("cpu-")
    return spec.preflight == "Skip" and spec.runtime.is_native and not (is_on_cpu or is_reported or is_over)


def _shape(job: Manifest) -> str:
    """Return a hash that is equal for jobs that differ only in data, output and capacity."""
    spec = {name: value for name, value in job["spec"].items() if name not in ("output", "data", "capacity")}
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def _run_preflight(command: Sequence[str], job: Manifest) -> Estimate | None:
    arguments = [*command, "/dev/stdin", "--quick", "--output", "json"]
    try:
        ran = subprocess.run(arguments, input=json.dumps(job), capture_output=True, timeout=_LONGEST_S, text=True)
        verdict = json.loads(ran.stdout)
        peak, available = verdict["peak"] / _GIB, verdict["available"] / _GIB
        message = f"peak {peak:.1f} of {available:.1f} GiB per chip on {verdict['accelerator']}"
        return Estimate(bool(verdict["fits"]), message)
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        logger.debug("%s: no estimate: %s", job["metadata"]["name"], error)
        return None
