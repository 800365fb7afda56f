"""The failure policy: which rule a failed child Job matches, and how its action changes the status.

The first rule that any failed Job matches wins; without a match the JobSet restarts within maxRestarts. Left out,
because they are behind alpha gates in JobSet 0.12: RestartJob, RestartJobAndIgnoreMaxRestarts and the in-place restart
strategy; they fail the JobSet with a message.
"""

import re

from ptkube.objects import true_condition
from ptkube.resources import Manifest
from ptlocal.controllers.jobset.children import replicated_job_of
from ptlocal.controllers.jobset.conditions import RESTARTING, EventNote, StatusDraft

FAIL = "FailJobSet"
RESTART = "RestartJobSet"
RESTART_FREE = "RestartJobSetAndIgnoreMaxRestarts"


def apply_failure_policy(jobset: Manifest, failed: list[Manifest], draft: StatusDraft) -> None:
    """Apply the matching rule's action to the status."""
    first = min(failed, key=_failed_at)
    policy = jobset["spec"].get("failurePolicy")
    if policy is None:
        draft.fail("FailedJobs", _with_job("jobset failed due to one or more job failures", first))
        return
    rule, job = matching_rule(policy.get("rules") or [], failed)
    job = job or first
    action = rule["action"] if rule else RESTART
    if action == FAIL:
        draft.fail("FailJobSetFailurePolicyAction", _with_job("applying FailJobSet failure policy action", job))
    elif action == RESTART and draft.status["restartsCountTowardsMax"] >= policy["maxRestarts"]:
        draft.fail("ReachedMaxRestarts", _with_job("jobset failed due to reaching max number of restarts", job))
    elif action in (RESTART, RESTART_FREE):
        _restart(draft, rule, job, action)
    else:
        draft.fail("UnsupportedFailurePolicyAction", _with_job(f"this controller does not know action {action}", job))


def matching_rule(rules: list[Manifest], failed: list[Manifest]) -> tuple[Manifest | None, Manifest | None]:
    """Return the first rule that applies to any failed Job, with the first Job that failed among them."""
    for rule in rules:
        matched = [job for job in failed if _applies(rule, job)]
        if matched:
            return rule, min(matched, key=_failed_at)
    return None, None


def _applies(rule: Manifest, job: Manifest) -> bool:
    condition = true_condition(job, "Failed") or {}
    reasons = rule.get("onJobFailureReasons") or []
    patterns = rule.get("onJobFailureMessagePatterns") or []
    targets = rule.get("targetReplicatedJobs") or []
    return (
        (not reasons or condition.get("reason") in reasons)
        and (not patterns or any(_matches(p, str(condition.get("message") or "")) for p in patterns))
        and (not targets or replicated_job_of(job) in targets)
    )


def _matches(pattern: str, message: str) -> bool:
    """Return True if the pattern occurs. Python's syntax covers JobSet's RE2; an invalid pattern matches nothing."""
    try:
        return re.search(pattern, message) is not None
    except re.error:
        return False


def _restart(draft: StatusDraft, rule: Manifest | None, job: Manifest, action: str) -> None:
    message = _with_job(f"applying {action} failure policy action", job)
    draft.status["restarts"] += 1
    if action == RESTART:
        draft.status["restartsCountTowardsMax"] += 1
    reason = f"FailurePolicy_{rule['name']}" if rule else "DefaultFailurePolicy"
    draft.set(RESTARTING, "True", reason, message, warning=True)
    draft.events.append(EventNote("Warning", f"{action}FailurePolicyAction", message))


def _failed_at(job: Manifest) -> tuple[str, str]:
    condition = true_condition(job, "Failed") or {}
    return str(condition.get("lastTransitionTime") or ""), str(job["metadata"]["name"])


def _with_job(message: str, job: Manifest) -> str:
    return f"{message} (first failed job: {job['metadata']['name']})"
