"""OpenTelemetry traces of a run: each step is one, with its parts at their times; off, nothing is recorded; a collector
that is not there is named once and stops nothing."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.builders.servers.otlp import collector
from tests.unit.pttrainer.runtime.test_experiment_trackers import job

from pttrainer.errors import ConfigError
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.reporting import experiment_trackers, spans
from pttrainer.runtime.reporting.experiment_trackers import open_telemetry
from pttrainer.runtime.reporting.metrics_log import MetricsLog

NOW_S = 2_000_000_000.0


@pytest.fixture(autouse=True)
def off_at_the_end() -> Iterator[None]:
    yield
    spans.stop()


def traced(folder: Path, uri: str) -> tuple[MetricsLog, list[str]]:
    """Begin an attempt that sends traces; returns the metrics and what is noted."""
    notes: list[str] = []
    place = Directory(folder)
    log = MetricsLog(place, 0, tensorboard=False)
    tracking = {"openTelemetry": {"endpoint": uri}}
    log.trackers = experiment_trackers.start(job(tracking), place, 0, notes.append)
    return log, notes


def test_a_step_is_a_trace_with_its_parts_in_one_another_and_their_own_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hunter2")
    with collector() as received:
        log, notes = traced(tmp_path, f"{received.uri}/")
        for step in (1, 2):
            spans.at_step(step)
            with spans.span("rollout"):
                with spans.span("generate") as attributes:
                    attributes["gen_ai.usage.output_tokens"] = 7 * step
                with spans.span("reward"):
                    pass
            spans.add("update", step, spans.now_ns())
            log.write(step, {"loss": 0.5 / step, "step_seconds": 2.0}, NOW_S)
            with spans.span("checkpoint"):  # after the step was sent
                pass
        log.close(is_failed=False)
    assert notes == []
    assert received.headers == {"hunter2"}
    about = received.resources[0]
    assert (about["service.name"], about["posttrain.job"], about["posttrain.algorithm"]) == (
        "posttrain",
        "curve",
        "sft",
    )
    first, second = steps = received.named("step")
    assert [step.attributes["posttrain.metric.loss"] for step in steps] == [0.5, 0.25]
    assert first.trace != second.trace
    names = ["rollout", "generate", "reward", "update", "checkpoint"]
    for name in names:
        of_steps = received.named(name)
        assert [span.trace for span in of_steps] == [first.trace, second.trace], name
        assert [span.attributes["posttrain.step"] for span in of_steps] == [1, 2]
        assert all(span.began_ns <= span.ended_ns for span in of_steps)
        wanted = "rollout" if name in ("generate", "reward") else "step"
        assert {received.parent(span) for span in of_steps} == {wanted}
    assert len(received.spans) == 2 * (1 + len(names))
    rollout, generate = received.named("rollout")[0], received.named("generate")[0]
    assert rollout.began_ns <= generate.began_ns <= generate.ended_ns <= rollout.ended_ns <= first.ended_ns
    assert first.began_ns <= rollout.began_ns
    assert generate.attributes["gen_ai.usage.output_tokens"] == 7
    assert generate.attributes["gen_ai.operation.name"] == "text_completion"
    assert generate.attributes["gen_ai.request.model"] == "random://tiny"


def test_a_part_on_another_thread_belongs_to_the_step_that_it_began_in() -> None:
    spans.start()
    spans.at_step(3)
    begun, may_end = threading.Event(), threading.Event()

    def ahead() -> None:
        with spans.span("generate"):
            begun.set()
            may_end.wait(60)

    thread = threading.Thread(target=ahead)
    with spans.span("rollout"):
        thread.start()
        begun.wait(60)
    spans.at_step(4)
    may_end.set()
    thread.join()
    assert [(span.name, span.step, span.parent) for span in spans.taken(3)] == [
        ("rollout", 3, None),
        ("generate", 3, None),
    ]
    assert spans.taken(3) == []


def test_a_part_that_fails_names_its_error() -> None:
    spans.start()
    with pytest.raises(OSError, match="full"), spans.span("checkpoint"):
        raise OSError("full")
    assert [span.attributes for span in spans.taken(0)] == [{"error": "OSError"}]


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    log = MetricsLog(Directory(tmp_path), 0, tensorboard=False)
    log.trackers = experiment_trackers.start(job({}), Directory(tmp_path), 0, print)
    with spans.span("rollout") as attributes:
        attributes["ignored"] = 1
    spans.add("update", 1, spans.now_ns())
    assert spans.now_ns() == 0
    spans.start()
    assert spans.taken(9) == []


def test_spans_that_nobody_takes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST", 3)
    spans.start()
    for name in "abcde":
        with spans.span(name):
            pass
    assert [span.name for span in spans.taken(0)] == ["c", "d", "e"]


def test_a_collector_that_is_not_there_is_named_once_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(open_telemetry, "EXPORT_S", 0.2)
    with socket.socket() as kept:  # bound, and never listens
        kept.bind(("127.0.0.1", 0))
        log, notes = traced(tmp_path, f"http://127.0.0.1:{kept.getsockname()[1]}")
        for step in range(1, 4):
            log.write(step, {"loss": 0.5}, NOW_S)
        log.close(is_failed=False)
    [note] = notes
    assert "does not take spans; they are dropped while it does not, and the run goes on" in note
    assert "Traceback" not in capfd.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 3


def test_traces_without_their_package_are_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_trackers, "_is_installed", lambda module: not module.startswith("opentelemetry"))
    tracking = job({"openTelemetry": {"endpoint": "http://collector:4318"}}).spec.tracking
    with pytest.raises(
        ConfigError, match=r"spec.tracking.openTelemetry: the package opentelemetry-exporter-otlp-proto"
    ):
        experiment_trackers.check(tracking)
