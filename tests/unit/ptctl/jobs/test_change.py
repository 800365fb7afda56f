"""`wait`, `suspend`, `resume`, `delete`."""

from collections.abc import Callable
from typing import Any

import pytest

from ptkube.resources import POSTTRAINJOBS

Invoke = Callable[..., Any]
Make = Callable[..., Any]
FAILURE = {"failureClass": "OutOfMemoryHBM", "message": "needs 40 GiB, a v5e chip has 16"}


def test_wait_returns_when_the_job_succeeds(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Running"))
    kube.events = [("MODIFIED", make_job("a", "Restarting")), ("MODIFIED", make_job("a", "Succeeded"))]
    result = invoke("workload", "wait", "a", "--timeout", "1h")
    assert (result.code, result.out) == (0, "posttrainjob.posttrain.dev/a complete\n")


def test_wait_exits_1_with_the_jobs_own_message_when_it_fails(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Running"))
    kube.events = [("MODIFIED", make_job("a", "Failed", failure=FAILURE))]
    result = invoke("workload", "wait", "a")
    assert result.code == 1
    assert "OutOfMemoryHBM: needs 40 GiB, a v5e chip has 16" in result.err


def test_wait_exits_124_when_the_time_is_over(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Queued"))
    result = invoke("workload", "wait", "a", "--timeout", "0.05")
    assert result.code == 124
    assert "not complete after 0.05 s: Queued" in result.err


def test_wait_exits_3_for_a_job_that_does_not_exist_or_goes_away(invoke: Invoke, kube: Any, make_job: Make) -> None:
    assert invoke("workload", "wait", "a").code == 3
    kube.put(POSTTRAINJOBS, make_job("a", "Running"))
    kube.events = [("DELETED", make_job("a", "Running"))]
    result = invoke("workload", "wait", "a")
    assert (result.code, "was deleted" in result.err) == (3, True)


@pytest.mark.parametrize(
    ("goal", "phase", "code"),
    [
        ("complete", "Succeeded", 0),
        ("complete", "Failed", 1),
        ("running", "Running", 0),
        ("running", "Succeeded", 0),
        ("running", "Failed", 1),
        ("suspended", "Suspended", 0),
        ("suspended", "Succeeded", 1),
        ("failed", "Failed", 0),
        ("failed", "Succeeded", 1),
        ("finished", "Failed", 0),
        ("FINISHED", "Succeeded", 0),
    ],
)
def test_what_each_goal_means(invoke: Invoke, kube: Any, make_job: Make, goal: str, phase: str, code: int) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", phase))
    assert invoke("workload", "wait", "a", "--for", goal).code == code


def test_wait_for_deleted(invoke: Invoke, kube: Any, make_job: Make) -> None:
    assert invoke("workload", "wait", "a", "--for", "deleted").code == 0
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded"))
    kube.events = [("DELETED", make_job("a", "Succeeded"))]
    assert invoke("workload", "wait", "a", "--for", "deleted").out == "posttrainjob.posttrain.dev/a deleted\n"


def test_wait_refuses_what_is_not_a_duration(invoke: Invoke) -> None:
    result = invoke("workload", "wait", "a", "--timeout", "soon")
    assert (result.code, "2h30m" in result.err) == (2, True)


@pytest.mark.parametrize(("verb", "value"), [("suspend", True), ("resume", False)])
def test_suspend_and_resume_change_one_field(invoke: Invoke, kube: Any, make_job: Make, verb: str, value: bool) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", spec={"runPolicy": {"suspend": not value}}))
    result = invoke("workload", verb, "a")
    assert result.out == f"posttrainjob.posttrain.dev/a {verb}{'ed' if value else 'd'}\n"
    assert ("patch", ("a", "default", {"spec": {"runPolicy": {"suspend": value}}})) in kube.calls


@pytest.mark.parametrize(("verb", "value"), [("suspend", True), ("resume", False)])
def test_suspend_and_resume_twice_is_no_error(
    invoke: Invoke, kube: Any, make_job: Make, verb: str, value: bool
) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", spec={"runPolicy": {"suspend": value}}))
    result = invoke("workload", verb, "a")
    assert (result.code, "(unchanged)" in result.out) == (0, True)
    assert not any(call[0] == "patch" for call in kube.calls)


def test_a_job_that_has_ended_is_not_suspended(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded"))
    result = invoke("workload", "suspend", "a")
    assert (result.code, "has ended (Succeeded)" in result.err) == (1, True)


def test_delete_one_by_name_asks_nothing_and_says_what_stays(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    result = invoke("workload", "delete", "a")
    assert result.out == 'posttrainjob.posttrain.dev "a" deleted\n'
    assert "file:///runs/a" in result.err
    assert kube.objects == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "either one NAME or --all"),
        (("a", "--all"), "either one NAME or --all"),
        (("a", "b"), "pass one NAME"),
        (("a", "-l", "x=y"), "work with --all"),
        (("--workload", "a"), "ptctl workload delete NAME"),
        (("--force", "a"), "does not exist here"),
    ],
)
def test_delete_refuses_what_is_not_clear(
    invoke: Invoke, kube: Any, make_job: Make, words: tuple[str, ...], message: str
) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    result = invoke("workload", "delete", *words)
    assert (result.code, message in result.err) == (2, True)
    assert len(kube.objects) == 1


def test_delete_all_deletes_what_the_filters_match(invoke: Invoke, kube: Any, make_job: Make) -> None:
    for name, phase in (("a", "Succeeded"), ("b", "Running"), ("c", "Failed")):
        kube.put(POSTTRAINJOBS, make_job(name, phase))
    kube.put(POSTTRAINJOBS, make_job("d", "Failed", namespace="team"))
    invoke("workload", "delete", "--all", "--filter-by-status", "FINISHED")
    assert sorted(name for _, _, name in kube.objects) == ["b", "d"]


def test_delete_waits_until_the_object_is_gone(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    assert invoke("workload", "delete", "a", "--wait").code == 0
    kube.put(POSTTRAINJOBS, make_job("a"))
    kube.delete = lambda *args, **kwargs: None  # a finalizer holds it
    result = invoke("workload", "delete", "a", "--wait", "--timeout", "0.05")
    assert (result.code, "still not deleted after 0.05 s: a" in result.err) == (124, True)


def test_delete_of_a_job_that_does_not_exist_exits_3(invoke: Invoke) -> None:
    assert invoke("workload", "delete", "a").code == 3
