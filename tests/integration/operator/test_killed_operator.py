"""kill -9 of the operator at every write of a job's life: before it is sent, and after it is done but not answered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from operatorprocess import OperatorProcess, WriteProxy

from ptoperator.kube import Kube
from ptoperator.resources import CONFIGMAPS, EVENTS, JOBSETS

MAX_STARTS = 80


class Killer:
    """Kills the operator at each write: at the first try before it is sent, at the second after it was carried out."""

    def __init__(self) -> None:
        self.operator: OperatorProcess | None = None
        self.tries: Counter[str] = Counter()

    def on_write(self, moment: str, what: str) -> bool:
        assert self.operator is not None
        if self.operator.is_dead():
            return False  # sent just before the kill, still on its way
        self.tries[what] += moment == "before"
        if (moment, self.tries[what]) in (("before", 1), ("after", 2)):
            self.operator.kill()
            return False
        return True


@pytest.mark.slow
def test_an_operator_killed_at_every_write_brings_a_job_to_its_end(
    control_plane: Any, kube: Kube, jobs: Any, tmp_path: Path
) -> None:
    killer = Killer()
    with WriteProxy(control_plane.kubeconfig, tmp_path, killer.on_write) as proxy:
        operator = OperatorProcess(proxy.kubeconfig, tmp_path, jobs.namespace)
        killer.operator = operator
        jobs.create("hunted", {"FAKE_CRASH_AT": "5", "FAKE_STEPS": "10", "FAKE_STEP_S": "2"})
        for wanted, suspend in (("Running", True), ("Suspended", False), ("Succeeded", None)):
            _live_until(jobs, operator, wanted)
            if suspend is not None:
                jobs.edit("hunted", suspend=suspend)
        operator.kill()
    status = jobs.status("hunted")
    assert str(status.phase) == "Succeeded"
    assert status.restarts == {"Unknown": 1}
    struck = [what for what, tries in killer.tries.items() if tries >= 2]
    assert len(struck) >= 12, struck
    assert any("PATCH" in what and "jobsets" in what for what in struck)
    assert not (jobs.runs / "hunted" / "doubled").exists()
    assert len(kube.list(JOBSETS, jobs.namespace).items) == 1
    ours = kube.list(CONFIGMAPS, jobs.namespace, labels="posttrain.dev/job=hunted").items
    assert len(ours) == 1
    told = [
        (event["reason"], event["message"])
        for event in kube.list(EVENTS, jobs.namespace).items
        if event["involvedObject"]["kind"] == "PostTrainJob"
    ]
    assert len(told) == len(set(told))
    jobs.delete("hunted")
    jobs.wait(lambda: jobs.left("hunted") == [])


def _live_until(jobs: Any, operator: OperatorProcess, phase: str) -> None:
    """Start the operator again whenever it was killed, until the job is there."""

    def is_there() -> bool:
        return str(jobs.status("hunted").phase) in (phase, "Failed")

    for _ in range(MAX_STARTS):
        if is_there():
            return
        if operator.is_dead():
            operator.start()
        jobs.wait(lambda: operator.is_dead() or is_there(), 60, lambda: operator.log.read_text()[-5000:])
    raise AssertionError(f"never {phase}: {operator.log.read_text()[-5000:]}")
