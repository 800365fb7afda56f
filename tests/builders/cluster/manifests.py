"""Small objects for the tests of the API server, and waiting for things to come true."""

import time
from collections.abc import Callable
from typing import Any

Manifest = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def is_established(crd: Manifest) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def widget(name: str, spec: Manifest | None = None, **metadata: Any) -> Manifest:
    return {
        "apiVersion": "conformance.posttrain.dev/v1",
        "kind": "Widget",
        "metadata": {"name": name, **metadata},
        "spec": spec or {},
    }


def pod(name: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example.com/image:1"}], **spec},
    }


def configmap(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {}}


def eventually(is_so: Callable[[], Any], timeout_s: float = 300.0, shown: Callable[[], Any] = lambda: "") -> Any:
    """The first true value; many things on a real server, or a busy machine, take a moment."""
    end = time.monotonic() + timeout_s
    while not (value := is_so()):
        assert time.monotonic() < end, f"it did not come to be in {timeout_s:.0f} s: {shown()}"
        time.sleep(0.05)
    return value
