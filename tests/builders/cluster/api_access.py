"""Ways to talk to the API server under test: the project's client, the official one, plain HTTP, watches, kubectl."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from ptkube.client import Kube, NotFound
from ptkube.resources import Resource

Manifest = dict[str, Any]


def find(kube: Kube, resource: Resource, name: str, namespace: str | None = None) -> Manifest | None:
    """An object, or None."""
    try:
        return kube.get(resource, name, namespace)
    except NotFound:
        return None


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    def expect(self, status: int) -> Any:
        """The decoded body, if the status is the expected one."""
        assert self.status == status, f"{self.status}: {self.text[:2000]}"
        return self.json


@dataclass(frozen=True)
class Cluster:
    """`data` is the embedded server's data directory; `context` names one of the kubeconfig's, None the current."""

    kubeconfig: Path
    context: str | None = None
    is_embedded: bool = False
    has_controller_manager: bool = False
    data: Path | None = None

    @cached_property
    def kube(self) -> Kube:
        return Kube.load(str(self.kubeconfig), self.context)

    @cached_property
    def client(self) -> Any:
        """The official Python client."""
        from kubernetes import config

        return config.new_client_from_config(str(self.kubeconfig), self.context)

    def http(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
    ) -> Answer:
        """One request as it goes over the wire; a str or bytes body is sent as it is."""
        response = self._request(method, path, body, content_type, accept, token)
        return Answer(response.status, response.headers, response.data.decode("utf-8", "replace"))

    def _request(
        self, method: str, path: str, body: Any, content_type: str, accept: str, token: str | None, **options: Any
    ) -> Any:
        settings = self.client.configuration.auth_settings()
        headers = {entry["key"].title(): entry["value"] for entry in settings.values() if entry["value"]}
        headers |= {"Accept": accept, "User-Agent": "conformance/1.0"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = content_type
        data = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
        return self.client.rest_client.pool_manager.request(
            method,
            self.client.configuration.host + path,
            body=data,
            headers=headers,
            timeout=900,
            retries=False,
            **options,
        )

    @contextmanager
    def watch(self, path: str) -> Iterator[Watch]:
        response = self._request("GET", path, None, "", "application/json", None, preload_content=False)
        if response.status != 200:
            raise AssertionError(f"{response.status}: {response.read().decode()[:2000]}")
        connection = response.connection.sock
        watch = Watch(response)
        try:
            yield watch
        finally:
            # not response.close(): that waits for the reader, which waits for the server
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def kubectl(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """kubectl on this server; skips the test where there is none. A failing command does not raise."""
        if shutil.which("kubectl") is None:
            pytest.skip("kubectl is not on PATH")
        env = {**os.environ, "KUBECACHEDIR": str(self.kubeconfig.parent / "kubectl-cache")}
        context = ["--context", self.context] if self.context else []
        return subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), *context, *arguments],
            input=stdin,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            env=env,
            check=False,
        )


class Watch:
    """Events of a watch, read in a thread so that a test can also see that nothing comes."""

    def __init__(self, response: Any) -> None:
        self.events: list[tuple[str, Manifest]] = []
        self.is_over = False
        self._response = response
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        rest = b""
        try:
            for chunk in self._response.stream(1024, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                with self._changed:
                    self.events += [(e["type"], e["object"]) for e in map(json.loads, filter(None, lines))]
                    self._changed.notify_all()
        except Exception:
            pass  # the test closed the connection
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def wait_for(
        self, is_so: Callable[[list[tuple[str, Manifest]]], Any], timeout_s: float = 120.0
    ) -> list[tuple[str, Manifest]]:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.events), timeout_s), f"only {self.events}"
            return list(self.events)

    def first(self, count: int) -> list[tuple[str, str]]:
        """(type, name) of the first events, once there are so many."""
        received = self.wait_for(lambda events: len(events) >= count)
        return [(kind, item["metadata"]["name"]) for kind, item in received[:count]]

    def until_over(self, timeout_s: float = 120.0) -> list[tuple[str, Manifest]]:
        with self._changed:
            assert self._changed.wait_for(lambda: self.is_over, timeout_s), "the watch did not end"
            return list(self.events)
