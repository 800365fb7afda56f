"""Everything that is checked beyond the shape of a job, in one place to call.

The tables stand apart: `cross_field` (rules between fields), `engine` (of rollouts), `unsupported` (what comes later),
`devices` (what the chips ask), `maxtext` (what MaxText can be told). The CRD carries the same rules as CEL where CEL
can say them; changes after creation it alone judges (`immutable`).
"""

from __future__ import annotations

from ptapi.errors import Finding
from ptapi.spec import PostTrainJob
from ptapi.validation.accelerator_rules import check_devices
from ptapi.validation.rule import Rule, objects_at
from ptapi.validation.rules import cross_field, rollout_engine, unsupported
from ptapi.validation.rules.maxtext import check_maxtext

RULES: tuple[Rule, ...] = (*unsupported.RULES, *cross_field.RULES, *rollout_engine.RULES)
_SCOPES = tuple(dict.fromkeys(rule.scope for rule in RULES))


def check_job(job: PostTrainJob) -> list[Finding]:
    """What is wrong with a job whose fields are each well-formed; the first finding of a field stands for it."""
    findings: dict[str, Finding] = {}
    objects = {scope: tuple(objects_at(job, scope)) for scope in _SCOPES}
    for rule in RULES:
        for finding in rule.findings(objects[rule.scope]):
            findings.setdefault(finding.field, finding)
    for finding in (*check_devices(job.spec), *check_maxtext(job.spec)):
        findings.setdefault(finding.field, finding)
    return list(findings.values())
