"""Which container of a pod starts, restarts or stops next, and the pod's phase."""

import pytest

from ptlocal.kubelet.lifecycle import Container, advance, restart_delay_s


def c(
    name: str,
    role: str = "main",
    *,
    running: bool = False,
    code: int | None = None,
    restarts: int = 0,
    ended: float = 0.0,
) -> Container:
    return Container(name, role, running, code, ended, restarts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("containers", "policy", "start", "phase"),
    [
        ([c("m")], "Never", ["m"], "Pending"),
        ([c("m", running=True)], "Never", [], "Running"),
        ([c("m", code=0)], "Never", [], "Succeeded"),
        ([c("m", code=3)], "Never", [], "Failed"),
        ([c("m", code=0), c("n", running=True)], "Never", [], "Running"),
        ([c("m", code=0), c("n", code=1)], "Never", [], "Failed"),
        ([c("m", code=3)], "OnFailure", ["m"], "Running"),
        ([c("m", code=0)], "OnFailure", [], "Succeeded"),
        ([c("m", code=0)], "Always", ["m"], "Running"),
        # init containers one after another
        ([c("a", "init"), c("b", "init"), c("m")], "Never", ["a"], "Pending"),
        ([c("a", "init", running=True), c("b", "init"), c("m")], "Never", [], "Pending"),
        ([c("a", "init", code=0), c("b", "init"), c("m")], "Never", ["b"], "Pending"),
        ([c("a", "init", code=0), c("b", "init", code=0), c("m")], "Never", ["m"], "Pending"),
        ([c("a", "init", code=1), c("m")], "Never", [], "Failed"),
        ([c("a", "init", code=1), c("m")], "Always", ["a"], "Pending"),
        # a sidecar has to have started, and comes back when it ends
        ([c("s", "sidecar"), c("a", "init"), c("m")], "Never", ["s", "a"], "Pending"),
        ([c("s", "sidecar", running=True), c("m")], "Never", ["m"], "Pending"),
        ([c("s", "sidecar", code=1), c("m", running=True)], "Never", ["s"], "Running"),
    ],
)
def test_what_starts_next(containers: list[Container], policy: str, start: list[str], phase: str) -> None:
    step = advance(containers, policy, stopping=False, now=1000.0)
    assert (step.start, step.phase, step.stop) == (start, phase, [])


def test_sidecars_are_stopped_after_the_main_containers_and_do_not_fail_the_pod() -> None:
    busy = [c("s", "sidecar", running=True), c("t", "sidecar", running=True), c("m", code=0)]
    step = advance(busy, "Never", stopping=False, now=0.0)
    assert (step.stop, step.phase) == (["t", "s"], "Running")
    over = [c("s", "sidecar", code=143), c("t", "sidecar", code=143), c("m", code=0)]
    assert advance(over, "Never", stopping=False, now=0.0).phase == "Succeeded"


def test_stopping_ends_workers_first_and_starts_nothing() -> None:
    containers = [c("s", "sidecar", running=True), c("m", running=True), c("n", code=1)]
    step = advance(containers, "Always", stopping=True, now=0.0)
    assert (step.start, step.stop) == ([], ["m"])
    assert advance([c("m")], "Never", stopping=True, now=0.0).phase == "Failed"
    assert advance([c("m", code=0)], "Always", stopping=True, now=0.0).phase == "Succeeded"


def test_a_crashing_container_comes_back_at_once_and_then_ever_later() -> None:
    assert [restart_delay_s(n) for n in (0, 1, 2, 5, 6, 20)] == [0, 10, 20, 160, 300, 300]
    step = advance([c("m", code=1, restarts=1, ended=100.0)], "Always", stopping=False, now=104.0)
    assert (step.start, step.backing_off, step.again_s) == ([], ["m"], 6.0)
    step = advance([c("m", code=1, restarts=1, ended=100.0)], "Always", stopping=False, now=110.0)
    assert step.start == ["m"]
