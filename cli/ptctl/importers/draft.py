"""A job in the making: the fields that are known, and a note for each part of the source that became no field."""

from dataclasses import dataclass, field
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.secrets import secret_name, variable_of, without_secrets
from ptctl.jobs.definition.from_flags import empty_job
from ptkube.resources import Manifest

FILL_IN = "FILL IN"
"""Stands for a required value that the source does not have; no field accepts it."""
_REQUIRED = {
    "metadata.name": ("imported", "the job's name"),
    "spec.model.uri": ("gs://bucket/model", "the model: hf://organisation/name or gs://bucket/directory"),
    "spec.data.train.uri": ("hf://datasets/organisation/name", "the training data: gs://… or hf://datasets/…"),
    "spec.accelerator.type": ("v5p-128", "the TPUs: v5p-128, v6e-16, …"),
    "spec.output.uri": ("gs://bucket/runs", "where results go: gs://bucket/directory"),
}
"""Fields that every job has: an example that stands in while the others are checked, and what to write."""
_IMAGE = {"spec.image": ("registry/image:tag", "an image with the program: build it, because nothing builds it here")}
"""What other runtimes than posttrain's own need."""
_ORDER = ("image", "imagePullSecrets", "runtime", "model", "algorithm", "data", "rewards", "training", "rollout",
          "evaluation", "checkpoint", "export", "accelerator", "capacity", "pathways", "runPolicy", "queue",
          "priorityClassName", "serviceAccountName", "env", "volumes", "output")  # fmt: skip


@dataclass
class Draft:
    """The job of one source, which `source` names (`xpk workload create`).

    changes: parts without a counterpart, without which something else is trained; secrets: Secrets by variable; blanks:
    more fields that are left to fill in, each with an example and what to write.
    """

    source: str
    job: Manifest = field(default_factory=empty_job)
    notes: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    blanks: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def put(self, path: str, value: Any, origin: str) -> None:
        """Set a field. Raises InputError if it has another value already. origin: the part of the source for it."""
        keys = path.split(".")
        parent = self.job
        for key in keys[:-1]:
            parent = parent.setdefault(key, {})
        if keys[-1] in parent and parent[keys[-1]] != value:
            raise InputError(f"{origin}: contradicts {path}: {parent[keys[-1]]!r}; accepted: one value")
        parent[keys[-1]] = value

    def get(self, path: str) -> Any:
        """Return a field's value, or None."""
        node: Any = self.job
        for key in path.split("."):
            node = node.get(key) if isinstance(node, dict) else None
        return node

    def note(self, part: str, advice: str) -> None:
        """Note a part of the source that became no field, and what to do."""
        self.notes.append(without_secrets(f"{part}: {advice}")[0])

    def change(self, part: str, effect: str) -> None:
        """Note a part of the source without which something else is trained."""
        self.changes.append(without_secrets(f"{part}: {effect}")[0])

    def blank(self, path: str, example: Any, hint: str) -> None:
        """Leave a field to fill in, unless it is set in the end."""
        self.blanks[path] = (example, hint)

    def variable(self, name: str, value: str) -> None:
        """Set an environment variable."""
        variables = self.job["spec"].setdefault("env", [])
        variables[:] = [one for one in variables if one["name"] != name]
        variables.append({"name": name, "value": value})

    def secret(self, variable: str) -> None:
        """Take a variable from a Secret; the hub's token has a field of its own."""
        self.secrets[variable] = name = secret_name(variable)
        if variable_of(variable) == "HF_TOKEN":
            self.job["spec"].setdefault("model", {}).setdefault("tokenSecretRef", {"name": name})
        if variable != "HF_TOKEN" and all(one["name"] != variable for one in self.job["spec"].get("env", ())):
            reference = {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}}
            self.job["spec"].setdefault("env", []).append(reference)

    def missing(self) -> dict[str, tuple[Any, str]]:
        """Return the required fields that the source does not have."""
        runtime = self.get("spec.runtime") or {}
        image = _IMAGE if runtime.get("container") or runtime.get("maxtext") else {}
        required = {**image, **_REQUIRED, **self.blanks}
        return {path: hint for path, hint in required.items() if self.get(path) is None}

    def filled(self, *, examples: bool) -> Manifest:
        """Return the job with its keys in order, and examples, or `FILL IN` and the path, for missing fields."""
        spec = {key: _copy(self.job["spec"][key]) for key in _ordered(self.job["spec"])}
        whole = Draft(self.source, {**self.job, "metadata": dict(self.job["metadata"]), "spec": spec})
        for path, (example, _) in self.missing().items():
            whole.put(path, example if examples else f"{FILL_IN} {path}", path)
        return {**whole.job, "spec": {key: whole.job["spec"][key] for key in _ordered(whole.job["spec"])}}


def _ordered(spec: Manifest) -> list[str]:
    return sorted(spec, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER))


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(below) for key, below in value.items() if below != {} or key in _EMPTY}
    return [_copy(below) for below in value] if isinstance(value, list) else value


_EMPTY = ("sft", "dpo", "kto", "reward", "grpo", "ppo", "raft", "sdpo", "distill", "native")
"""Maps that mean something although they are empty."""
