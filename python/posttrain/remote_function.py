"""`@posttrain.remote`: any function as a job, its value or exception here.

A call is a PostTrainJob of `runtime.function`. So queues, capacity, failure classes, restarts and `ptctl` are those of
every job; this module writes the job, and `Run.value` reads what it returned.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from posttrain import content_store, function_packing
from posttrain.errors import Error
from posttrain.job import PostTrainJob

if TYPE_CHECKING:
    from posttrain.client import Client
    from posttrain.run import Run

P = ParamSpec("P")
R = TypeVar("R")

OUTPUT_ENV = "POSTTRAIN_OUTPUT"
"""Where calls keep what they return, if `output` is not given."""
_MOST_CODE = 100_000
"""Characters of a function and its arguments in the job itself; more goes to the output."""
_MOST_ARGUMENTS = 65_536
"""Bytes of arguments in the job itself."""
_MOST_NAME = 50
_NOT_READ = {
    "model": {"uri": "random://tiny"},
    "algorithm": {"sft": {}},
    "data": {"train": {"uri": "file:///not-read"}},
}
"""Fields that every job has, and a function's job does not read."""


def remote(
    *,
    accelerator: str | Mapping[str, Any],
    output: str | None = None,
    client: Client | None = None,
    namespace: str | None = None,
    requirements: Sequence[str] = (),
    image: str | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    volumes: Mapping[str, str] | None = None,
    capacity: str | Sequence[str | Mapping[str, Any]] | None = None,
    timeout: float | None = None,
    **fields: Any,
) -> Callable[[Callable[P, R]], Remote[P, R]]:
    """Make a function one that runs on a slice of a cluster.

    accelerator: such as `v6e-8` or `cpu-2`; output: a directory or bucket for what is returned, else POSTTRAIN_OUTPUT;
    client: else that of the current kubeconfig; requirements: packages for pip; image: one with posttrain's trainer;
    env: variables; secrets: variables by `SECRET` or `SECRET/KEY`; volumes: claims by the path where they are mounted;
    capacity: `spot`, or several ways in order; timeout: seconds after which the job fails. Other fields are the spec's:
    `queue="team"`, `pathways={"enabled": True}`, `run_policy={"max_restarts": 0}`.
    """
    given = {
        "accelerator": {"type": accelerator} if isinstance(accelerator, str) else accelerator,
        "image": image,
        "env": [*_variables(env), *_secrets(secrets)] or None,
        "volumes": _volumes(volumes) or None,
        "capacity": None if capacity is None else _capacity(capacity),
        "run_policy": None if timeout is None else {"active_deadline_seconds": max(1, round(timeout))},
    }
    if timeout is not None and "run_policy" in fields:
        given["run_policy"] = {**fields.pop("run_policy"), **cast(dict[str, Any], given["run_policy"])}
    options = {**{name: value for name, value in given.items() if value is not None}, **fields}
    return lambda function: Remote(function, options, list(requirements), output, client, namespace)


