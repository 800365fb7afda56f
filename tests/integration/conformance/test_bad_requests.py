"""Whatever is sent, the answer is a metav1.Status with a 4xx code that says what was wrong; never a crash.

A real server answers a few of these with code 500 (unknown fields in an apply patch, say). That is the one thing on
which it is not held to the same expectation: ours must not.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.builders.cluster.api_access import Answer, Cluster
from tests.builders.cluster.manifests import APPLY, JSON_PATCH, MERGE, STRATEGIC, configmap, widget

DEEP = "[" * 20_000 + "]" * 20_000


def assert_refused(api: Cluster, answer: Answer) -> None:
    assert 400 <= answer.status < (500 if api.is_embedded else 600), f"{answer.status}: {answer.text[:500]}"
    assert answer.json["kind"] == "Status"
    assert answer.json["status"] == "Failure"
    assert answer.json["code"] == answer.status
    assert answer.json["message"]


@pytest.mark.parametrize("body", [
    "", " ", "{", "[]", "null", "1", '"text"', '{"metadata": 1}', '{"metadata": []}', '{"metadata": {"name": 1}}',
    '{"metadata": {"name": "a", "labels": {"x": 1}}}', '{"metadata": {"name": "a", "labels": []}}',
    '{"metadata": {"name": "a", "finalizers": "x"}}', '{"metadata": {"name": "a"}, "data": [1]}',
    '{"metadata": {"name": "a"}, "data": {"x": {"y": 1}}}', '{"metadata": {"name": "a"}, "data": NaN}',
    '{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}}',
    '{"apiVersion": "v2", "metadata": {"name": "a"}}',
    '{"metadata": {"name": "a", "ownerReferences": [{"name": "x"}]}}', "kind: [unclosed", DEEP, "\x00\x01\x02",
    '{"metadata": {"name": "a\\u0000b"}}',
])  # fmt: skip
def test_a_malformed_object_is_refused(api: Cluster, namespace: str, body: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert_refused(api, api.http("POST", path, body))
    assert_refused(api, api.http("POST", path, body, content_type="application/yaml"))


@pytest.mark.parametrize("media", [MERGE, JSON_PATCH, STRATEGIC, APPLY])
@pytest.mark.parametrize("body", ["", "{", "null", "[1]", '[{"op": "add"}]', '[{"op": "fly", "path": "/a"}]',
                                  '[{"op": "add", "path": "nothing", "value": 1}]', '{"metadata": "x"}',
                                  '{"metadata": {"name": "other"}}', '{"kind": 1}', '{"data": "x"}', DEEP])  # fmt: skip
def test_a_malformed_patch_is_refused(api: Cluster, namespace: str, media: str, body: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.http("POST", path, configmap("a")).expect(201)
    answer = api.http("PATCH", f"{path}/a?fieldManager=m", body, content_type=media)
    if answer.status == 200:  # a real server takes a patch of null as one that changes nothing
        assert body in ("null", "{}")
        assert media != APPLY
    else:
        assert_refused(api, answer)


@pytest.mark.parametrize("media", ["text/plain", "application/octet-stream", "multipart/form-data", "application/xml"])
def test_other_media_types_are_refused(api: Cluster, namespace: str, media: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert api.http("POST", path, "{}", content_type=media).expect(415)["reason"] == "UnsupportedMediaType"
    api.http("POST", path, configmap("a")).expect(201)
    assert api.http("PATCH", f"{path}/a", "{}", content_type=media).status == 415
    assert api.http("PATCH", f"{path}/a", "{}", content_type="application/json").status == 415


def test_an_answer_nobody_can_give_is_not_acceptable(api: Cluster) -> None:
    assert api.http("GET", "/api/v1/namespaces", accept="text/html").status == 406


def test_a_huge_object_is_refused(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert_refused(api, api.http("POST", path, configmap("a", {"x": "y" * 1_100_000})))
    assert api.http("POST", path, configmap("a", {"x": "y" * 4_000_000})).expect(413)["reason"] == (
        "RequestEntityTooLarge")  # fmt: skip


@pytest.mark.parametrize("query", ["limit=x", "labelSelector=a%20b%20c", "fieldSelector=x", "resourceVersion=x",
                                   "continue=%00", "limit=1&continue=e30%3D"])  # fmt: skip
def test_a_malformed_query_is_refused(api: Cluster, namespace: str, query: str) -> None:
    assert_refused(api, api.http("GET", f"/api/v1/namespaces/{namespace}/configmaps?{query}"))


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/api/v1/namespaces/default/configmaps/x"), ("PUT", "/api/v1/namespaces/default/configmaps"),
    ("PATCH", "/api/v1/namespaces/default/configmaps"), ("POST", "/api/v1/configmaps"),
    ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
])  # fmt: skip
def test_a_verb_that_a_path_does_not_have_is_refused(api: Cluster, method: str, path: str) -> None:
    answer = api.http(method, path, "{}", content_type=MERGE if method == "PATCH" else "application/json")
    assert answer.status in (404, 405)


@pytest.mark.parametrize("query", ["dryRun=Some", "fieldValidation=Loose", "fieldManager=" + "x" * 200, "force=true"])
def test_unknown_options_are_refused(api: Cluster, widgets: str, query: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    assert_refused(api, api.http("PATCH", f"{widgets}/a?{query}", {}, content_type=MERGE))


_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["spec", "metadata", "name", "size", "color", "parts", "id", "map", "tags", "status", "free",
                         "labels", "x", "finalizers", "one", "port", "when"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_JSON, verb=st.sampled_from(["POST", MERGE, APPLY, "PUT", "STATUS"]))
def test_random_bodies_get_an_orderly_answer(api: Cluster, widgets: str, body: Any, verb: str) -> None:
    if isinstance(body, dict) and verb == "POST":
        body = {"metadata": {"name": "fuzz"}, **body}
    if verb == "POST":
        answer = api.http("POST", f"{widgets}?dryRun=All", body)
    elif verb == "PUT":
        answer = api.http("PUT", f"{widgets}/fuzzed", body)
    else:
        media = MERGE if verb == "STATUS" else verb
        path = f"{widgets}/fuzzed" + ("/status" if verb == "STATUS" else "")
        api.http("POST", widgets, widget("fuzzed"))
        answer = api.http("PATCH", f"{path}?fieldManager=fuzz&dryRun=All", body, content_type=media)
    if answer.status >= 300:
        assert_refused(api, answer)
