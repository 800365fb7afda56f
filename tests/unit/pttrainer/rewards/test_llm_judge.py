"""A judge behind an endpoint that fails in every way, on a server of this machine."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptapi.failures import ExitCode
from ptapi.run_directory import SERVICES_ENV
from ptapi.spec import Reward
from pttrainer.errors import ConfigError, ServiceLost, UserCodeError
from pttrainer.rewards import Sample
from pttrainer.rewards.llm_judge import endpoint, prompt
from pttrainer.rewards.runner import Runner
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.reporting import step_faults
from pttrainer.runtime.reporting.step_faults import Kind
from pttrainer.runtime.services import first_answer

SAMPLES = [Sample("1+1?", text, {"answer": "2"}) for text in ("good", "bad", "good")]


class Service:
    """Answers with what `reply(question, call)` gives: (status, body), or a text as a chat completion of 10 tokens."""

    def __init__(self) -> None:
        self.reply: Callable[[str, int], Any] = lambda prompt, call: "Score: 8" if "good" in prompt else "Score: 2"
        self.health: Callable[[], int] = lambda: 200
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(service.health())
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append(body)
                service.headers.append(dict(self.headers))
                answer = service.reply(body["messages"][0]["content"], len(service.requests))
                status, content = answer if isinstance(answer, tuple) else (200, answer)
                if isinstance(content, str):
                    content = {"choices": [{"message": {"content": content}}], "usage": {"total_tokens": 10}}
                text = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:9/")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that gave up
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(endpoint, "MIN_BACKOFF_S", 0.01)
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


def runner(service: Service, run: Path | None = None, timeout_s: float = 5.0, **judge: Any) -> Runner:
    spec = {"url": service.url, "model": "m", "prompt": "{prompt} {completion} {answer}", **judge}
    reward = Reward.model_validate({"name": "j", "judge": spec, "timeout_seconds": timeout_s})
    return Runner([reward], run=None if run is None else Directory(run))


def test_a_score_is_scaled_between_lowest_and_highest(service: Service) -> None:
    scores = runner(service, lowest=0, highest=16).score(SAMPLES)
    np.testing.assert_allclose(scores.total, [0.5, 0.125, 0.5])
    assert service.requests[0]["temperature"] == 0
    assert service.requests[0]["model"] == "m"


def test_the_same_question_is_asked_once_in_a_run_and_after_a_restart(service: Service, tmp_path: Path) -> None:
    scores = runner(service, tmp_path).score(SAMPLES)
    assert sorted(body["messages"][0]["content"] for body in service.requests) == ["1+1? bad 2", "1+1? good 2"]
    assert {k: v for k, v in scores.facts.items() if "seconds" not in k} == {
        "reward/j/calls": 2.0,
        "reward/j/kept": 1.0,
        "reward/j/tokens": 20.0,
    }
    again = runner(service, tmp_path)
    np.testing.assert_allclose(again.score(SAMPLES).total, scores.total)
    assert len(service.requests) == 2
    assert runner(service, tmp_path, model="other").score(SAMPLES).facts["reward/j/calls"] == 2.0


def test_errors_that_pass_are_repeated(service: Service) -> None:
    service.reply = lambda prompt, call: (503, {}) if call <= 2 else "Score: 10"
    np.testing.assert_allclose(runner(service, concurrency=1).score(SAMPLES[:1]).total, [1.0])
    assert len(service.requests) == 3


def test_a_service_that_stays_away_is_no_reward_and_never_ends_the_run(service: Service) -> None:
    service.reply = lambda prompt, call: (429, {})
    judge = runner(service, retries=1)
    for _ in range(2):
        assert np.isnan(judge.score(SAMPLES).total).all()
    service.server.shutdown()
    service.server.server_close()
    scores = judge.score(SAMPLES)
    assert np.isnan(scores.total).all()
    (first,) = scores.failures.values()
    assert (first.kind, step_faults.ENDS[first.kind].error.exit_code) == (Kind.SERVICE, ExitCode.SERVICE_LOST)


@pytest.mark.parametrize("reply", ["I like it", "Score: 11", {"choices": []}, {"choices": [{"message": {}}]}, [1]])
def test_a_reply_without_a_score_is_no_reward_of_that_sample_alone(service: Service, reply: Any) -> None:
    service.reply = lambda prompt, call: (200, reply) if "bad" in prompt else "9"
    np.testing.assert_allclose(runner(service, retries=0).score(SAMPLES).total, [0.9, np.nan, 0.9])


def test_a_slow_service_is_given_up_after_the_reward_s_limit(service: Service) -> None:
    held = threading.Event()
    service.reply = lambda prompt, call: held.wait(60) and ""
    assert np.isnan(runner(service, timeout_s=0.3).score(SAMPLES[:1]).total).all()
    held.set()


def test_waiting_for_a_judge_is_a_sign_of_life(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WAKE_S", 0.02)
    alive = threading.Event()
    service.reply = lambda prompt, call: "10" if alive.wait(60) else (503, {})
    np.testing.assert_allclose(runner(service).score(SAMPLES[:1], alive.set).total, [1.0])


def test_a_spent_budget_is_no_reward_also_after_a_restart(service: Service, tmp_path: Path) -> None:
    limited = {"concurrency": 1, "budget": {"calls": 1}}
    np.testing.assert_allclose(runner(service, tmp_path, **limited).score(SAMPLES).total, [0.8, np.nan, 0.8])
    again = runner(service, tmp_path, **limited)
    np.testing.assert_allclose(again.score(SAMPLES).total, [0.8, np.nan, 0.8])
    assert len(service.requests) == 1
    by_tokens = runner(service, concurrency=1, budget={"tokens": 10})
    scores = by_tokens.score(SAMPLES)
    np.testing.assert_allclose(scores.total, [0.8, np.nan, 0.8])
    assert [verdict.kind for verdict in scores.failures.values()] == [Kind.BUDGET]


def test_a_judge_that_refuses_from_the_start_ends_the_run_and_hides_the_key(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sk-very-secret")
    service.reply = lambda prompt, call: (401, {"error": "wrong key sk-very-secret"})
    with pytest.raises(UserCodeError, match="401") as error:
        runner(service, api_key_env="JUDGE_API_KEY").score(SAMPLES)
    assert "secret" not in str(error.value)
    assert str(error.value).endswith("the judge's url and model, and the key in the variable that apiKeyEnv names")
    assert service.headers[0]["Authorization"] == "Bearer sk-very-secret"


def test_a_redirect_is_not_followed_because_the_key_would_go_elsewhere(service: Service) -> None:
    service.reply = lambda prompt, call: (302, {})
    with pytest.raises(
        UserCodeError, match=r"302 Found: to http://127\.0\.0\.1:9/, which is not followed: it would receive the key"
    ):
        runner(service).score(SAMPLES)


def test_a_name_in_the_prompt_that_no_row_has_is_told_once(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    judge = runner(service, prompt='{anwser} {answer} {lowest} {"a": 1}')
    judge.score(SAMPLES)
    judge.score(SAMPLES)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: the prompt of judge m says {anwser}, which no row has")
    assert line.endswith("accepted: answer, completion, highest, lowest, prompt")


def test_judges_are_asked_at_once_and_named_in_the_job_s_order(service: Service) -> None:
    met = threading.Barrier(2 * len({sample.completion for sample in SAMPLES}))

    def reply(prompt: str, call: int) -> Any:
        met.wait(timeout=60)  # broken, unless the questions of both judges are here
        return "Score: 8" if prompt.startswith("first") else "Score: 2"

    service.reply = reply
    judge = {"url": service.url, "model": "m", "retries": 0}
    rewards = [
        {"name": "first", "judge": {**judge, "prompt": "first {completion}"}},
        {"name": "exact", "builtin": "exact"},
        {"name": "second", "judge": {**judge, "prompt": "second {completion}"}, "weight": 2.0},
    ]
    runner = Runner([Reward.model_validate(reward) for reward in rewards])
    scores = runner.score(SAMPLES)
    assert list(scores.rewards) == runner.names == ["first", "exact", "second"]
    np.testing.assert_allclose(scores.total, [0.8 + 2 * 0.2] * 3)
    met.reset()
    np.testing.assert_allclose(runner.score(SAMPLES).total, scores.total)  # kept: nothing is asked again
    assert len(service.requests) == 4


def test_a_reply_that_is_a_stream_is_shown(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    for url in spoken(whole(b'data: {"choices": []}')):
        reward = Reward.model_validate({"name": "j", "judge": {"url": url, "model": "m", "retries": 0}})
        assert np.isnan(Runner([reward]).score(SAMPLES).total).all()
    assert "the reply is not JSON: 'data: {\"choices\": []}'" in capfd.readouterr().err


def spoken(behave: Callable[[socket.socket], Any]) -> Iterator[str]:
    """The URL of a service that does this on every connection, after it has read some of the request."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()
            except OSError:
                return

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            behave(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


def drip(first: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.sendall(first)
        for _ in range(2000):
            connection.sendall(piece)
            time.sleep(0.05)

    return behave


def whole(content: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
    )


@pytest.mark.parametrize(
    "behave",
    [
        drip(b"HTTP/1.1 200", b"a"),
        drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b" "),
        drip(b"HTTP/1.1 503 Away\r\nContent-Length: 9999\r\n\r\n", b" "),
        drip(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 20)),
        lambda connection: connection.sendall(b"no HTTP\r\n\r\n"),
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        lambda connection: connection.sendall(b"HTTP/1.1 503 Away\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        whole(b"<html>"),
        whole(b"[" * 100_000),
        whole(b'{"choices": [{"message": {"content": "Score: 5"}}], "usage": [1]}'),
        whole(b'{"choices": [{"message": {"content": "Score: 5"}}], "usage": {"total_tokens": 1e999}}'),
    ],
)
def test_whatever_a_service_sends_the_reward_is_missing_in_time(
    behave: Callable[[socket.socket], Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "MIN_BACKOFF_S", 0.01)
    for url in spoken(behave):
        reward = Reward.model_validate(
            {"name": "j", "judge": {"url": url, "model": "m", "retries": 1}, "timeout_seconds": 0.4}
        )
        began = time.monotonic()
        assert np.isnan(Runner([reward]).score(SAMPLES).total).all()
        assert time.monotonic() - began < 60  # who waited for its end would wait for 100 s or for ever
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_service_that_is_away_is_not_waited_for_by_every_sample(service: Service) -> None:
    service.reply = lambda prompt, call: "9" if "first" in prompt else (503, {})
    many = [Sample("", "first", {}), *(Sample("", f"other {n}", {}) for n in range(100))]
    total = runner(service, concurrency=1, retries=0).score(many).total
    np.testing.assert_allclose(total, [0.9, *[np.nan] * 100])
    assert len(service.requests) == 1 + endpoint.MAX_FAILURES_IN_A_ROW


def test_tokens_below_nothing_do_not_fill_the_budget_up(service: Service) -> None:
    response = {"choices": [{"message": {"content": "9"}}], "usage": {"total_tokens": -1000}}
    service.reply = lambda prompt, call: (200, response) if call == 1 else "9"
    judge = runner(service, concurrency=1, budget={"tokens": 10})
    np.testing.assert_allclose(judge.score([Sample("", c, {}) for c in "abc"]).total, [0.9, 0.9, np.nan])


def test_a_key_that_is_not_set_is_refused_before_the_first_step(service: Service) -> None:
    with pytest.raises(ConfigError, match=r"spec.rewards\[0\].judge.apiKeyEnv: NOT_SET_KEY: no such environment"):
        runner(service, api_key_env="NOT_SET_KEY")


def test_what_a_completion_says_is_not_filled_in_again() -> None:
    reward = Reward.model_validate(
        {"name": "j", "judge": {"url": "http://a/v1", "model": "m", "prompt": "{completion}"}}
    )
    assert reward.judge is not None
    assert prompt.question(reward.judge, Sample("p", "{answer} {prompt}", {"answer": "gold"})) == "{answer} {prompt}"


@pytest.mark.parametrize(
    ("text", "value"),
    [("Score: 7", 7.0), ("score = 1, no: **Score:** 2.5", 2.5), (" 3. ", 3.0), ("I give 5 points", None), ("", None)],
)
def test_the_last_score_of_a_reply_counts(text: str, value: float | None) -> None:
    assert prompt.parse_score(text) == value


# A judge that is a service of the job


@pytest.fixture
def replicas(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, Service]]:
    other = Service()
    bases = [one.url.removesuffix("/v1") for one in (service, other)]
    monkeypatch.setenv(SERVICES_ENV, json.dumps({"grader": bases}))
    yield service, other
    other.server.shutdown()
    other.server.server_close()


def of_service(run: Path | None = None, timeout_s: float = 5.0) -> Runner:
    judge = {"service": "grader", "prompt": "{prompt} {completion} {answer}"}
    reward = Reward.model_validate({"name": "j", "judge": judge, "timeout_seconds": timeout_s})
    return Runner([reward], run=None if run is None else Directory(run))


def test_the_replicas_of_a_service_share_the_questions_and_serve_its_name(replicas: tuple[Service, Service]) -> None:
    gate = threading.Barrier(2, timeout=30)  # two questions are under way at once

    def reply(prompt: str, call: int) -> str:
        gate.wait()
        return "Score: 8"

    for one in replicas:
        one.reply = reply
    np.testing.assert_allclose(of_service().score(SAMPLES).total, [0.8] * 3)
    assert [[body["model"] for body in one.requests] for one in replicas] == [["grader"], ["grader"]]


def test_a_replica_that_is_gone_is_left_out_and_its_question_goes_to_another(replicas: tuple[Service, Service]) -> None:
    judge = of_service()
    judge.score(SAMPLES)
    replicas[0].server.shutdown()
    replicas[0].server.server_close()
    for number in range(4):
        samples = [Sample(f"{number}+1?", text, {"answer": ""}) for text in ("good", "bad")]
        np.testing.assert_allclose(judge.score(samples).total, [0.8, 0.2])


def test_a_reply_is_kept_whichever_replica_gave_it(
    replicas: tuple[Service, Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_service(tmp_path).score(SAMPLES)
    moved = {"grader": ["http://127.0.0.1:9", replicas[1].url.removesuffix("/v1")]}
    monkeypatch.setenv(SERVICES_ENV, json.dumps(moved))
    assert of_service(tmp_path).score(SAMPLES).facts["reward/j/calls"] == 0.0


def test_the_first_answer_of_a_service_is_waited_for_and_that_is_no_hang(
    replicas: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "WAKE_S", 0.02)
    monkeypatch.setattr(first_answer, "LOOK_S", 0.02)
    monkeypatch.setattr(first_answer, "NOTE_S", 0.0)
    alive = threading.Event()
    for one in replicas:
        one.health = lambda: 200 if alive.is_set() else 503
    np.testing.assert_allclose(of_service(timeout_s=1.0).score(SAMPLES, alive.set).total, [0.8, 0.2, 0.8])
    assert "judge: waiting for service grader has not answered" in capsys.readouterr().err


def test_a_service_that_never_answers_ends_the_run_as_lost(
    replicas: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_answer, "LOOK_S", 0.01)
    monkeypatch.setattr(first_answer, "LIMIT_S", 0.05)
    for one in replicas:
        one.health = lambda: 503
    with pytest.raises(ServiceLost, match=r"rewards\[0\].judge.service: service grader has not answered for"):
        of_service().score(SAMPLES)


def test_a_service_that_refuses_from_the_start_ends_the_run_with_where_to_look(
    replicas: tuple[Service, Service],
) -> None:
    for one in replicas:
        one.reply = lambda prompt, call: (400, {"error": "no chat template"})
    with pytest.raises(UserCodeError, match=r"no chat template.*hint: look at the log of the judge's service"):
        of_service().score(SAMPLES)
