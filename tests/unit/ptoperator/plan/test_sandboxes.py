"""The run's sandboxes: claimed while it runs, replaced within a budget, given back, and done without."""

from typing import Any

import pytest
from tests.builders.cluster import agent_sandbox
from tests.builders.operator.job_steps import (
    NAME,
    begin,
    bring_up,
    change,
    condition,
    end,
    events,
    fail_writes,
    settle,
    status,
)
from tests.builders.operator.world import NAMESPACE, Operator, World, job_manifest

from ptapi.load import parse_job
from ptkube import timestamps
from ptkube.errors import Forbidden, NotFound
from ptkube.resources import SANDBOX_CLAIMS, SANDBOX_WARM_POOLS, Manifest
from ptoperator.render import layout_of, render
from ptoperator.render.pods.sandboxes import sandbox_claim, sandbox_objects
from ptoperator.settings import Settings

READY = "SandboxesReady"


def spec(**sandbox: Any) -> dict[str, Any]:
    return {
        "algorithm": {"grpo": {"groupSize": 4}},
        "rewards": [{"builtin": "code"}],
        "sandbox": {"replicas": 3, "maxPerNode": 2, "maxCreated": 5, **sandbox},
    }


def claims(world: World) -> list[Manifest]:
    return world.api.kinds("SandboxClaim")


def numbers(world: World) -> list[int]:
    return sorted(int(claim["metadata"]["name"].rpartition("-")[2]) for claim in claims(world))


def answer(world: World, *holding: str, among: int | None = None) -> None:
    """What Agent Sandbox's controller says of claims: these conditions hold, and no others."""
    for claim in claims(world)[:among]:
        conditions = [
            {"type": kind, "status": "True" if kind in holding else "False", "reason": "R", "message": f"no {kind}",
             "lastTransitionTime": timestamps.to_text(world.api.now)}
            for kind in ("Ready", "Finished")
        ]  # fmt: skip
        world.api.put(SANDBOX_CLAIMS, {**claim, "status": {"conditions": conditions}})


def later(operator: Operator, seconds: float = 61.0) -> None:
    operator.world.tick(seconds)
    settle(operator)


def address_of(world: World) -> str | None:
    """Where the trainer looks for sandboxes."""
    (jobset,) = world.api.kinds("JobSet")
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    named = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    return named.get("POSTTRAIN_SANDBOXES")


def test_sandboxes_are_claimed_when_the_run_begins_and_all_is_the_jobs(operator: Operator, world: World) -> None:
    bring_up(operator, **spec())
    assert numbers(world) == [0, 1, 2]
    assert condition(world, READY) == ("False", "SandboxesStarting", "0 of 3 sandboxes are ready")
    (template,) = world.api.kinds("SandboxTemplate")
    name = template["metadata"]["name"]
    assert address_of(world) == f"{name}.{NAMESPACE}.svc:8888"
    made = [*claims(world), template, *world.api.kinds("SandboxWarmPool"), *world.api.kinds("Service")]
    assert len(made) == 6
    for each in made:
        assert [owner["name"] for owner in each["metadata"]["ownerReferences"]] == [NAME]
        assert "posttrain.dev/job" not in each["metadata"]["labels"]
    answer(world, "Ready")
    later(operator)
    assert condition(world, READY) == ("True", "SandboxesReady", "3 sandboxes are ready")
    counts = status(world).sandboxes
    assert counts is not None
    assert (counts.total, counts.ready, counts.created) == (3, 3, 3)


def test_a_job_that_waits_claims_nothing(operator: Operator, world: World) -> None:
    begin(operator, **spec(), runPolicy={"suspend": True})
    assert not claims(world)
    assert not world.api.kinds("SandboxWarmPool")


def test_a_sandbox_that_ended_is_replaced_but_not_within_its_minute(operator: Operator, world: World) -> None:
    bring_up(operator, **spec())
    answer(world, "Ready")
    answer(world, "Finished", among=1)
    later(operator, 20.0)
    assert numbers(world) == [0, 1, 2]
    later(operator)
    later(operator)
    assert numbers(world) == [1, 2, 3]


def test_no_more_claims_are_made_than_the_budget_allows(operator: Operator, world: World) -> None:
    bring_up(operator, **spec(maxCreated=4))
    for _ in range(6):
        answer(world, "Finished")
        later(operator)
    assert numbers(world) == []
    state = condition(world, READY)
    assert state[1] == "SandboxBudgetSpent"
    assert state[2] == "0 of 3 sandboxes are ready; sandbox.maxCreated is 4, and so many claims were made"
    assert ("Warning", "SandboxBudgetSpent") in events(world)
    assert sum(each.startswith("create SandboxClaim ") for each in world.api.log) == 4


