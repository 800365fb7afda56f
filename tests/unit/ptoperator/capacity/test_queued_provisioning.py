"""A job whose nodes GKE queues: the ProvisioningRequest is made, waited for, taken and given back."""

import pytest
from tests.builders.gke.provisioning import Queue
from tests.builders.operator.cloud_site import Site, jobset
from tests.builders.operator.world import NAMESPACE

from ptkube.errors import ApiError, Forbidden, NotFound
from ptkube.resources import POD_TEMPLATES, POSTTRAINJOBS, PROVISIONING_REQUESTS, Manifest
from ptoperator.capacity.gke.client import Gke
from ptoperator.render.pods.overrides import SAFE_TO_EVICT
from ptoperator.render.pods.pod import pools_of

QUEUED = {"type": "queuedProvisioning", "zones": ["us-east5-a"]}
SPOT = {"type": "spot", "zones": ["us-east5-a"]}


@pytest.fixture
def queue(site: Site) -> Queue:
    return Queue(site.world.api, site.model)


def _await_request(site: Site, queue: Queue, *, after: int = 0) -> Manifest:
    site.run_until(lambda: queue.requests and len(site.status().capacity.attempts) > after)
    return queue.requests[0]


def _objects(site: Site) -> set[str]:
    return {kind for kind, _, _ in site.world.api.objects} & {POD_TEMPLATES.kind, PROVISIONING_REQUESTS.kind}


def _pod_template(made: Manifest, role: int = 0) -> Manifest:
    template: Manifest = made["spec"]["replicatedJobs"][role]["template"]["spec"]["template"]
    return template


