"""Kubernetes' own gang scheduling: which jobs have a PodGroup, and where the operator makes one."""

from dataclasses import replace
from typing import Any

import pytest
from tests.builders.operator.job_steps import NAME, settle
from tests.builders.operator.manifest_checks import refusals, with_public_crds
from tests.builders.operator.world import NAMESPACE, Api, Operator, World, job_manifest
from tests.unit.ptoperator.render.beside.test_samplers import layout as with_samplers
from tests.unit.ptoperator.render.test_render import on

from ptkube.errors import NotFound, Unreachable
from ptkube.resources import JOBSETS, POD_GROUPS, POSTTRAINJOBS, Manifest
from ptoperator.kube import names, pod_groups
from ptoperator.render import jobset, layout_of, pod_group_kind, render
from ptoperator.settings import Settings, SettingsError

BETA = Settings(pod_groups="v1beta1")


def groups_of(made: Manifest) -> set[str | None]:
    """What the pods of all replicated jobs name."""
    specs = [each["template"]["spec"]["template"]["spec"] for each in made["spec"]["replicatedJobs"]]
    return {(spec.get("schedulingGroup") or {}).get("podGroupName") for spec in specs}


def test_gpu_machines_of_a_job_are_one_gang_which_is_made_before_its_pods() -> None:
    made = render(on("h100-16", priorityClassName="high"), BETA)
    group, last = made[-2:]
    assert (last["kind"], group["kind"], group["apiVersion"]) == ("JobSet", "PodGroup", "scheduling.k8s.io/v1beta1")
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": "high"}
    assert group["metadata"]["ownerReferences"] == last["metadata"]["ownerReferences"]
    assert groups_of(last) == {group["metadata"]["name"]}


@with_public_crds
def test_jobset_keeps_the_name_of_the_group() -> None:
    made = jobset(layout_of(on("h100-16"), BETA))
    assert groups_of(made) != {None}
    assert refusals(made, "jobset.x-k8s.io_jobsets", "v1alpha2") == []


def test_a_trainer_and_its_samplers_are_one_gang() -> None:
    made = replace(with_samplers(), settings=replace(with_samplers().settings, pod_groups="v1alpha2"))
    assert pod_group_kind(made) is POD_GROUPS["v1alpha2"]
    assert groups_of(jobset(made)) == {names.pod_group(made.jobset, made.uid)}


@pytest.mark.parametrize(
    ("type", "spec", "why"),
    [
        ("h100-8", {}, "one pod"),
        ("h100-16", {"queue": "team"}, "Kueue admits it as a whole"),
        ("v6e-16", {}, "JobSet makes the other pods once the first has its node"),
        ("cpu-8", {}, "one pod"),
    ],
)
def test_other_jobs_have_none(type: str, spec: dict[str, Any], why: str) -> None:
    made = layout_of(on(type, **spec), BETA)
    assert pod_group_kind(made) is None, why
    assert groups_of(jobset(made)) == {None}


def test_a_sampler_is_in_no_gang_that_its_trainer_is_not_in() -> None:
    made = with_samplers(accelerator={"type": "v6e-4"})
    large = replace(made, accelerator=layout_of(on("v6e-16"), BETA).accelerator, settings=BETA)
    assert groups_of(jobset(large)) == {None}


def test_nothing_is_made_where_nobody_has_looked_what_is_served() -> None:
    assert [each["kind"] for each in render(on("h100-16"), Settings())][-2:] != ["PodGroup", "JobSet"]


def test_the_operator_makes_the_gang_before_the_jobset(operator: Operator, world: World) -> None:
    operator.settings = BETA
    spec = {"accelerator": {"type": "h100-16"}, "preflight": "Skip", "training": {"steps": 1, "batchSize": 16}}
    world.api.create(POSTTRAINJOBS, job_manifest(NAME, output={"uri": "gs://lab/runs"}, **spec))
    settle(operator)
    (group,) = world.api.kinds("PodGroup")
    made = world.api.find(JOBSETS, NAME)
    assert made is not None
    assert (group["metadata"]["namespace"], group["spec"]["schedulingPolicy"]["gang"]["minCount"]) == (NAMESPACE, 2)
    assert groups_of(made) == {group["metadata"]["name"]}
    assert group["metadata"]["ownerReferences"] == made["metadata"]["ownerReferences"]


class Discovery(Api):
    """An API server's lists of the kinds of a group, which may be away."""

    is_away = False

    def request(self, method: str, path: str, body: Manifest | None = None) -> Manifest:
        if self.is_away:
            raise Unreachable(0, "Unreachable", "no route")
        if path not in self.paths:
            raise NotFound(404, "NotFound", path)
        return self.paths[path]


def kinds(*names: str) -> Manifest:
    return {"kind": "APIResourceList", "resources": [{"name": name} for name in names]}


@pytest.mark.parametrize(
    ("served", "version"),
    [
        ({}, "never"),
        ({"v1beta1": kinds("priorityclasses")}, "never"),
        ({"v1alpha2": kinds("podgroups", "podgroups/status", "workloads")}, "v1alpha2"),
        ({"v1alpha2": kinds("podgroups"), "v1beta1": kinds("podgroups", "workloads")}, "v1beta1"),
    ],
)
def test_the_newest_version_that_is_served_counts(served: dict[str, Manifest], version: str) -> None:
    api = Discovery()
    api.paths = {f"/apis/scheduling.k8s.io/{each}": answer for each, answer in served.items()}
    assert pod_groups.resolved("auto", api) == version  # type: ignore[arg-type]


def test_what_was_decided_is_not_asked_and_a_server_that_is_away_has_none() -> None:
    api = Discovery()
    api.is_away = True
    assert pod_groups.resolved("v1beta1", api) == "v1beta1"  # type: ignore[arg-type]
    assert pod_groups.resolved("auto", api) == "never"  # type: ignore[arg-type]


def test_another_word_is_refused_at_start() -> None:
    with pytest.raises(SettingsError, match="'v1' is not one of auto, never, v1beta1, v1alpha2"):
        Settings.from_env({"POSTTRAIN_POD_GROUPS": "v1"})
