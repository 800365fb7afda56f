"""What kubectl prints: JSONPath of columns, ages, pod states."""

from typing import Any

import pytest

from ptlocal.apiserver.output import jsonpath
from ptlocal.apiserver.output.ages import age, duration
from ptlocal.apiserver.output.printer_columns import pod_state

DOC = {"spec": {"a.b/c": 1, "list": [{"type": "X", "v": 1}, {"type": "Y", "v": 2}], "n1": 0}, "on": True}


@pytest.mark.parametrize(("path", "expected"), [
    (".spec.n1", [0]), ("{.spec.n1}", [0]), (".spec['a.b/c']", [1]), (r".spec.a\.b/c", [1]), (".spec.list[0].v", [1]),
    (".spec.list[-1].v", [2]), (".spec.list[*].v", [1, 2]), ('.spec.list[?(@.type=="Y")].v', [2]),
    (".spec.list[?(@.type!='Y')].v", [1]), (".nothing.at.all", []), (".spec.list[7]", []), (".on", [True]),
    (".[broken", []),
])  # fmt: skip
def test_json_paths(path: str, expected: list[Any]) -> None:
    assert jsonpath.find(path, DOC) == expected


@pytest.mark.parametrize(("seconds", "expected"), [
    (0, "0s"), (5, "5s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (599, "9m59s"), (600, "10m"), (3 * 3600, "3h"),
    (3 * 3600 + 60, "3h1m"), (10 * 3600, "10h"), (47 * 3600, "47h"), (48 * 3600, "2d"), (50 * 3600, "2d2h"),
    (9 * 86400, "9d"), (400 * 86400, "400d"), (800 * 86400, "2y70d"),
])  # fmt: skip
def test_durations_are_short(seconds: int, expected: str) -> None:
    assert duration(seconds) == expected


def test_an_unknown_time_is_said_to_be_unknown() -> None:
    assert age(None) == "<unknown>"
    assert age("yesterday") == "<unknown>"


def pod(status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", **meta}, "spec": {"containers": [{"name": "c"}]}, "status": status}


@pytest.mark.parametrize(("status", "expected"), [
    ({"phase": "Pending"}, "Pending"),
    ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
    ({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}, "ErrImagePull"),
    ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "ExitCode:3"),
    ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"signal": 9, "exitCode": 137}}}]}, "Signal:9"),
    ({"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]}, "Completed"),
    ({"phase": "Running", "containerStatuses": [{"ready": True, "state": {"running": {}}}]}, "Running"),
    ({"phase": "Pending", "initContainerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]},
     "Init:Error"),
])  # fmt: skip
def test_the_state_of_a_pod(status: dict[str, Any], expected: str) -> None:
    assert pod_state(pod(status)) == expected


def test_a_deleted_pod_is_terminating() -> None:
    assert pod_state(pod({"phase": "Running"}, deletionTimestamp="2026-01-01T00:00:00Z")) == "Terminating"
