"""Rules for the pods' environment variables and volumes, and the secrets that pull their images."""

from ptapi.validation.predicate import (
    Predicate,
    differs,
    each_once,
    matches,
    one_of,
    starts_with,
)
from ptapi.validation.rule import SPEC, Rule, Scope

SECRET_NAME = r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)$"
OPERATOR_ENV = r"^(JAX_COORDINATOR_ADDRESS|JAX_NUM_PROCESSES|JAX_PROCESS_ID|(POSTTRAIN|MEGASCALE)_.*)$"
JOB_DIR = "/etc/posttrain"
_SYSTEM_NAMES = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var")
_VOLUME = Scope("spec.volumes[]")


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
        Predicate("", lambda spec: _is_unique([variable.name for variable in spec.env])),
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
        Predicate("", lambda spec: _is_unique([volume.name for volume in spec.volumes])),
    ),
    SPEC.rule(
        "volumes",
        "volumes with different mount paths",
        Predicate(
            "!has(self.volumes) || self.volumes.all(a, self.volumes.exists_one(b, b.mountPath == a.mountPath))",
            lambda spec: _is_unique([volume.mount_path for volume in spec.volumes]),
        ),
    ),
)
