"""Kubernetes, JobSet, Kueue, our CRD and the operator: installed, new enough, ready."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ptapi.crd.definition import crd
from ptctl.cluster.doctor.finding import CheckContext, Finding, error, ok, warning
from ptctl.cluster.in_cluster import survey
from ptctl.cluster.in_cluster.survey import Controller, version_of
from ptkube.resources import Manifest
from ptoperator.kube.pod_groups import served_version

CHECK = "versions"
_INSTALL = "`ptctl cluster install`"


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield what is installed, and what is missing, too old or not ready."""
    present = context.survey
    yield _kubernetes(present.kubernetes)
    yield from _controller("JobSet", present.jobset, present.has_jobset, survey.MIN_JOBSET, survey.JOBSET_URL)
    if present.has_kueue or present.kueue:
        yield from _controller("Kueue", present.kueue, present.has_kueue, survey.MIN_KUEUE, survey.KUEUE_URL)
    yield from _gangs(context)
    yield _definition(present.our_crd)
    yield _operator(present.operator)


def _kubernetes(text: str) -> Finding:
    version = version_of(text)
    if version is None or version < survey.MIN_KUBERNETES:
        return error(CHECK, f"Kubernetes {text}: 1.30 or newer is needed", "upgrade the control plane")
    return ok(CHECK, f"Kubernetes {text}")


def _controller(
    name: str, controller: Controller | None, has_kinds: bool, oldest: tuple[int, int], url: str
) -> Iterator[Finding]:
    flag = f"--{name.lower()}-manifests"
    if not has_kinds:
        yield error(CHECK, f"{name} is not installed", f"{_INSTALL} … {flag} {url}")
    elif controller is None:
        yield warning(CHECK, f"{name}: its kinds are served, but its controller is not where its release puts it")
    elif not controller.is_ready:
        where = f"{controller.namespace}/{controller.name}"
        yield error(
            CHECK,
            f"{name}: no pod of {where} is ready",
            f"kubectl describe deployment {controller.name} -n {controller.namespace}",
        )
    elif (version := version_of(controller.version)) is not None and version < oldest:
        wanted = ".".join(map(str, oldest))
        yield error(CHECK, f"{name} {controller.version}: {wanted} or newer is needed", "upgrade it by its own release")
    else:
        yield ok(CHECK, f"{name} {controller.version}, {controller.ready} of {controller.wanted} ready")


def _gangs(context: CheckContext) -> Iterator[Finding]:
    """Yield whether JobSet lets pods name the PodGroup that the operator makes where those are served."""
    version, jobsets = served_version(context.kube), context.survey.jobset_crd
    if not version or jobsets is None:
        return
    if "schedulingGroup" in json.dumps(jobsets):
        yield ok(CHECK, f"Kubernetes schedules all pods of a job at once or none (PodGroup {version})")
    else:
        yield warning(
            CHECK,
            f"Kubernetes serves PodGroups ({version}), and JobSet drops what names them: pods are scheduled one by one",
            f"JobSet 0.12 or newer: {survey.JOBSET_URL}",
        )


def _definition(installed: Manifest | None) -> Finding:
    if installed is None:
        return error(CHECK, "the CRD posttrainjobs.posttrain.dev is not there", _INSTALL)
    ours = crd()["spec"]["versions"]
    names = [each["name"] for each in installed["spec"]["versions"]]
    schemas = [each["schema"] for each in installed["spec"]["versions"]]
    if schemas != [each["schema"] for each in ours]:
        return warning(
            CHECK,
            f"the CRD ({', '.join(names)}) is not the one of this ptctl, so fields may be refused or lost",
            f"{_INSTALL}, or `helm upgrade`; or the ptctl of the operator's version",
        )
    return ok(CHECK, f"CRD {', '.join(names)}, as this ptctl has it")


def _operator(operator: Controller | None) -> Finding:
    if operator is None:
        return error(CHECK, "no operator is installed", _INSTALL)
    where = f"{operator.namespace}/{operator.name}"
    if not operator.is_ready:
        logs = f"kubectl logs deployment/{operator.name} -n {operator.namespace}"
        return error(CHECK, f"operator {operator.version}: no pod of {where} is ready", logs)
    return ok(
        CHECK, f"operator {operator.version}, {operator.ready} of {operator.wanted} ready in {operator.namespace}"
    )