class Remote(Generic[P, R]):
    """A function whose calls are jobs; `__wrapped__` is the function itself, for a call here."""

    def __init__(
        self,
        function: Callable[P, R],
        options: Mapping[str, Any],
        requirements: Sequence[str],
        output: str | None,
        client: Client | None,
        namespace: str | None,
    ) -> None:
        update_wrapper(self, function)
        self._function, self._options, self._requirements = function, options, requirements
        self._output, self._given_client, self._namespace = output, client, namespace

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as a job, print its lines to stderr, and return its value or raise its exception.

        Ctrl-C ends the wait and not the job.
        """
        run = self.submit(*args, **kwargs)
        print(f"posttrain: job {run.name} (again later: client.get({run.name!r}).value())", file=sys.stderr, flush=True)
        lines = threading.Thread(target=_print_lines, args=(run,), daemon=True)
        lines.start()
        try:
            return cast(R, run.value())
        finally:
            lines.join(timeout=_LINES_S)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Submit a job that calls the function, and return its run: `run.value()` waits for what it returns."""
        job = self.job(*args, **kwargs)
        return self._client().submit(job)

    def map(self, inputs: Iterable[Any]) -> Iterator[R]:
        """Submit a call for each input, all at once, and yield the values in order; a failed call raises in its turn.

        As many run at a time as there are free slices, or as their queue admits. If one cannot be submitted, none
        runs.
        """
        runs: list[Run] = []
        try:
            for each in inputs:
                runs.append(cast("Remote[[Any], R]", self).submit(each))
        except BaseException:
            for run in runs:
                run.delete()
            raise
        return (cast(R, run.value()) for run in runs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> PostTrainJob:
        """Return the job of a call, with a name of its own; `submit` submits it."""
        output = self._output_uri()
        runtime = self._runtime(output, args, kwargs)
        fields = {**_NOT_READ, "runtime": {"function": runtime}, "output": {"uri": output}, **self._options}
        return PostTrainJob(name=_job_name(runtime["function"]), namespace=self._namespace, **fields)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the function itself: a call inside a job is a plain call."""
        return partial, (self._function,)

    def _runtime(self, output: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        runtime: dict[str, Any] = {"requirements": self._requirements} if self._requirements else {}
        parts = function_packing.dumps((args, dict(kwargs)), f"arguments of {function_packing.name_of(self._function)}")
        if sum(memoryview(part).nbytes for part in parts) <= _MOST_ARGUMENTS:
            name, code = function_packing.python_file(self._function, *args, **kwargs)
            if len(code) <= _MOST_CODE:
                return {"code": code, "function": name, **runtime}
        self._refuse_claim(output)
        name, code = function_packing.python_file(self._function)
        place = (
            {"code": code} if len(code) <= _MOST_CODE else {"uri": content_store.store(output, [code.encode()], ".py")}
        )
        return {**place, "function": name, "arguments": content_store.store(output, parts, ".pickle"), **runtime}

    def _refuse_claim(self, output: str) -> None:
        """Raise Error if what is too large for a job would have to be written to a claim from here."""
        for volume in self._options.get("volumes", []):
            path = volume.get("mount_path") or volume.get("mountPath")
            if output.startswith(f"file://{path}/"):
                raise Error(
                    f"a call of {function_packing.name_of(self._function)}: "
                    f"more than {_MOST_ARGUMENTS:,} bytes of arguments, "
                    f"or {_MOST_CODE:,} of code, for an output on the claim at {path}, which this machine cannot write",
                    "put the data on the claim and pass its path, or choose a bucket as output",
                )

    def _client(self) -> Client:
        if self._given_client is None:
            from posttrain.client import Client

            self._given_client = Client()
        return self._given_client

    def _output_uri(self) -> str:
        output = self._output or os.environ.get(OUTPUT_ENV) or self._client().local_output
        if not output:
            raise Error(
                f"output of {function_packing.name_of(self._function)}: (missing): accepted: gs://bucket/directory, or "
                "a directory that the pods and this machine share",
                f'remote(output="gs://…"), or the variable {OUTPUT_ENV}',
            )
        return content_store.uri(output)


_LINES_S = 5.0
"""Longest wait for the last lines after the value is there."""
_POLL_S = 0.2


def _print_lines(run: Run) -> None:
    try:
        for line in run.logs(follow=True, poll_s=_POLL_S):
            print(line, file=sys.stderr, flush=True)
    except Error:
        return  # the job ended before there was a log; the wait says why


def _job_name(function: str) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", function.lower()).strip("-0123456789")[:_MOST_NAME].strip("-") or "function"
    return f"{stem}-{secrets.token_hex(3)}"


def _variables(env: Mapping[str, str] | None) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in (env or {}).items()]


def _secrets(variables: Mapping[str, str] | None) -> list[dict[str, Any]]:
    return [
        {"name": name, "value_from": {"secret_key_ref": _secret_key(secret)}}
        for name, secret in (variables or {}).items()
    ]


def _secret_key(secret: str) -> dict[str, str]:
    name, slash, key = secret.partition("/")
    return {"name": name, "key": key} if slash else {"name": name}


def _volumes(claims: Mapping[str, str] | None) -> list[dict[str, Any]]:
    return [
        {"name": f"volume-{index}", "mount_path": path, "persistent_volume_claim": {"claim_name": claim}}
        for index, (path, claim) in enumerate((claims or {}).items())
    ]


def _capacity(ways: str | Sequence[str | Mapping[str, Any]]) -> list[Any]:
    listed = [ways] if isinstance(ways, str) else ways
    return [{"type": way} if isinstance(way, str) else way for way in listed]