def test_claims_are_made_at_the_pace_of_the_budget(operator: Operator, world: World) -> None:
    bring_up(operator, **spec(maxCreatedPerMinute=2))
    assert numbers(world) == [0, 1]
    later(operator, 30.0)
    assert numbers(world) == [0, 1]
    later(operator, 40.0)
    assert numbers(world) == [0, 1, 2]


def test_deleted_claims_count_against_the_budget_over_a_restart_of_the_operator(
    operator: Operator, world: World
) -> None:
    bring_up(operator, **spec())
    for claim in claims(world):
        world.api.delete(SANDBOX_CLAIMS, claim["metadata"]["name"], NAMESPACE)
    operator.restart()
    later(operator)
    later(operator)
    assert numbers(world) == [3, 4]


def test_a_suspended_job_gives_its_sandboxes_back_and_takes_new_ones(operator: Operator, world: World) -> None:
    bring_up(operator, **spec())
    change(operator, suspend=True)
    later(operator)
    assert not claims(world)
    (pool,) = world.api.kinds("SandboxWarmPool")
    assert pool["spec"]["replicas"] == 0
    change(operator, suspend=False)
    later(operator)
    assert numbers(world) == [3, 4]
    (pool,) = world.api.kinds("SandboxWarmPool")
    assert pool["spec"]["replicas"] == 1


def test_a_job_that_ended_gives_its_sandboxes_back(operator: Operator, world: World) -> None:
    bring_up(operator, **spec())
    world.progress(10)
    end(operator, 0)
    later(operator)
    assert not claims(world)
    counts = status(world).sandboxes
    assert counts is not None
    assert (counts.total, counts.created) == (0, 3)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            NotFound(404, "NotFound", "404 page not found"),
            "the cluster does not serve extensions.agents.x-k8s.io/v1beta1",
        ),
        (Forbidden(403, "Forbidden", "no right"), "the operator may not claim sandboxes"),
    ],
)
def test_without_agent_sandbox_the_run_uses_processes_and_says_so(
    operator: Operator, world: World, error: NotFound | Forbidden, why: str
) -> None:
    mend = fail_writes(world, "list", SANDBOX_CLAIMS, error)
    bring_up(operator, **spec())
    assert condition(world, READY)[:2] == ("False", "SandboxesNotServed")
    assert condition(world, READY)[2].startswith(f"{why}, so code rewards and Python tools run in processes")
    assert ("Warning", "SandboxesNotServed") in events(world)
    assert address_of(world) is None
    assert status(world).phase == "Running"
    mend()  # served too late: the trainer looks for none
    later(operator)
    assert not claims(world)


def test_refusals_count_against_the_budget_and_hold_up_nothing_else(operator: Operator, world: World) -> None:
    """A number that was given to a claim is given to no other, whatever became of the first."""
    fail_writes(world, "create", SANDBOX_WARM_POOLS, Forbidden(403, "Forbidden", "no right"))
    bring_up(operator, **spec())
    later(operator)
    assert status(world).phase == "Running"
    assert condition(world, READY)[1] == "SandboxBudgetSpent"
    assert not claims(world)


def test_manifests_satisfy_agent_sandboxs_definitions() -> None:
    job = parse_job(job_manifest(**spec()))
    layout = layout_of(job, Settings())
    made = [body for _, body in sandbox_objects(layout) if body["kind"] != "Service"]
    for body in (*made, sandbox_claim(layout, 0)):
        assert agent_sandbox.refused(body) == []
    assert [body["kind"] for body in render(job, Settings())][-3:] == ["SandboxClaim"] * 3
    wrong = {**made[0], "spec": {**made[0]["spec"], "networkPolicyManagement": "Mine", "unknown": 1}}
    assert len(agent_sandbox.refused(wrong)) == 2


def test_no_node_has_more_than_its_share() -> None:
    """By a spread of that skew, with one domain more than there can be pods: the emptiest then counts 0."""
    layout = layout_of(parse_job(job_manifest(**spec(warm=4))), Settings())
    pod = sandbox_objects(layout)[0][1]["spec"]["podTemplate"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["minDomains"], spread["whenUnsatisfiable"]) == (2, 3 + 4 + 1, "DoNotSchedule")
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_sandbox_is_confined_and_reached_by_its_job_alone() -> None:
    template = sandbox_objects(layout_of(parse_job(job_manifest(**spec())), Settings()))[0][1]["spec"]
    pod = template["podTemplate"]["spec"]
    assert pod["runtimeClassName"] == "gvisor"
    assert pod["automountServiceAccountToken"] is False
    assert template["networkPolicy"]["egress"] == []
    (rule,) = template["networkPolicy"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"]["posttrain.dev/job"] == "llama"
