"""The defaults of JobSet's mutating webhook, for API servers where that webhook does not run."""

import copy

from ptkube.resources import Manifest
from ptlocal.jobset_names import DEFAULT_GROUP


def with_defaults(jobset: Manifest) -> Manifest:
    """Return a copy in which every field that the controller reads is set."""
    jobset = copy.deepcopy(jobset)
    spec = jobset["spec"]
    spec.setdefault("suspend", False)
    spec.setdefault("successPolicy", {}).setdefault("operator", "All")
    spec.setdefault("startupPolicy", {}).setdefault("startupPolicyOrder", "AnyOrder")
    network = spec.setdefault("network", {})
    network.setdefault("enableDNSHostnames", True)
    network.setdefault("publishNotReadyAddresses", True)
    policy = spec.get("failurePolicy")
    if policy is not None:
        policy.setdefault("maxRestarts", 0)
        for index, rule in enumerate(policy.get("rules") or []):
            if not rule.get("name"):
                rule["name"] = f"failurePolicyRule{index}"
    for replicated in spec.get("replicatedJobs") or []:
        replicated.setdefault("replicas", 1)
        replicated.setdefault("groupName", DEFAULT_GROUP)
        job_spec = replicated["template"].setdefault("spec", {})
        job_spec.setdefault("completionMode", "Indexed")
        job_spec.setdefault("parallelism", 1)
        job_spec.setdefault("completions", job_spec["parallelism"])
        job_spec["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    status = jobset.setdefault("status", {})
    status.setdefault("restarts", 0)
    status.setdefault("restartsCountTowardsMax", 0)
    return jobset
