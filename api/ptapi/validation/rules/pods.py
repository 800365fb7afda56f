"""Rules for the pods: their program, image, queue, environment variables and volumes."""

from ptapi.validation.condition import (
    Condition,
    compare,
    count_set,
    differs,
    each_once,
    equals,
    has,
    matches,
    one_of,
    starts_with,
    unset,
)
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.capacity import IS_EXISTING

SECRET_NAME = r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)$"
OPERATOR_ENV = r"^(JAX_COORDINATOR_ADDRESS|JAX_NUM_PROCESSES|JAX_PROCESS_ID|(POSTTRAIN|MEGASCALE)_.*)$"
JOB_DIR = "/etc/posttrain"
_SYSTEM_NAMES = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var")
POOLS_PER_CHECK = 8
"""Node pools that a job's pods can be bound to through Kueue: a toleration each, of which a check has eight."""
_VOLUME = Scope("spec.volumes[]")
_IS_NATIVE = unset("runtime") | ~(has("runtime.container") | has("runtime.maxtext"))


def variable_rules(scope: str) -> tuple[Rule, ...]:
    """Return the rules for every environment variable at a scope."""
    variable = Scope(scope)
    return (
        variable.exactly_one("value", "valueFrom", secret=True),
        variable.unset_unless(
            "value",
            ~matches("name", SECRET_NAME),
            "because the name says it is a secret, and a job can be read by many",
            "valueFrom: {secretKeyRef: {name: …, key: …}}",
            secret=True,
        ),
    )


def _is_unique(values: list[str]) -> bool:
    return len(set(values)) == len(values)


RULES: tuple[Rule, ...] = (
    SPEC.rule(
        "runtime",
        "at most one of native, maxtext, container",
        unset("runtime") | count_set(("runtime.native", "runtime.maxtext", "runtime.container"), "<=", 1),
    ),
    SPEC.rule(
        "preflight",
        "Skip or unset, because posttrain's own trainer is what is compiled",
        unset("preflight") | equals("preflight", "Skip") | _IS_NATIVE,
    ),
    SPEC.rule(
        "image",
        "an image with the program that the runtime names, because the operator's own has posttrain's trainer",
        has("image") | _IS_NATIVE,
        "image: registry/name@sha256:…",
    ),
    SPEC.unset_unless("queuePriorityClassName", has("queue"), "or together with queue, in which it orders"),
    SPEC.rule(
        "accelerator.slices",
        f"at most {POOLS_PER_CHECK} with queue and capacity that makes node pools: an admission check of Kueue can "
        "name no more",
        unset("queue") | IS_EXISTING | compare("accelerator.slices", "<=", POOLS_PER_CHECK),
    ),
    *variable_rules("spec.env[]"),
    Scope("spec.env[]").rule(
        "name",
        "a variable that the operator does not set itself, as it does JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, "
        "JAX_PROCESS_ID, POSTTRAIN_… and MEGASCALE_…",
        ~matches("name", OPERATOR_ENV),
    ),
    # The CRD says this, and the same of volumes, with x-kubernetes-list-type: map.
    SPEC.rule(
        "env",
        "variables with different names",
        Condition("", lambda spec: _is_unique([variable.name for variable in spec.env])),
        secret=True,
    ),
    _VOLUME.exactly_one("configMap", "secret", "persistentVolumeClaim", "emptyDir"),
    SPEC.rule("imagePullSecrets", "each name once", each_once("imagePullSecrets")),
    _VOLUME.rule(
        "mountPath",
        "a path that hides no directory of the image or the system",
        ~one_of("mountPath", *(f"/{name}" for name in _SYSTEM_NAMES)),
        "/mnt/…",
    ),
    _VOLUME.rule(
        "mountPath",
        f"a path outside {JOB_DIR}, where the operator mounts the job",
        differs("mountPath", JOB_DIR) & ~starts_with("mountPath", f"{JOB_DIR}/"),
    ),
    _VOLUME.rule(
        "name",
        "a name that does not start with posttrain-, as the operator's own volumes do",
        ~starts_with("name", "posttrain-"),
    ),
    SPEC.rule(
        "volumes",
        "volumes with different names",
        Condition("", lambda spec: _is_unique([volume.name for volume in spec.volumes])),
    ),
    SPEC.rule(
        "volumes",
        "volumes with different mount paths",
        Condition(
            "!has(self.volumes) || self.volumes.all(a, self.volumes.exists_one(b, b.mountPath == a.mountPath))",
            lambda spec: _is_unique([volume.mount_path for volume in spec.volumes]),
        ),
    ),
)
