"""Rules for the pods: their program, image, queue, environment variables and volumes."""

from __future__ import annotations

from ptapi.validation.condition import Condition, compare, count_set, differs, equals, has, matches, starts_with, unset
from ptapi.validation.rule import Rule, exactly_one, unset_unless
from ptapi.validation.rules.capacity import IS_EXISTING

SECRET_NAME = r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)$"
OPERATOR_ENV = r"^(JAX_COORDINATOR_ADDRESS|JAX_NUM_PROCESSES|JAX_PROCESS_ID|(POSTTRAIN|MEGASCALE)_.*)$"
JOB_DIR = "/etc/posttrain"
POOLS_PER_CHECK = 8
"""Node pools that a job's pods can be bound to through Kueue: a toleration each, of which a check has eight."""
_IS_NATIVE = unset("runtime") | ~(has("runtime.container") | has("runtime.maxtext"))


def _is_unique(values: list[str]) -> bool:
    return len(set(values)) == len(values)


RULES: tuple[Rule, ...] = (
    Rule(
        "spec",
        "runtime",
        "at most one of native, maxtext, container",
        unset("runtime") | count_set(("runtime.native", "runtime.maxtext", "runtime.container"), "<=", 1),
    ),
    Rule(
        "spec",
        "preflight",
        "Skip or unset, because posttrain's own trainer is what is compiled",
        unset("preflight") | equals("preflight", "Skip") | _IS_NATIVE,
    ),
    Rule(
        "spec",
        "image",
        "an image with the program that the runtime names, because the operator's own has posttrain's trainer",
        has("image") | _IS_NATIVE,
        "image: registry/name@sha256:…",
    ),
    unset_unless("spec", "queuePriorityClassName", has("queue"), "or together with queue, in which it orders"),
    Rule(
        "spec",
        "accelerator.slices",
        f"at most {POOLS_PER_CHECK} with queue and capacity that makes node pools: an admission check of Kueue can "
        "name no more",
        unset("queue") | IS_EXISTING | compare("accelerator.slices", "<=", POOLS_PER_CHECK),
    ),
    exactly_one("spec.env[]", "value", "valueFrom", secret=True),
    unset_unless(
        "spec.env[]",
        "value",
        ~matches("name", SECRET_NAME),
        "because the name says it is a secret, and a job can be read by many",
        "valueFrom: {secretKeyRef: {name: …, key: …}}",
        secret=True,
    ),
    Rule(
        "spec.env[]",
        "name",
        "a variable that the operator does not set itself, as it does JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, "
        "JAX_PROCESS_ID, POSTTRAIN_… and MEGASCALE_…",
        ~matches("name", OPERATOR_ENV),
    ),
    # Of these names the CRD says it with x-kubernetes-list-type: map.
    Rule(
        "spec",
        "env",
        "variables with different names",
        Condition("", lambda spec: _is_unique([variable.name for variable in spec.env])),
        secret=True,
    ),
    exactly_one("spec.volumes[]", "configMap", "secret", "persistentVolumeClaim", "emptyDir"),
    Rule(
        "spec.volumes[]",
        "mountPath",
        f"a path outside {JOB_DIR}, where the operator mounts the job",
        differs("mountPath", JOB_DIR) & ~starts_with("mountPath", f"{JOB_DIR}/"),
    ),
    Rule(
        "spec.volumes[]",
        "name",
        "a name that does not start with posttrain-, as the operator's own volumes do",
        ~starts_with("name", "posttrain-"),
    ),
    Rule(
        "spec",
        "volumes",
        "volumes with different names",
        Condition("", lambda spec: _is_unique([volume.name for volume in spec.volumes])),
    ),
    Rule(
        "spec",
        "volumes",
        "volumes with different mount paths",
        Condition(
            "!has(self.volumes) || self.volumes.all(a, self.volumes.exists_one(b, b.mountPath == a.mountPath))",
            lambda spec: _is_unique([volume.mount_path for volume in spec.volumes]),
        ),
    ),
)
