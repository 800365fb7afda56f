"""Render a job to manifests. Pure, one builder per kind, shared by the operator, `--dry-run` and the golden tests."""

from ptapi.spec import PostTrainJob
from ptkube.resources import Manifest
from ptoperator.render.config_map import config_map
from ptoperator.render.jobset import jobset
from ptoperator.render.layout import Layout, layout_of
from ptoperator.render.pods.beside.sampler_secret import sampler_secret
from ptoperator.render.pods.beside.vllm_plugin import is_needed as needs_vllm_plugin
from ptoperator.render.pods.beside.vllm_plugin import plugin_config_map
from ptoperator.render.pods.pod_group import pod_group, pod_group_kind
from ptoperator.render.pods.sandboxes import sandbox_claim, sandbox_objects
from ptoperator.render.preflight_job import preflight_job
from ptoperator.render.stage_job import stage_job
from ptoperator.settings import Settings

__all__ = [
    "Layout",
    "config_map",
    "config_maps",
    "jobset",
    "layout_of",
    "pod_group",
    "pod_group_kind",
    "preflight_job",
    "render",
    "sampler_secret",
    "stage_job",
]


def render(job: PostTrainJob, settings: Settings) -> list[Manifest]:
    """Return every object that the operator creates for a job, in order. Raises SpecError."""
    layout = layout_of(job, settings)
    copies = [stage_job(layout)] if layout.is_staged else []
    checks = [] if layout.preflight == "Skip" else [preflight_job(layout)]
    tokens = [sampler_secret(layout)] if layout.samplers else []
    gangs = [pod_group(layout)] if pod_group_kind(layout) else []
    return [*copies, *config_maps(layout), *checks, *tokens, *gangs, jobset(layout), *_sandboxes(layout)]


def config_maps(layout: Layout) -> list[Manifest]:
    """Return the ConfigMaps that the run's pods mount: the job's own first."""
    return [config_map(layout), *([plugin_config_map(layout)] if needs_vllm_plugin(layout) else [])]


def _sandboxes(layout: Layout) -> list[Manifest]:
    """Return the run's sandboxes as it begins with them, if it has any."""
    sandbox = layout.job.spec.sandbox
    if sandbox is None:
        return []
    bodies = [body for _, body in sandbox_objects(layout)]
    return [*bodies, *(sandbox_claim(layout, number) for number in range(sandbox.replicas))]
