"""ptctl under test: the whole program in this process, on a fake cluster that keeps its objects in a dict."""

import copy
import inspect
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from ptctl.cli import root
from ptctl.ui.app import App, Target
from ptctl.ui.console import Console
from ptctl.ui.exit_codes import report
from ptkube.client import Kube, ListResult
from ptkube.errors import AlreadyExists, ApiError, NotFound
from ptkube.resources import Resource

Manifest = dict[str, Any]
Invoke = Callable[..., "Outcome"]


class Stream(io.StringIO):
    """A stream with a fixed answer to isatty()."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@dataclass
class FakeKube:
    """What ptctl asks of a cluster. `events` are what a watch yields, and are applied as they are yielded."""

    namespace: str = "default"
    objects: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    events: list[tuple[str, Manifest]] = field(default_factory=list)
    logs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    error: ApiError | None = None
    targets: list[Target] = field(default_factory=list)
    http: dict[str, str] = field(default_factory=dict)

    def put(self, r: Resource, body: Manifest) -> Manifest:
        meta = body["metadata"]
        body = {
            **body,
            "metadata": {
                "namespace": "default",
                "uid": f"uid-{meta['name']}",
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **meta,
            },
        }
        self.objects[(r.plural, body["metadata"]["namespace"], meta["name"])] = body
        return body

    def get(self, r: Resource, name: str, namespace: str | None = None) -> Manifest:
        self._raise()
        try:
            return copy.deepcopy(self.objects[(r.plural, namespace or self.namespace, name)])
        except KeyError:
            raise NotFound(404, "NotFound", f'{r.plural}.{r.group} "{name}" not found') from None

    def list(
        self, r: Resource, namespace: str | None = None, *, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        self._raise()
        self.calls.append(("list", (r.plural, namespace, labels, fields)))
        matches = [
            copy.deepcopy(body)
            for (plural, ns, name), body in self.objects.items()
            if plural == r.plural
            and namespace in (None, ns)
            and _has(body, labels)
            and fields
            in (None, f"metadata.name={name}", f"involvedObject.name={body.get('involvedObject', {}).get('name')}")
        ]
        return ListResult(matches, "1")

    def create(self, r: Resource, body: Manifest, *, dry_run: bool, strict: bool) -> Manifest:
        assert strict, "the server would leave out what it does not know"
        self._raise()
        self.calls.append(("create", (copy.deepcopy(body), dry_run)))
        key = (r.plural, body["metadata"]["namespace"], body["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", "already exists")
        return body if dry_run else self.put(r, body)

    def patch(self, r: Resource, name: str, namespace: str | None, body: Manifest) -> Manifest:
        self.calls.append(("patch", (name, namespace, body)))
        return {}

    def delete(
        self,
        r: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        propagation: str = "",
        grace_s: int | None = None,
    ) -> None:
        self.calls.append(("delete", name if grace_s is None else (name, grace_s)))
        self.objects.pop((r.plural, namespace or self.namespace, name))

    def watch(self, r: Resource, namespace: str | None = None, **options: Any) -> Iterator[tuple[str, Manifest]]:
        while self.events:
            kind, body = self.events.pop(0)
            body = self.put(
                r, {**body, "metadata": {**body["metadata"], "resourceVersion": str(len(self.events) + 10)}}
            )
            if kind == "DELETED":
                self.objects.pop((r.plural, body["metadata"]["namespace"], body["metadata"]["name"]))
            yield kind, body
        if not options.get("timeout_s"):
            raise KeyboardInterrupt  # a watch without an end ends by Ctrl-C

    def pod_http(self, name: str, namespace: str, port: int, path: str) -> str:
        self._raise()
        return self.http[f"{namespace}/{name}:{port}/{path}"]

    def pod_logs(self, name: str, namespace: str, **options: Any) -> Iterator[str]:
        options = inspect.signature(Kube.pod_logs).bind(self, name, namespace, **options).arguments
        self.calls.append(("logs", (name, options.get("since_s"))))
        lines, tail = self.logs[(name, options.get("container", "trainer"))], options.get("tail")
        return iter(lines if tail is None else lines[len(lines) - min(tail, len(lines)) :])

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


def _has(body: Manifest, labels: str | None) -> bool:
    own = body["metadata"].get("labels") or {}
    wanted = (term.partition("=") for term in (labels or "").split(",") if term)
    return all(own.get(key) == value if sign else key in own for key, sign, value in wanted)


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def invoke(kube: FakeKube) -> Invoke:
    """Run ptctl with these words; `terminal` makes both streams terminals."""

    def run(*words: str, terminal: bool = False, env: Mapping[str, str] | None = None) -> Outcome:
        out, err = Stream(terminal), Stream(terminal)

        def connect(target: Target) -> Kube:
            kube.targets.append(target)
            return cast(Kube, kube)

        app = App(Console(out, err, env or {}), connect)
        try:
            result = root.main(list(words), prog_name="ptctl", standalone_mode=False, obj=app)
            code = result if isinstance(result, int) else 0
        except BaseException as error:
            code = report(error, app.console)
        return Outcome(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def make_job() -> Callable[..., Manifest]:
    """A PostTrainJob as the API server has it: `status` fields by keyword."""

    def make(
        name: str = "a",
        phase: str = "Running",
        *,
        namespace: str = "default",
        spec: Manifest | None = None,
        labels: Manifest | None = None,
        **status: Any,
    ) -> Manifest:
        return {
            "apiVersion": "posttrain.dev/v1alpha1",
            "kind": "PostTrainJob",
            "metadata": {"name": name, "namespace": namespace, **({"labels": labels} if labels else {})},
            "spec": {
                "model": {"uri": "random://tiny"},
                "algorithm": {"grpo": {}},
                "data": {"train": {"uri": "file:///data/train.jsonl"}},
                "accelerator": {"type": "cpu-1"},
                "output": {"uri": "file:///runs"},
                **(spec or {}),
            },
            "status": {"phase": phase, **status},
        }

    return make


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """The shortest job of the README."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "apiVersion: posttrain.dev/v1alpha1\nkind: PostTrainJob\nmetadata: {name: llama-gsm8k}\nspec:\n"
        "  model: {uri: gs://my-bucket/models/llama-3.1-8b-instruct}\n  algorithm: {grpo: {}}\n"
        "  data: {train: {uri: gs://my-bucket/gsm8k/train.jsonl}}\n  rewards: [{builtin: gsm8k}]\n"
        "  accelerator: {type: v6e-16}\n  output: {uri: gs://my-bucket/runs}\n"
    )
    return path
