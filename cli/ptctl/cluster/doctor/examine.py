"""Run every check, also where one of them fails, and print the findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ptapi.accelerators import resolve
from ptapi.errors import SpecError
from ptapi.text import bucket_names
from ptctl.cluster.cloud.cloud_errors import CloudError
from ptctl.cluster.cloud.compute import open_compute
from ptctl.cluster.cloud.gke import open_gke
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.cluster.doctor import google, gpus, health, pods, queues, rights, versions
from ptctl.cluster.doctor.finding import CheckContext, Finding, Google, Severity, warning
from ptctl.cluster.in_cluster.installation import gke_of_context
from ptctl.cluster.in_cluster.objects import GkeCluster
from ptctl.cluster.in_cluster.survey import survey
from ptctl.errors import CliError, InputError
from ptctl.ui.app import App, Target
from ptctl.ui.console import Console
from ptkube.errors import ApiError
from ptkube.resources import DEPLOYMENTS

Check = Callable[[CheckContext], Iterator[Finding]]
CHECKS: tuple[tuple[str, Check], ...] = (
    (versions.CHECK, versions.check),
    (rights.CHECK, rights.check),
    ("webhooks", health.webhooks),
    ("images", health.images),
    (queues.CHECK, queues.check),
    (gpus.CHECK, gpus.check),
    ("clock", health.clock),
    ("google", google.cluster),
    ("google", google.permissions),
    ("quota", google.quota),
    ("reservation", google.reservation),
)
_TRAINER_IMAGE = "POSTTRAIN_TRAINER_IMAGE"
_MARKS = {Severity.OK: ("ok", "green"), Severity.WARNING: ("warning", "yellow"), Severity.ERROR: ("error", "red")}


def doctor(app: App, target: Target, flags: dict[str, Any]) -> int:
    """Examine the cluster; return 1 for an error, or with --strict for a warning."""
    bucket = flags["bucket"] or ""
    if bucket and not (flags["from_pods"] and bucket.startswith("gs://")):
        raise InputError(f"--bucket {bucket}: accepted: gs://BUCKET/PATH, with --from-pods, which tries it")
    if bucket and (wrong := bucket_names.problem(bucket)):
        raise InputError(f"--bucket {wrong}")
    if flags["image"] and not flags["from_pods"]:
        raise InputError(f"--image {flags['image']}: accepted: with --from-pods, which tries it")
    context = check_context(app, target, flags)
    findings = [*examine(context), *(_from_pods(context, bucket, flags["image"]) if flags["from_pods"] else ())]
    show(app.console, findings, flags["output"])
    worst = max((each.severity for each in findings), default=Severity.OK)
    return 1 if worst >= (Severity.WARNING if flags["strict"] else Severity.ERROR) else 0


def check_context(app: App, target: Target, flags: dict[str, Any]) -> CheckContext:
    """Return what the checks read. Raises InputError, and ApiError where the cluster does not answer."""
    kube = app.connect(target)
    chips = None
    if flags["tpu_type"]:
        try:
            chips = resolve(flags["tpu_type"], slices=flags["num_slices"])
        except SpecError as error:
            raise InputError(str(error).replace("spec.accelerator.type", "--tpu-type")) from error
    gke = gke_of_context(kube.access.context)
    namespace = target.namespace or kube.namespace
    return CheckContext(
        kube, survey(kube), namespace, _google(app, gke), chips, flags["reservation"] or "", flags["zone"] or ""
    )


def _google(app: App, gke: GkeCluster | None) -> Google | None:
    if gke is None:
        app.console.say("the context does not name a cluster of GKE: Google's side is not examined")
        return None
    settings = CloudSettings.from_env()
    try:
        cluster = open_gke(settings).get(f"projects/{gke.project}/locations/{gke.location}/clusters/{gke.name}")
    except CliError as error:
        app.console.warn(f"Google's side is not examined: {error.message}")
        return None
    return Google(cluster, gke, open_compute(settings)) if cluster else None


def examine(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings of every check; one that cannot be made is a finding."""
    for name, check in CHECKS:
        try:
            yield from check(context)
        except (ApiError, CloudError) as error:
            yield warning(name, f"could not be checked: {str(error).partition(chr(10))[0]}", getattr(error, "hint", ""))


def _from_pods(context: CheckContext, bucket: str, wanted_image: str | None) -> Iterator[Finding]:
    """Yield what the trainer's pods can do, as the operator is told to make them."""
    operator = context.survey.operator
    image, account = wanted_image or "", ""
    if operator is not None:
        pod = context.kube.get(DEPLOYMENTS, operator.name, operator.namespace)["spec"]["template"]["spec"]
        image = image or rights.operator_setting(pod, _TRAINER_IMAGE)
        account = rights.operator_setting(pod, rights.TRAINER_ACCOUNT)
    if not image:
        yield warning("pods", "no pod was tried: no operator says with which image", "--image IMAGE")
        return
    try:
        yield from pods.check(context.kube, pods.TrainerPod(context.namespace, image, account), bucket)
    except ApiError as error:
        yield warning("pods", f"no pod was tried: {str(error).partition(chr(10))[0]}")


def show(console: Console, findings: list[Finding], form: str | None) -> None:
    """Print the findings: the worst first, or as JSON in the order of the checks."""
    if form == "json":
        rows = [
            {"check": f.check, "severity": f.severity.name.lower(), "message": f.message, "fix": f.fix}
            for f in findings
        ]
        console.data(json.dumps({"findings": rows}, indent=2))
        return
    for finding in sorted(findings, key=lambda each: -each.severity):
        word, colour = _MARKS[finding.severity]
        console.data(f"{console.paint(f'{word:<8}', colour)} {finding.check + ':':<13} {finding.message}")
        if finding.fix:
            console.data(f"{'':<8} {'':<13} fix: {finding.fix}")
