"""The failure policy: rules by which Job and JobSet react to a failed pod without asking the operator.

A Job only knows "failed"; its reason is `PodFailurePolicy` for every rule below, so the JobSet tells them apart by the
Job controller's message, whose wording is part of the pattern. Three outcomes:

- exit codes after which the same job would fail again: the JobSet fails at once;

- disruption (preemption, maintenance, eviction, a drained node) and "SIGTERM came, checkpoint saved": restart without
charging `maxRestarts`, however often;

- everything else: restart within `maxRestarts`.

Disruption comes first among the Job's rules: a lost node may make a process exit with any code.
"""

from ptapi.failures import FATAL_EXIT_CODES, ExitCode
from ptkube.resources import Manifest

FATAL = "fatalExit"
DISRUPTED = "disrupted"
SAVED = "preemptedSaved"
RESTART_REASON_PREFIX = "FailurePolicy_"
"""The JobSet's RestartingJobSet condition has this and the rule's name as its reason."""
REACHED_MAX = "ReachedMaxRestarts"
"""Reason of the JobSet's Failed condition when it has restarted as often as it was told."""

_RULE = r"matching FailJob rule"


def pod_failure_policy() -> Manifest:
    """Return when a pod's failure fails its Job for a known reason. Any other failure exhausts `backoffLimit: 0`."""
    return {
        "rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [int(ExitCode.PREEMPTED_SAVED)]}},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(FATAL_EXIT_CODES)}},
        ]
    }


def disruption_policy() -> Manifest:
    """Return the rules for pods that are not the trainer's: only disruption counts, not their exit codes."""
    return {"rules": [rule for rule in pod_failure_policy()["rules"] if "onPodConditions" in rule]}


def ignored_disruption_policy() -> Manifest:
    """Return the rules for pods that come back by themselves: a disrupted one is recreated and not counted."""
    return {"rules": [{**rule, "action": "Ignore"} for rule in disruption_policy()["rules"]]}


def sampler_failure_policy() -> Manifest:
    """Return the rules for samplers, which their Jobs make anew: disrupted or drained, they are not counted.

    A configuration that no sampler can start with fails the JobSet at once, as the trainer's would.
    """
    disrupted, saved, fatal = pod_failure_policy()["rules"]
    return {"rules": [{**disrupted, "action": "Ignore"}, {**saved, "action": "Ignore"}, fatal]}


def supervised_failure_policy() -> Manifest:
    """Return the rules for pods whose supervisors restart the trainer: their Jobs replace a lost one.

    A supervisor ends with an exit code of the trainer only when the whole run ends so, its restarts spent.
    """
    disrupted, saved, fatal = sampler_failure_policy()["rules"]
    ends = sorted({int(code) for code in ExitCode} - {ExitCode.OK, ExitCode.PREEMPTED_SAVED, *FATAL_EXIT_CODES})
    spent = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": ends}}
    return {"rules": [disrupted, saved, fatal, spent]}


def failure_policy(max_restarts: int) -> Manifest:
    """Return what the JobSet does about a failed Job. BlockingRecreate: two attempts never write one run directory."""
    fatal = "|".join(str(code) for code in FATAL_EXIT_CODES)
    return {
        "maxRestarts": max_restarts,
        "restartStrategy": "BlockingRecreate",
        "rules": [
            _rule(FATAL, "FailJobSet", rf"failed with exit code ({fatal}) {_RULE}"),
            _rule(DISRUPTED, "RestartJobSetAndIgnoreMaxRestarts", rf"has condition DisruptionTarget {_RULE}"),
            _rule(
                SAVED,
                "RestartJobSetAndIgnoreMaxRestarts",
                rf"failed with exit code {int(ExitCode.PREEMPTED_SAVED)} {_RULE}",
            ),
        ],
    }


def _rule(name: str, action: str, pattern: str) -> Manifest:
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [pattern],
    }
