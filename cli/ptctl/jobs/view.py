"""A job as the verbs read it: one frozen value, built from the API server's response in one place.

Deliberately not the pydantic model of `ptapi.status`: importing that costs more CPU time than listing a
thousand jobs may take, and extra fields of a newer operator must not break an older ptctl.
"""

from dataclasses import dataclass, field
from typing import Any

from ptctl.ui.command_line.choices import ALGORITHMS
from ptkube.resources import Manifest

TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True)
class JobView:
    """The fields of a job that tables, waits and descriptions need. Absent values are empty strings, 0 or None."""

    name: str
    namespace: str
    uid: str
    created: str
    phase: str
    algorithm: str
    accelerator: str
    slices: int
    chips: int
    step: int
    total: int
    eta: str
    stage: str
    loss: str
    reward: str
    restarts: int
    queue: str
    run_uri: str
    job_set: str
    suspended: bool
    deleting: bool
    failure: str
    raw: Manifest = field(repr=False)

    @property
    def is_terminal(self) -> bool:
        """Return True if the job has succeeded or failed."""
        return self.phase in TERMINAL

    @property
    def progress(self) -> str:
        """Return `40/300`, or an empty string before the first step."""
        return f"{self.step}/{self.total}" if self.total else ""

    def condition(self, kind: str) -> Manifest | None:
        """Return the condition of that type, if present."""
        return next((c for c in part(self.raw, "status", "conditions", missing=[]) if c.get("type") == kind), None)


def view(job: Manifest) -> JobView:
    """Build a JobView from a PostTrainJob manifest."""
    meta, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    progress, metrics = status.get("progress") or {}, status.get("metrics") or {}
    accelerator, failure = spec.get("accelerator") or {}, status.get("failure") or {}
    kind = str(failure.get("failureClass") or "")
    name = str(meta.get("name") or meta.get("generateName") or "")
    output = str(part(spec, "output", "uri", missing=""))
    return JobView(
        name=name,
        namespace=str(meta.get("namespace") or ""),
        uid=str(meta.get("uid") or ""),
        created=str(meta.get("creationTimestamp") or ""),
        phase=str(status.get("phase") or "Pending"),
        algorithm=str(status.get("algorithm") or _algorithm(spec)),
        accelerator=str(accelerator.get("type") or ""),
        slices=int(accelerator.get("slices") or 1),
        chips=int(status.get("chips") or 0),
        step=int(progress.get("step") or 0),
        total=int(progress.get("total") or 0),
        eta=str(progress.get("eta") or ""),
        stage=str(progress.get("stage") or ""),
        loss=str(metrics.get("loss") or ""),
        reward=str(metrics.get("reward") or ""),
        restarts=sum(int(count) for count in (status.get("restarts") or {}).values()),
        queue=str(spec.get("queue") or ""),
        run_uri=str(part(status, "links", "run", missing="")) or (f"{output.rstrip('/')}/{name}" if output else ""),
        job_set=str(status.get("jobSet") or ""),
        suspended=bool(part(spec, "runPolicy", "suspend", missing=False)),
        deleting=bool(meta.get("deletionTimestamp")),
        failure=f"{kind}: {failure.get('message') or ''}" if kind else "",
        raw=job,
    )


def part(manifest: Manifest, *path: str, missing: Any) -> Any:
    """Return the value at the path, or `missing` if any step of it is absent or null."""
    value: Any = manifest
    for step in path:
        value = (value or {}).get(step)
    return missing if value is None else value


def _algorithm(spec: Manifest) -> str:
    """Return the algorithm's label before the operator has written one: the GRPO variant, or the name."""
    if part(spec, "runtime", "function", missing=None):
        return "function"
    algorithm = spec.get("algorithm") or {}
    name = next((kind for kind in ALGORITHMS if algorithm.get(kind) is not None), "")
    return str(algorithm[name].get("loss") or name) if name == "grpo" else name
