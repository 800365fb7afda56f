"""What may change after a job was created: almost nothing, because a run is the answer to one question.

`CHANGEABLE` of `runPolicy` may change at any time, `queue` while the job is suspended. The same rules as CEL
transition rules and in Python, with the same message.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ptapi.errors import Finding
from ptapi.rule import seen
from ptapi.spec import PostTrainJob, PostTrainJobSpec, RunPolicy

CHANGEABLE = ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
MESSAGE = (
    "cannot change after creation; accepted changes: runPolicy.suspend, runPolicy.activeDeadlineSeconds, "
    "runPolicy.ttlSecondsAfterFinished, and queue while suspended; hint: create a job with another name"
)
QUEUE_MESSAGE = "may change only while runPolicy.suspend is true; hint: suspend the job first"


def frozen_fields(model: type[BaseModel]) -> list[str]:
    """Fields of the spec, or of its run policy, that never change."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    free = CHANGEABLE if model is RunPolicy else ("runPolicy", "queue")
    return [name for name in names if name not in free]


def transition_rule(field: str) -> str:
    """CEL: the field is absent before and after, or the same."""
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


QUEUE_RULE = f"({transition_rule('queue')}) || oldSelf.runPolicy.suspend"


def check_changes(old: PostTrainJob, new: PostTrainJob) -> list[Finding]:
    """The changes from old to new that are not accepted."""
    findings = _changed("spec", PostTrainJobSpec, old.spec, new.spec)
    findings += _changed("spec.runPolicy", RunPolicy, old.spec.run_policy, new.spec.run_policy)
    if old.spec.queue != new.spec.queue and not old.spec.run_policy.suspend:
        findings.append(_finding("spec.queue", new.spec.queue, QUEUE_MESSAGE))
    return findings


def _changed(path: str, model: type[BaseModel], old: BaseModel, new: BaseModel) -> list[Finding]:
    frozen = set(frozen_fields(model))
    names = [name for name, field in model.model_fields.items() if (field.alias or name) in frozen]
    return [
        _finding(f"{path}.{model.model_fields[name].alias}", getattr(new, name), MESSAGE)
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]


def _finding(field: str, value: Any, message: str) -> Finding:
    accepted, _, hint = message.partition("; hint: ")
    return Finding(field, "(not shown)" if field == "spec.env" else seen(value), accepted, hint)
