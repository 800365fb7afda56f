"""Everything that is checked beyond the shape of a job, in one place to call.

`rules` holds rules across fields, a module per section of the spec; `accelerator_rules` what the chips require;
`rules.pods.maxtext` what MaxText can be told. The CRD carries the rules as CEL where CEL can say them, and it alone
judges changes after creation (`ptapi.crd.immutable_fields`).
"""

from ptapi.errors import Finding
from ptapi.spec import PostTrainJob
from ptapi.validation.accelerator_rules import check_devices
from ptapi.validation.rule import Rule, objects_at
from ptapi.validation.rules import (
    algorithm,
    data,
    distillation,
    evaluation_checkpoint_export,
    job,
    model,
    serve,
    tracking,
    training,
    unsupported,
)
from ptapi.validation.rules.chips import accelerator, capacity, pathways
from ptapi.validation.rules.pods import env_and_volumes, overrides, runtime_image_queue, services
from ptapi.validation.rules.pods.maxtext import check_maxtext
from ptapi.validation.rules.pods.overrides import check_affinity
from ptapi.validation.rules.rollouts import environment, rewards, rollout, sandbox

RULES: tuple[Rule, ...] = (
    *unsupported.RULES, *job.RULES, *algorithm.RULES, *environment.RULES, *rewards.RULES, *distillation.RULES,
    *pathways.RULES, *training.RULES, *data.RULES, *model.RULES, *accelerator.RULES, *capacity.RULES, *rollout.RULES,
    *evaluation_checkpoint_export.RULES, *tracking.RULES, *runtime_image_queue.RULES,
    *env_and_volumes.RULES, *overrides.RULES, *serve.RULES, *sandbox.RULES, *services.RULES,
)  # fmt: skip
"""In order of precedence: the first rule that refuses a field speaks for it."""
ALGORITHM_FIELD = "spec.algorithm"
_SCOPES = tuple(dict.fromkeys(rule.scope for rule in RULES))


def check_job(job: PostTrainJob) -> list[Finding]:
    """Return what is wrong with a job of well-formed fields; the first finding of a field stands for it."""
    findings: dict[str, Finding] = {}
    objects = {scope: tuple(objects_at(job, scope)) for scope in _SCOPES}
    for rule in RULES:
        for finding in rule.findings(objects[rule.scope]):
            findings.setdefault(finding.field, finding)
    if one_algorithm := findings.get(ALGORITHM_FIELD):
        return [one_algorithm]  # all other rules are about the algorithm that is meant
    for finding in (*check_devices(job.spec), *check_maxtext(job.spec), *check_affinity(job.spec)):
        findings.setdefault(finding.field, finding)
    return list(findings.values())
