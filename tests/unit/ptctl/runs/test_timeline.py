"""`workload timeline`: what a job did when."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ptkube.resources import EVENTS, PODS, POSTTRAINJOBS

Invoke = Callable[..., Any]
Make = Callable[..., Any]
EXPECTED = [
    ("phase", 600, "waiting for preflight, quota and chips"),
    ("capacity", 120, "spot us-east5-b: no capacity"),
    ("capacity", 300, "onDemand us-east5-b: chips were ready"),
    ("phase", 7200, "on its chips, step 300/300"),
    ("restart", None, "restart 1 after Preempted: node-3 <spot> was taken & gone"),
    ("end", None, "Succeeded"),
]


def at(minutes: int) -> str:
    return f"2026-01-01T{minutes // 60:02d}:{minutes % 60:02d}:00Z"


@pytest.fixture(autouse=True)
def finished(kube: Any, make_job: Make) -> None:
    attempts = [
        {"option": "spot us-east5-b", "started": at(1), "ended": at(3), "outcome": "no capacity"},
        {"option": "onDemand us-east5-b", "started": at(3), "ready": at(8), "ended": at(130), "outcome": "released"},
    ]
    status = {
        "startTime": at(10),
        "completionTime": at(130),
        "capacity": {"attempts": attempts},
        "progress": {"step": 300, "total": 300},
        "restarts": {"Preempted": 1},
        "failure": {"failureClass": "Preempted", "message": "node-3 was taken", "time": at(60)},
        "time": {"queueing": 300, "training": 6000},
    }
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded", **status))
    kube.put(
        EVENTS,
        {
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "PostTrainJob", "name": "a", "uid": "uid-a"},
            "reason": "Restarting",
            "message": "restart 1 after Preempted: node-3 <spot> was taken & gone",
            "lastTimestamp": at(60),
        },
    )


def test_phases_attempts_and_restarts_are_in_the_order_of_time_with_durations(invoke: Invoke) -> None:
    items = json.loads(invoke("workload", "timeline", "a", "-o", "json").out)["items"]
    assert [(item["kind"], item["seconds"], item["text"]) for item in items] == EXPECTED
    assert (items[1]["began"], items[1]["ended"]) == (at(1), at(3))


def test_the_table_says_the_same_and_where_the_time_went(invoke: Invoke) -> None:
    lines = invoke("workload", "timeline", "a").out.splitlines()
    assert lines[0].split() == ["BEGAN", "FOR", "KIND", "WHAT"]
    assert lines[2].split(maxsplit=3) == [at(1), "2m", "capacity", "spot us-east5-b: no capacity"]
    assert lines[-1] == "Time spent: queueing 5m, training 100m"
    narrow = invoke("workload", "timeline", "a", terminal=True).out
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_restart_whose_event_is_gone_is_known_from_the_newest_failure(invoke: Invoke, kube: Any) -> None:
    del kube.objects[("events", "default", "e")]
    items = json.loads(invoke("workload", "timeline", "a", "-o", "json").out)["items"]
    assert items[4]["text"] == "Preempted: node-3 was taken"


def test_the_drawing_has_a_bar_for_each_entry_and_its_text(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "timeline.svg"
    assert invoke("workload", "timeline", "a", "--svg", str(file)).code == 0
    drawing = ElementTree.parse(file).getroot()
    texts = [text.text or "" for text in drawing.iter("{http://www.w3.org/2000/svg}text")][1:]
    assert [text.split(" (")[0] for text in texts] == [text for _, _, text in EXPECTED]
    bars = list(drawing.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    assert float(bars[3].attrib["width"]) > 10 * float(bars[0].attrib["width"])
    assert all(float(bar.attrib["x"]) + float(bar.attrib["width"]) <= 400 for bar in bars)


def test_a_drawing_that_cannot_be_written_is_refused_with_its_path(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("workload", "timeline", "a", "--svg", str(tmp_path / "none" / "t.svg"))
    assert (result.code, "t.svg': cannot be written: No such file" in result.err) == (2, True)


def test_a_job_that_has_just_been_created_has_a_timeline_too(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("b", "Pending"))
    (only,) = json.loads(invoke("workload", "timeline", "b", "-o", "json").out)["items"]
    assert (only["kind"], only["began"]) == ("phase", at(0))


def test_watched_events_are_those_that_are_there_and_every_new_one_of_the_job(invoke: Invoke, kube: Any) -> None:
    def event(name: str, about: str, minutes: int) -> dict[str, Any]:
        involved = {"kind": "Pod", "name": about}
        when = {"lastTimestamp": at(minutes), "type": "Warning"}
        return {"metadata": {"name": name}, "involvedObject": involved, "reason": "BackOff", "message": about, **when}

    kube.put(PODS, {"metadata": {"name": "a-0", "labels": {"posttrain.dev/job": "a"}}, "spec": {}})
    kube.events = [("ADDED", event("e2", "a-0", 61)), ("ADDED", event("e3", "of-another-job", 62))]
    lines = invoke("workload", "events", "a", "-w").out.splitlines()
    assert [line.split()[1] for line in lines] == ["PostTrainJob/a", "Pod/a-0"]
    kube.events = [("MODIFIED", event("e2", "a-0", 63))]
    documents = [json.loads(line) for line in invoke("workload", "events", "a", "-w", "-o", "json").out.splitlines()]
    assert [each["lastTimestamp"] for each in documents] == [at(60), at(61), at(63)]
