"""The process around the reconciler: settings, command line, endpoints, liveness."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import ClientSession

from ptoperator.monitoring.http_server import Endpoints
from ptoperator.monitoring.job_gauges import JobNumbers
from ptoperator.monitoring.metrics import Metrics
from ptoperator.settings import PREFIX, Settings, SettingsError

ROOT = Path(__file__).resolve().parents[4]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ptoperator", *arguments]
    environment = {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)


def test_help_shows_examples() -> None:
    answer = run("--help")
    assert answer.returncode == 0
    assert "examples:" in answer.stdout
    assert "--kubeconfig" in answer.stdout


def test_help_does_not_wait_for_kopf() -> None:
    code = "import sys, ptoperator.__main__ as m; m._parser(); assert not {'kopf', 'aiohttp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_cluster_is_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    answer = run("--kubeconfig", str(tmp_path / "none"))
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert str(tmp_path / "none") in answer.stderr


def test_a_wrong_setting_names_the_variable_and_what_is_accepted() -> None:
    answer = run(POSTTRAIN_PROGRESS_SECONDS="soon")
    assert answer.returncode == 2
    assert "POSTTRAIN_PROGRESS_SECONDS: 'soon' is not a number of seconds" in answer.stderr


def test_settings_come_from_the_environment() -> None:
    env = {"POSTTRAIN_PROGRESS_SECONDS": "2.5", "POSTTRAIN_SHARED_FILESYSTEM": "true", "POSTTRAIN_WORKERS": "3"}
    settings = Settings.from_env(env)
    assert (settings.progress_seconds, settings.shared_filesystem, settings.workers) == (2.5, True, 3)
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"POSTTRAIN_TRAINER_IMAGE": ""}) == Settings()


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e12"])
def test_a_number_of_seconds_is_finite_and_not_negative(value: str) -> None:
    with pytest.raises(SettingsError):
        Settings.from_env({"POSTTRAIN_RESYNC_SECONDS": value})


def test_the_readme_lists_every_setting() -> None:
    text = (ROOT / "operator" / "README.md").read_text()
    missing = [name for name in (f"{PREFIX}{field.name.upper()}" for field in fields(Settings)) if name not in text]
    assert missing == []


def test_an_operator_whose_watch_was_cut_waits_for_an_api_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a soak had it: the connection breaks while it is read, and the API server answers 502 for a while."""
    import kopf

    from ptoperator import __main__ as program

    runs: list[int] = []
    answers = [200]

    class ApiServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop() if answers else 502)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    async def operator(**_: object) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("Connection closed.")

    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    config = {"clusters": [cluster], "contexts": [context], "current-context": "c"}
    (tmp_path / "config").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    monkeypatch.setattr(kopf, "operator", operator)
    monkeypatch.setattr(program.logging, "configure", lambda level: None)
    try:
        assert program.main(["--kubeconfig", str(tmp_path / "config"), "-n", "default"]) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert len(runs) == 2


async def test_endpoints_tell_health_and_metrics(unused_tcp_port: int) -> None:
    metrics = Metrics(lambda: [JobNumbers("n", name, "Running") for name in ("a", "b")])
    metrics.on_reconcile(0.02, None)
    metrics.on_reconcile(0.02, ValueError("a bug"))
    why = {"now": ""}
    endpoints = Endpoints("127.0.0.1", unused_tcp_port, metrics, lambda: why["now"])
    await endpoints.start()
    base = f"http://127.0.0.1:{unused_tcp_port}"
    try:
        async with ClientSession() as session:
            async with session.get(f"{base}/healthz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
            why["now"] = "the API server has not answered for 400 seconds"
            async with session.get(f"{base}/healthz") as answer:
                assert answer.status == 503
                assert "400 seconds" in await answer.text()
            async with session.get(f"{base}/metrics") as answer:
                text = await answer.text()
    finally:
        await endpoints.stop()
    assert 'posttrain_jobs{phase="Running"} 2.0' in text
    assert "posttrain_reconciles_total 2.0" in text
    assert 'posttrain_reconcile_errors_total{error="ValueError"} 1.0' in text


def test_silence_of_the_api_server_ends_liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.client import Configuration

    from ptkube.client import Kube
    from ptkube.kubeconfig import Access
    from ptoperator.app import Application

    app = Application(Kube(Access(Configuration("http://127.0.0.1:1"), "nowhere")), Settings(silence_seconds=60))
    assert app.why_not_alive() == ""
    later = time.monotonic() + 61
    monkeypatch.setattr("ptoperator.app.time", SimpleNamespace(monotonic=lambda: later))
    assert "has not answered for 61 seconds" in app.why_not_alive()


@pytest.mark.parametrize("error", ["ClientConnectorError(refused)", "ServerDisconnectedError('Server disconnected')"])
def test_an_outage_is_one_line_and_other_errors_stay(error: str) -> None:
    import logging

    from ptoperator.monitoring.logging import OutageFilter

    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("kopf", logging.ERROR, "", 1, text, (), None)

    outage = f"Request attempt #1/9 failed; will retry: GET https://x -> {error}"
    forbidden = "Request attempt #1/9 failed; will retry: GET https://x -> APIForbiddenError('pods is forbidden')"
    brief = OutageFilter()
    first = record(outage)
    assert brief.filter(first)
    assert first.getMessage() == "lost the connection to the API server; retrying until it answers"
    assert not brief.filter(record(outage))
    assert brief.filter(record(forbidden))
