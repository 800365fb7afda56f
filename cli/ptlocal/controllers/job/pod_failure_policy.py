"""podFailurePolicy: which rule a failed pod matches. The messages are Kubernetes' own; JobSet's patterns match on them.

Left out: the action FailIndex (it needs backoffLimitPerIndex); such a rule counts the failure.
"""

from dataclasses import dataclass

from ptkube.objects import container_statuses
from ptkube.resources import Manifest


@dataclass(frozen=True)
class Verdict:
    """The result. `message` is set if the whole Job fails; `counts` says if backoffLimit is charged."""

    counts: bool = True
    message: str | None = None


def judge(policy: Manifest | None, pod: Manifest) -> Verdict:
    """Return the verdict of the first matching rule; without one the failure counts."""
    for index, rule in enumerate((policy or {}).get("rules") or []):
        what = _match(rule, pod)
        if what is None:
            continue
        if rule["action"] == "Ignore":
            return Verdict(counts=False)
        if rule["action"] == "FailJob":
            return Verdict(message=f"{what} matching FailJob rule at index {index}")
        return Verdict()
    return Verdict()


def _match(rule: Manifest, pod: Manifest) -> str | None:
    meta = pod["metadata"]
    name = f"{meta['namespace']}/{meta['name']}"
    if rule.get("onExitCodes"):
        status = _exit_code_match(rule["onExitCodes"], pod)
        if status is None:
            return None
        code = status["state"]["terminated"]["exitCode"]
        return f"Container {status['name']} for pod {name} failed with exit code {code}"
    wanted = {(c["type"], c.get("status") or "True") for c in rule.get("onPodConditions") or []}
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if (condition["type"], condition["status"]) in wanted:
            return f"Pod {name} has condition {condition['type']}"
    return None


def _exit_code_match(requirement: Manifest, pod: Manifest) -> Manifest | None:
    only = requirement.get("containerName")
    for status in container_statuses(pod):
        code = (status.get("state") or {}).get("terminated", {}).get("exitCode")
        if not code or (only and status["name"] != only):
            continue  # still running, or exit code 0, which no rule can match
        if (code in requirement["values"]) == (requirement["operator"] == "In"):
            return status
    return None
