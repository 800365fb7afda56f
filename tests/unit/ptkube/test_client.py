"""The Kubernetes client against a scripted HTTP server: URLs, bodies, errors, retries, streams, credentials."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube import timestamps
from ptkube.client import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Kube,
    NotFound,
    Unauthorized,
    Unreachable,
)
from ptkube.resources import CRDS, JOBSETS, NODES, PODS, Manifest


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


Answer = tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Script:
    """Answers in the order they were queued; records what came in."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    folder: Path = Path()

    @property
    def authorizations(self) -> list[str]:
        return [request.headers["Authorization"] for request in self.requests]

    def kube(self, namespace: str = "default", **user: Any) -> Kube:
        return Kube.load(str(self.kubeconfig(namespace, **user)))

    def kubeconfig(self, namespace: str = "default", **user: Any) -> Path:
        path = self.folder / "config"
        context = {"cluster": "c", "user": "u", "namespace": namespace}
        config = {
            "current-context": "local",
            "contexts": [{"name": "local", "context": context}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": user}],
        }
        path.write_text(yaml.safe_dump(config))
        return path


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    script = Script(folder=tmp_path)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            return

        def handle_one(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(raw) if raw else None
            script.requests.append(Request(self.command, self.path, dict(self.headers), body))
            answer = script.answers.pop(0)
            if callable(answer):
                answer(self)
                return
            status, payload = answer
            data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            script.hung_up.set()

    server = Server(("127.0.0.1", 0), Handler)
    script.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield script
    server.shutdown()
    server.server_close()


def status(code: int, reason: str, message: str) -> tuple[int, Manifest]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def events(*items: Manifest, then: Callable[[], object] | None = None) -> Callable[[BaseHTTPRequestHandler], None]:
    """A watch answer: one JSON object per line, chunked, then optionally wait."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for item in items:
            line = json.dumps(item).encode() + b"\n"
            half = len(line) // 2  # a line may arrive in pieces
            for piece in (line[:half], line[half:]):
                handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                handler.wfile.flush()
        if then:
            then()
        handler.wfile.write(b"0\r\n\r\n")

    return answer


def test_get_names_group_version_namespace_and_name_in_the_path(script: Script) -> None:
    script.answers = [(200, {"kind": "JobSet"}), (200, {}), (200, {})]
    kube = script.kube(namespace="team")
    assert kube.get(JOBSETS, "a", "ns") == {"kind": "JobSet"}
    kube.get(PODS, "b")
    kube.get(NODES, "c", None)
    assert [s.path for s in script.requests] == [
        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets/a",
        "/api/v1/namespaces/team/pods/b",
        "/api/v1/nodes/c",
    ]


def test_what_a_pod_serves_is_read_through_the_proxy_and_its_refusal_raised(script: Script) -> None:
    script.answers = [(200, b"DCGM 1\n"), status(403, "Forbidden", "no pods/proxy")]
    kube = script.kube()
    assert kube.pod_http("exporter", "ns", 9400, "metrics") == "DCGM 1\n"
    assert script.requests[0].path == "/api/v1/namespaces/ns/pods/exporter:9400/proxy/metrics"
    with pytest.raises(Forbidden):
        kube.pod_http("exporter", "ns", 9400, "metrics")


def test_list_follows_continue_tokens_and_gives_items_their_kind(script: Script) -> None:
    script.answers = [
        (200, {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"metadata": {"name": "a"}}]}),
        (200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    result = script.kube().list(PODS, "ns", labels="app=x,tier in (a,b)", fields="spec.nodeName=n")
    assert result.resource_version == "7"
    assert [(i["kind"], i["apiVersion"], i["metadata"]["name"]) for i in result.items] == [
        ("Pod", "v1", "a"),
        ("Pod", "v1", "b"),
    ]
    assert "labelSelector=app%3Dx%2Ctier%20in%20%28a%2Cb%29" in script.requests[0].path
    assert "fieldSelector=spec.nodeName%3Dn" in script.requests[0].path
    assert "continue=next" in script.requests[1].path


def test_list_that_outlived_its_continue_token_is_taken_in_one_piece(script: Script) -> None:
    script.answers = [
        (200, {"metadata": {"resourceVersion": "7", "continue": "old"}, "items": [{"metadata": {"name": "a"}}]}),
        status(410, "Expired", "too old"),
        (200, {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    result = script.kube().list(PODS)
    assert [i["metadata"]["name"] for i in result.items] == ["b"]
    assert "limit" not in script.requests[2].path


def test_list_of_a_null_items_field_is_empty(script: Script) -> None:
    script.answers = [(200, {"metadata": {}, "items": None})]
    assert script.kube().list(PODS).items == []


def test_create_posts_to_the_namespace_of_the_body_and_can_be_dry(script: Script) -> None:
    body = {"metadata": {"name": "a", "namespace": "ns"}}
    script.answers = [(201, body)] * 3
    kube = script.kube()
    kube.create(PODS, body)
    kube.create(PODS, body, dry_run=True)
    kube.create(PODS, body, name="a", subresource="eviction")
    assert [(s.method, s.path) for s in script.requests] == [
        ("POST", "/api/v1/namespaces/ns/pods"),
        ("POST", "/api/v1/namespaces/ns/pods?dryRun=All"),
        ("POST", "/api/v1/namespaces/ns/pods/a/eviction"),
    ]
    assert script.requests[0].body == {"apiVersion": "v1", "kind": "Pod", **body}
    assert script.requests[2].body == body, "a subresource has a kind of its own"


def test_create_of_a_cluster_scoped_kind_has_no_namespace_in_its_path(script: Script) -> None:
    script.answers = [(201, {})]
    script.kube().create(CRDS, {"metadata": {"name": "a.b"}})
    assert script.requests[0].path == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def test_apply_is_server_side_and_states_manager_force_and_kind(script: Script) -> None:
    script.answers = [(200, {})]
    script.kube().apply(JOBSETS, {"metadata": {"name": "a", "namespace": "ns"}}, field_manager="me")
    sent = script.requests[0]
    assert sent.method == "PATCH"
    assert sent.path.endswith("/jobsets/a?fieldManager=me&force=true")
    assert sent.headers["Content-Type"] == "application/apply-patch+yaml"
    assert (sent.body["apiVersion"], sent.body["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")


def test_patch_is_a_merge_patch(script: Script) -> None:
    script.answers = [(200, {})]
    script.kube().patch(PODS, "a", "ns", {"status": {"phase": "Running"}}, subresource="status")
    assert script.requests[0].path == "/api/v1/namespaces/ns/pods/a/status"
    assert script.requests[0].headers["Content-Type"] == "application/merge-patch+json"


def test_delete_sends_propagation_grace_and_uid(script: Script) -> None:
    script.answers = [(200, {})]
    script.kube().delete(PODS, "a", "ns", propagation="Foreground", grace_s=0, uid="u1")
    assert script.requests[0].body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u1"},
    }


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (status(404, "NotFound", 'pods "a" not found'), NotFound),
        (status(409, "AlreadyExists", 'pods "a" already exists'), AlreadyExists),
        (status(409, "Conflict", "the object has been modified"), Conflict),
        (status(422, "Invalid", "spec.x: Required value"), Invalid),
        (status(400, "BadRequest", 'unknown field "y"'), Invalid),
        (status(403, "Forbidden", "cannot list"), Forbidden),
        (status(401, "Unauthorized", "Unauthorized"), Unauthorized),
        (status(410, "Expired", "too old resource version"), Gone),
        (status(500, "InternalError", "boom"), ApiError),
    ],
)
def test_each_refusal_has_its_class_and_keeps_the_servers_sentence(
    script: Script, answer: Answer, expected: type[ApiError]
) -> None:
    script.answers = [answer]
    with pytest.raises(ApiError) as caught:
        script.kube().get(PODS, "a", "ns")
    assert type(caught.value) is expected
    assert isinstance(answer, tuple)
    assert str(caught.value).startswith(answer[1]["message"])
    assert caught.value.status == answer[0]


def test_a_refusal_that_is_not_a_status_object_still_reads_well(script: Script) -> None:
    script.answers = [(404, b"404 page not found")]
    with pytest.raises(NotFound, match="HTTP 404: 404 page not found"):
        script.kube().get(JOBSETS, "a", "ns")


def test_throttled_request_is_repeated_after_the_time_the_server_asked_for(script: Script) -> None:
    script.answers = [status(429, "TooManyRequests", "slow down"), (201, {"ok": True})]
    assert script.kube().create(PODS, {"metadata": {"name": "a"}}) == {"ok": True}


def drop(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def test_lost_connection_is_retried_for_a_read_and_for_apply(script: Script) -> None:
    script.answers = [drop, (200, {"a": 1}), drop, (200, {"a": 2})]
    kube = script.kube()
    assert kube.get(PODS, "a", "ns") == {"a": 1}
    assert kube.apply(PODS, {"metadata": {"name": "a"}}, field_manager="m") == {"a": 2}


def test_lost_connection_is_not_retried_where_repeating_could_do_it_twice(script: Script) -> None:
    script.answers = [drop, (201, {})]
    with pytest.raises(Unreachable):
        script.kube().create(PODS, {"metadata": {"name": "a"}})
    assert len(script.requests) == 1


def test_connections_are_reused_and_a_dead_idle_one_is_noticed_before_a_write(script: Script) -> None:
    ports: list[int] = []

    def answer_then_close(handler: BaseHTTPRequestHandler) -> None:
        ports.append(handler.client_address[1])
        handler.send_response(200)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")
        handler.close_connection = len(ports) == 2

    script.answers = [answer_then_close] * 3
    kube = script.kube()
    kube.get(PODS, "a", "ns")
    kube.get(PODS, "a", "ns")
    assert script.hung_up.wait(60)
    kube.create(PODS, {"metadata": {"name": "a"}})
    assert ports[0] == ports[1] != ports[2]


def test_unreachable_server_names_the_address_and_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        script = Script(port=free.getsockname()[1], folder=tmp_path)
    with pytest.raises(Unreachable) as caught:
        script.kube().get(PODS, "a", "ns")
    where = f"http://127.0.0.1:{script.port} (context 'local' of {tmp_path / 'config'})"
    assert f"{where}: Connection refused" in str(caught.value)
    assert "hint:" in str(caught.value)


def test_watch_yields_events_and_hides_bookmarks_unless_asked(script: Script) -> None:
    pod = {"metadata": {"name": "a", "resourceVersion": "5"}}
    mark = {"metadata": {"resourceVersion": "9"}}
    lines = events({"type": "ADDED", "object": pod}, {"type": "BOOKMARK", "object": mark})
    script.answers = [lines, lines]
    kube = script.kube()
    assert list(kube.watch(PODS, "ns", resource_version="4", timeout_s=7)) == [("ADDED", pod)]
    assert [kind for kind, _ in kube.watch(PODS, bookmarks=True)] == ["ADDED", "BOOKMARK"]
    assert "resourceVersion=4" in script.requests[0].path
    assert "timeoutSeconds=7" in script.requests[0].path
    assert script.requests[1].path.startswith("/api/v1/pods?watch=true")


def test_watch_from_an_old_version_raises_gone_as_status_or_as_event(script: Script) -> None:
    error = status(410, "Expired", "too old resource version: 1 (9)")
    script.answers = [error, events({"type": "ERROR", "object": error[1]})]
    kube = script.kube()
    for _ in range(2):
        with pytest.raises(Gone, match="too old"):
            list(kube.watch(PODS, resource_version="1"))


def test_watch_drops_an_event_that_was_cut_in_the_middle(script: Script) -> None:
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b'{"type": "ADDED", "object": {}}\n{"type": "ADD')
        handler.close_connection = True

    script.answers = [half]
    assert list(script.kube().watch(PODS)) == [("ADDED", {})]


def test_closing_the_client_ends_a_blocked_watch(script: Script) -> None:
    release = threading.Event()
    script.answers = [events({"type": "ADDED", "object": {}}, then=lambda: release.wait(120))]
    kube = script.kube()
    started, ended = threading.Event(), threading.Event()

    def follow() -> None:
        try:
            for _ in kube.watch(PODS):
                started.set()
        except Unreachable:
            pass
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    assert started.wait(60)
    kube.close()
    assert ended.wait(60)
    release.set()
    with pytest.raises(Unreachable, match="closed"):
        kube.get(PODS, "a", "ns")


def test_pod_logs_yield_lines_and_survive_bytes_that_are_not_text(script: Script) -> None:
    script.answers = [(200, b"one\ntw\xffo\nlast without newline")]
    lines = list(script.kube().pod_logs("a", "ns", container="c", tail=0, since_s=90))
    assert lines == ["one", "tw\ufffdo", "last without newline"]
    assert script.requests[0].path == "/api/v1/namespaces/ns/pods/a/log?container=c&tailLines=0&sinceSeconds=90"


def plugin(folder: Path, **credential: str) -> Manifest:
    """The `exec` of a user: hands out token-1, then token-2, ...."""
    version = "client.authentication.k8s.io/v1"
    program = (
        "import json, pathlib, sys; path = pathlib.Path(sys.argv[1]); answer = json.loads(sys.argv[2]);"
        "path.write_text(path.read_text() + 'x' if path.exists() else 'x');"
        "answer['status']['token'] = f'token-{len(path.read_text())}'; print(json.dumps(answer))"
    )
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": credential}
    words = ["-c", program, str(folder / "count"), json.dumps(answer)]
    return {"apiVersion": version, "command": sys.executable, "args": words}


def test_a_401_makes_an_exec_plugin_run_again(script: Script, tmp_path: Path) -> None:
    script.answers = [(200, {}), status(401, "Unauthorized", "expired"), (200, {})]
    kube = script.kube(exec=plugin(tmp_path))
    kube.get(PODS, "a", "ns")
    kube.get(PODS, "a", "ns")
    assert script.authorizations == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]


def test_an_exec_plugin_runs_again_only_when_its_token_expires(script: Script, tmp_path: Path) -> None:
    script.answers = [(200, {})] * 4
    in_minutes = (timestamps.utc_now() + timedelta(minutes=2)).isoformat()
    kube = script.kube(exec=plugin(tmp_path, expirationTimestamp=in_minutes))
    kube.get(PODS, "a", "ns")
    kube.get(PODS, "a", "ns")
    script.kube(exec=plugin(tmp_path, expirationTimestamp="2020-01-01T00:00:00Z")).get(PODS, "a", "ns")
    assert script.authorizations == ["Bearer token-1", "Bearer token-1", "Bearer token-3"]


def test_a_401_reads_the_kubeconfig_anew_but_follows_it_to_no_other_cluster(script: Script) -> None:
    refused = status(401, "Unauthorized", "expired")
    kube = script.kube(token="old")
    script.kubeconfig(token="new")
    script.answers = [refused, (200, {})]
    kube.get(PODS, "a", "ns")
    assert script.authorizations == ["Bearer old", "Bearer new"]

    config = yaml.safe_load((script.folder / "config").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    config["users"][0]["user"]["token"] = "another cluster's"
    (script.folder / "config").write_text(yaml.safe_dump(config))
    script.answers = [refused]
    with pytest.raises(Unauthorized, match="hint: log in again"):
        kube.get(PODS, "a", "ns")
    assert script.requests[-1].headers["Authorization"] == "Bearer new"


def test_who_asks_is_the_impersonated_user_of_posttrain(script: Script) -> None:
    script.answers = [(200, {})]
    script.kube(**{"username": "u", "password": "p", "as": "someone"}).get(PODS, "a", "ns")
    headers = script.requests[0].headers
    assert (headers["Impersonate-User"], headers["User-Agent"]) == ("someone", "posttrain")
    assert headers["Authorization"] == "Basic dTpw"


def test_an_environments_proxy_is_not_asked_for_this_machine(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    script.answers = [(200, {"a": 1})]
    assert script.kube().get(PODS, "a", "ns") == {"a": 1}


def test_a_chosen_proxy_is_asked_with_its_password(script: Script) -> None:
    path = script.kubeconfig()
    cluster = {"server": "http://api.example/prefix", "proxy-url": f"http://u:p@127.0.0.1:{script.port}"}
    config = yaml.safe_load(path.read_text()) | {"clusters": [{"name": "c", "cluster": cluster}]}
    path.write_text(yaml.safe_dump(config))
    script.answers = [(200, {"a": 1})]
    assert Kube.load(str(path)).get(PODS, "a", "ns") == {"a": 1}
    sent = script.requests[0]
    assert sent.path == "http://api.example/prefix/api/v1/namespaces/ns/pods/a"
    assert sent.headers["proxy-authorization"] == "Basic dTpw"
