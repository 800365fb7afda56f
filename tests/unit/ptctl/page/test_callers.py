"""The page behind a proxy: whose token counts, and that everybody sees what their own rights allow."""

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth import jwt
from google.auth.crypt.es256 import ES256Signer
from tests.builders.servers import bucket as bucketserver

from ptctl.page.access import CallerAccess
from ptctl.page.callers import IAP_HEADER, Identities, Issuer, Rights
from ptctl.page.job_sources import ClusterJobs
from ptctl.page.server import application
from ptkube.client import Kube
from ptkube.resources import NODES, POSTTRAINJOBS

AUDIENCE = "/projects/1/global/backendServices/2"
ISSUER = "https://cloud.google.com/iap"
Token = Callable[..., dict[str, str]]
MAY = {
    ("ann@x.org", "list", "posttrainjobs", "", "a"),
    ("ann@x.org", "get", "posttrainjobs", "", "a"),
    ("ann@x.org", "get", "pods", "log", "a"),
    ("ben@x.org", "list", "posttrainjobs", "", "a"),
    ("ben@x.org", "get", "posttrainjobs", "", "a"),
}


class _Keys(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"keys": self.server.keys}).encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def key_pair() -> tuple[ES256Signer, dict[str, str]]:
    """A signer, and its public key as a JSON Web Key."""
    private = ec.generate_private_key(ec.SECP256R1())
    numbers = private.public_key().public_numbers()
    x, y = (urlsafe_b64encode(each.to_bytes(32)).rstrip(b"=").decode() for each in (numbers.x, numbers.y))
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ES256Signer.from_string(pem, "k1"), {"kty": "EC", "crv": "P-256", "kid": "k1", "x": x, "y": y}


@pytest.fixture(scope="module")
def signer() -> Iterator[tuple[ES256Signer, str]]:
    """A signer, and where its key is published."""
    made, key = key_pair()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Keys)
    server.keys = [key]  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made, f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    server.server_close()


def signed(with_key: ES256Signer, **changes: Any) -> dict[str, str]:
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "email": "ann@x.org",
        "iat": int(time.time()) - 5,
        "exp": int(time.time()) + 60,
    }
    kept = {name: value for name, value in (claims | changes).items() if value is not None}
    return {IAP_HEADER: jwt.encode(with_key, kept).decode()}


@pytest.fixture
def token(signer: tuple[ES256Signer, str]) -> Token:
    return lambda **changes: signed(signer[0], **changes)