def test_the_request_is_for_the_pods_that_come_later(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    request = _await_request(site, queue)
    (pool,) = site.model.pools.values()
    assert (pool.state, pool.nodes) == ("RUNNING", 0)
    name = request["metadata"]["name"]
    assert request["apiVersion"] == "autoscaling.x-k8s.io/v1"
    assert request["spec"] == {
        "provisioningClassName": "queued-provisioning.gke.io",
        "podSets": [{"podTemplateRef": {"name": name}, "count": 4}],
        "parameters": {"maxRunDurationSeconds": "604800"},
    }
    pod_template = site.world.api.find(POD_TEMPLATES, name)
    (container,) = pod_template["template"]["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"google.com/tpu": 4, "memory": "684G"},
        "requests": {"google.com/tpu": 4, "cpu": "153", "memory": "612G"},
    }
    assert pools_of(pod_template["template"]["spec"]) == (pool.name,)
    owners = [each["metadata"]["ownerReferences"][0]["name"] for each in (pod_template, request)]
    assert owners == ["llama", "llama"]
    queue.provision(request)
    site.run(30)
    made = jobset(site)
    assert made is not None
    template = _pod_template(made)
    assert template["metadata"]["annotations"] == {
        SAFE_TO_EVICT: "false",
        "autoscaling.x-k8s.io/consume-provisioning-request": name,
        "autoscaling.x-k8s.io/provisioning-class-name": "queued-provisioning.gke.io",
    }
    assert template["spec"]["nodeSelector"] == pod_template["template"]["spec"]["nodeSelector"]
    assert template["spec"]["tolerations"] == pod_template["template"]["spec"]["tolerations"]
    assert "cloud.google.com/gke-queued" in [each["key"] for each in template["spec"]["tolerations"]]


def test_there_are_no_pods_before_all_nodes_are_there_and_status_says_what_gke_says(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    request = _await_request(site, queue)
    name = request["metadata"]["name"]
    site.run(30)
    assert site.waits_for().endswith(f"ProvisioningRequest {name}: GKE has not responded yet")
    queue.accept(request)
    site.run(30)
    assert "Accepted=True, SuccessfullyQueued: Provisioning Request was successfully queued." in site.waits_for()
    queue.accept(request, wait="there is no capacity; ETA 3h")
    site.run(1200)
    assert "Provisioned=False, ResizeRequestWaiting: there is no capacity; ETA 3h" in site.waits_for()
    assert (jobset(site), site.status().phase) == (None, "Provisioning")
    assert site.outcomes() == ["queuedProvisioning in us-east5-a: "]


def test_the_end_of_the_job_gives_back_request_template_and_pool(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    queue.provision(_await_request(site, queue))
    site.run_until(lambda: jobset(site))
    assert site.outcomes()[0].startswith("queuedProvisioning in us-east5-a: ready after ")
    site.succeed()
    site.run(120)
    assert (_objects(site), site.model.pools, site.status().capacity.node_pools) == (set(), {}, [])


@pytest.mark.parametrize(
    ("kind", "words", "failure_class"),
    [
        ("Failed", "quota TPU_V6E exceeded", "Quota"),
        ("BookingExpired", "not used for 10 minutes", "Unknown"),
        ("CapacityRevoked", "the nodes are gone", "Unknown"),
    ],
)
def test_a_request_that_brings_no_nodes_gives_way_to_the_next_option(
    site: Site, queue: Queue, kind: str, words: str, failure_class: str
) -> None:
    site.create(capacity=[QUEUED, SPOT])
    request = _await_request(site, queue)
    queue.accept(request)
    queue.say(request, kind, "Told", words)
    site.run_until(lambda: jobset(site))
    first, second = site.outcomes()
    assert first.startswith(f"queuedProvisioning in us-east5-a: {kind} in us-east5-a after ")
    assert first.endswith(f"trying spot: Told: {words}")
    assert [each.failure_class for each in site.status().capacity.attempts] == [failure_class, ""]
    assert second.startswith("spot in us-east5-a: ready after ")
    assert _objects(site) == set()
    (pool,) = site.model.pools.values()
    assert pool.manifest["config"]["spot"] is True
    made = jobset(site)
    assert made is not None
    assert list(_pod_template(made)["metadata"]["annotations"]) == [SAFE_TO_EVICT]


def test_a_request_that_is_not_answered_in_time_gives_way_to_the_next_option(site: Site, queue: Queue) -> None:
    site.create(capacity=[{**QUEUED, "waitSeconds": 600}, SPOT])
    queue.accept(_await_request(site, queue))
    site.run_until(lambda: jobset(site))
    assert site.outcomes()[0] == "queuedProvisioning in us-east5-a: NOT_READY in us-east5-a after 10m, trying spot"
    assert _objects(site) == set()


def test_nothing_new_is_tried_while_the_old_request_still_goes(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED, SPOT])
    request = _await_request(site, queue)
    request["metadata"]["finalizers"] = ["gke"]
    queue.say(request, "Failed", "ResizeRequestFailed", "no luck")
    site.run(180)
    name = request["metadata"]["name"]
    assert (site.model.pools, len(site.status().capacity.attempts)) == ({}, 1)
    assert site.waits_for().endswith(f"waiting for ProvisioningRequest {name} to be deleted")
    site.world.api.remove((PROVISIONING_REQUESTS.kind, NAMESPACE, name))
    site.run_until(lambda: jobset(site))


def test_every_round_asks_with_a_request_of_its_own(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    first = _await_request(site, queue)
    queue.say(first, "Failed", "ResizeRequestFailed", "no luck")
    second = _await_request(site, queue, after=1)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    queue.provision(second)
    site.run_until(lambda: jobset(site))


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no right"), NotFound(404, "NotFound", "no such kind")])
def test_a_request_that_the_api_server_refuses_ends_the_job_with_its_words(site: Site, error: ApiError) -> None:
    class Refusing:
        """The API server, but for one kind."""

        def __getattr__(self, verb: str) -> object:
            return getattr(site.world.api, verb)

        def create(self, r: object, body: Manifest) -> Manifest:
            if r is PROVISIONING_REQUESTS:
                raise error
            return site.world.api.create(r, body)  # type: ignore[arg-type]

    site.operator.client = Refusing()
    site.create(capacity=[QUEUED])
    site.run_until(lambda: site.status().phase == "Failed")
    failure = site.status().failure
    assert failure.failure_class == "ConfigError"
    assert error.message in failure.message
    assert ("1.32.2-gke.1652000" in failure.message) is isinstance(error, NotFound)
    site.run(120)
    assert (_objects(site), site.model.pools) == (set(), {})


def test_nodes_whose_time_is_over_are_asked_for_anew(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    request = _await_request(site, queue)
    queue.provision(request)
    site.run_until(lambda: jobset(site))
    site.start_pods()
    queue.say(request, "BookingExpired", "BookingExpired", "said of pods that run, too")
    site.run(120)
    assert len(site.status().capacity.attempts) == 1
    queue.revoke(request)
    for pod in site.world.unfinished:
        site.world.disrupt(pod, 137)
    again = _await_request(site, queue, after=1)
    assert "was CapacityRevoked (NodesDeleted: 7 days are over)" in site.outcomes()[0]
    queue.provision(again)
    site.run_until(lambda: jobset(site) and site.status().capacity.attempts[-1].ready)
    site.succeed()
    site.run(120)
    assert (_objects(site), site.model.pools) == (set(), {})


def test_a_suspended_job_leaves_the_queue_and_a_resumed_one_joins_it_again(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    queue.accept(_await_request(site, queue))
    site.world.api.patch(POSTTRAINJOBS, "llama", NAMESPACE, {"spec": {"runPolicy": {"suspend": True}}})
    site.run(180)
    assert (site.status().phase, _objects(site), site.model.pools) == ("Suspended", set(), {})
    site.world.api.patch(POSTTRAINJOBS, "llama", NAMESPACE, {"spec": {"runPolicy": {"suspend": False}}})
    queue.provision(_await_request(site, queue, after=1))
    site.run_until(lambda: jobset(site))


def test_a_deleted_job_takes_its_request_with_it_before_the_pool(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    queue.accept(_await_request(site, queue))
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    site.operator.work()
    assert (_objects(site), site.job() is None) == (set(), False)
    site.run(180)
    assert (site.job(), site.model.pools) == (None, {})


def test_only_pathways_workers_are_asked_for(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED], pathways={"enabled": True}, output={"uri": "gs://lab/runs"})
    request = _await_request(site, queue)
    assert request["spec"]["podSets"][0]["count"] == 4
    queue.provision(request)
    site.run_until(lambda: jobset(site))
    made = jobset(site)
    assert made is not None
    head, workers = (_pod_template(made, role)["metadata"] for role in (0, 1))
    assert list(head["annotations"]) == [SAFE_TO_EVICT]
    assert workers["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == request["metadata"]["name"]


def test_a_new_operator_goes_on_with_the_request_that_is_there(site: Site, queue: Queue) -> None:
    site.create(capacity=[QUEUED])
    request = _await_request(site, queue)
    site.operator.restart()
    assert isinstance(site.operator.cloud, Gke)
    site.run(60)
    assert [each["metadata"]["uid"] for each in queue.requests] == [request["metadata"]["uid"]]