@pytest.fixture
def reviews(kube: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The reviews that the API server was asked for; it grants what MAY says."""
    specs: list[dict[str, Any]] = []

    def create(r: Any, body: dict[str, Any]) -> dict[str, Any]:
        assert r.plural == "subjectaccessreviews"
        spec, wanted = body["spec"], body["spec"]["resourceAttributes"]
        specs.append(spec)
        key = (spec["user"], wanted["verb"], wanted["resource"], wanted["subresource"], wanted["namespace"])
        return {"status": {"allowed": key in MAY}}

    monkeypatch.setattr(kube, "create", create)
    return specs


@pytest.fixture
async def client(
    kube: Any, reviews: list[dict[str, Any]], signer: tuple[ES256Signer, str], make_job: Any
) -> AsyncIterator[TestClient[Any, Any]]:
    for namespace in ("a", "b"):
        kube.put(
            POSTTRAINJOBS, make_job("job", namespace=namespace, spec={"output": {"uri": f"gs://bucket/{namespace}"}})
        )
    identities = Identities(Issuer(ISSUER, AUDIENCE, IAP_HEADER, signer[1]))
    client = TestClient(TestServer(application(CallerAccess(ClusterJobs(kube), Rights(cast(Kube, kube)), identities))))
    await client.start_server()
    yield client
    await client.close()


async def test_everybody_sees_the_jobs_of_namespaces_in_which_they_may_list_them(
    client: Any, token: Token, reviews: list[dict[str, Any]]
) -> None:
    for _ in range(2):
        answer = await (await client.get("/api/jobs", headers=token())).json()
        assert [row["id"] for row in answer["items"]] == ["a/job"]
    assert len(reviews) == 2  # one for each namespace: the second time they are remembered
    assert reviews[0]["groups"] == ["system:authenticated"]
    nobody = await (await client.get("/api/jobs", headers=token(email="eve@x.org"))).json()
    assert nobody["items"] == []


@pytest.mark.parametrize("path", ["job", "metrics", "samples"])
async def test_a_job_that_may_not_be_seen_is_like_one_that_does_not_exist(client: Any, token: Token, path: str) -> None:
    answer = await client.get(f"/api/{path}?id=b/job", headers=token())
    assert answer.status == 404
    assert "does not exist, or ann@x.org may not get it" in (await answer.json())["message"]


async def test_who_may_not_read_logs_reads_no_run_directory(client: Any, token: Token) -> None:
    ben = token(email="ben@x.org")
    assert (await client.get("/api/job?id=a/job", headers=ben)).status == 200
    for path in ("metrics?id=a/job", "samples?id=a/job", "curve?id=a/job&metric=loss"):
        answer = await client.get(f"/api/{path}", headers=ben)
        assert (answer.status, "may not get pods/log" in (await answer.json())["message"]) == (403, True)


async def test_nodes_are_for_those_who_may_list_them_and_all_pods(client: Any, kube: Any, token: Token) -> None:
    kube.objects[(NODES.plural, "", "n")] = {"metadata": {"name": "n"}, "status": {"capacity": {"google.com/tpu": "4"}}}
    answer = await (await client.get("/api/capacity", headers=token())).json()
    assert (answer["nodes"], answer["pools"]) == (None, None)
    assert "nodes: ann@x.org may not list nodes of the whole cluster" in answer["notes"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aud": "another"}, "audience"),
        ({"iss": "https://evil.example"}, "issuer 'https://evil.example'; accepted: https://cloud.google.com/iap"),
        ({"exp": 1000, "iat": 500}, "expired"),
        ({"email": None}, "email: None; accepted: a token with a verified e-mail address"),
        ({"email_verified": False}, "accepted: a token with a verified e-mail address"),
        ({"email": "system:admin@x"}, "accepted: an address of a person"),
    ],
)
async def test_a_token_of_somebody_else_or_of_another_time_is_refused(
    client: Any, token: Token, changes: dict[str, Any], message: str
) -> None:
    answer = await client.get("/api/jobs", headers=token(**changes))
    assert answer.status == 401
    assert message in await answer.text()


async def test_a_token_that_another_key_signed_none_at_all_and_the_unsigned_header_are_refused(client: Any) -> None:
    forged = signed(key_pair()[0])
    unsigned = {"X-Goog-Authenticated-User-Email": "accounts.google.com:ann@x.org"}
    for headers in (
        forged,
        {},
        unsigned,
        {IAP_HEADER: "x.y.z"},
        {IAP_HEADER: forged[IAP_HEADER].rpartition(".")[0] + "."},
    ):
        for path in ("/api/jobs", "/", "/static/app.js"):
            assert (await client.get(path, headers=headers)).status == 401
    assert (await client.get("/healthz")).status == 200


async def test_a_run_directory_is_read_only_if_it_is_that_jobs_own(
    client: Any, token: Token, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with bucketserver.serve_here(monkeypatch) as objects:
        objects.put("bucket", "a/job/metrics.jsonl", b'{"step": 1, "loss": 2}\n')
        for owner in (b"", b'{"name": "job", "namespace": "b", "uid": "another"}'):
            objects.put("bucket", "a/job/owner.json", owner)
            answer = await client.get("/api/metrics?id=a/job", headers=token())
            assert (answer.status, "names another job" in (await answer.json())["message"]) == (404, True)
        objects.put("bucket", "a/job/owner.json", b'{"name": "job", "namespace": "a", "uid": "uid-job"}')
        assert (await (await client.get("/api/metrics?id=a/job", headers=token())).json())["names"] == ["loss"]


async def test_files_of_the_pod_are_nobodys_run(client: Any, kube: Any, token: Token, make_job: Any) -> None:
    kube.put(POSTTRAINJOBS, make_job("job", namespace="a", spec={"output": {"uri": "file:///etc"}}))
    answer = await client.get("/api/metrics?id=a/job", headers=token())
    assert "file:///etc/job is not in a bucket" in (await answer.json())["message"]
