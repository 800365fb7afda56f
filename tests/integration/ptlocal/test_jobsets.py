"""JobSets and Jobs from creation to end, with real processes."""

from collections.abc import Callable
from typing import Any

from tests.builders.cluster import manifests as waiting

from ptkube.client import Kube
from ptkube.resources import JOBS, JOBSETS, PODS, SERVICES, Manifest

Eventually = Callable[..., Manifest]

NAME = "jobset.sigs.k8s.io/jobset-name"
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


def jobset(
    name: str,
    script: str,
    *,
    replicas: int = 1,
    pods: int = 1,
    env: list[Manifest] | None = None,
    job: Manifest | None = None,
    **spec: Any,
) -> Manifest:
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script], "env": env or []}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 60, "containers": [container]}
    template = {"parallelism": pods, "completions": pods, "backoffLimit": 0, **(job or {}), "template": {"spec": pod}}
    replicated = {"name": "w", "replicas": replicas, "template": {"spec": template}}
    return {"metadata": {"name": name}, "spec": {"replicatedJobs": [replicated], **spec}}


def create(kube: Kube, namespace: str, body: Manifest) -> Manifest:
    body["metadata"]["namespace"] = namespace
    return kube.create(JOBSETS, body)


def ends(state: str) -> Callable[[Manifest | None], bool]:
    return lambda item: item is not None and (item.get("status") or {}).get("terminalState") == state


def condition(item: Manifest, kind: str) -> Manifest | None:
    return next((c for c in item["status"].get("conditions") or [] if c["type"] == kind), None)


def pods_of(kube: Kube, namespace: str, name: str) -> list[Manifest]:
    return kube.list(PODS, namespace, labels=f"{NAME}={name}").items


def test_a_jobset_runs_to_completion(kube: Kube, namespace: str, eventually: Eventually) -> None:
    create(kube, namespace, jobset("js", "echo hello", replicas=2, pods=2))
    done = eventually(JOBSETS, "js", namespace, ends("Completed"))
    completed = condition(done, "Completed")
    assert completed["reason"] == "AllJobsCompleted"
    row = done["status"]["replicatedJobsStatus"][0]
    assert (row["name"], row["succeeded"]) == ("w", 2)
    names = sorted(job["metadata"]["name"] for job in kube.list(JOBS, namespace).items)
    assert names == ["js-w-0", "js-w-1"]
    service = kube.get(SERVICES, "js", namespace)
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", {NAME: "js"})
    pods = pods_of(kube, namespace, "js")
    hosts = sorted(pod["spec"]["hostname"] for pod in pods)
    assert hosts == ["js-w-0-0", "js-w-0-1", "js-w-1-0", "js-w-1-1"]
    assert {pod["spec"]["subdomain"] for pod in pods} == {"js"}


def test_pods_reach_each_other_by_name_and_two_jobs_do_not_collide(
    kube: Kube, namespace: str, eventually: Eventually
) -> None:
    """Rank 0 listens on the port of its own name, rank 1 connects to it: twice at once, same port in both specs."""
    server = (
        "import os,socket,sys,time\n"
        "host,port=os.environ['ADDRESS'].split(':')\n"
        "if os.environ['RANK']=='0':\n"
        "    s=socket.create_server((host,int(port))); c,_=s.accept(); c.sendall(os.environ['WORD'].encode())\n"
        "else:\n"
        "    for _ in range(6000):\n"
        "        try: c=socket.create_connection((host,int(port))); break\n"
        "        except OSError: time.sleep(0.05)\n"
        "    got=c.recv(100).decode(); print(got); sys.exit(got!=os.environ['WORD'])\n"
    )
    for name in ("one", "two"):
        env = [
            {"name": "ADDRESS", "value": f"{name}-w-0-0.{name}:1234"},
            {"name": "WORD", "value": name},
            {
                "name": "RANK",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}},
            },
        ]
        body = jobset(name, "", replicas=2, env=env)
        main = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
        main["command"] = ["python", "-c", server]
        create(kube, namespace, body)
    for name in ("one", "two"):
        eventually(JOBSETS, name, namespace, ends("Completed"))


def test_a_failure_restarts_everything_within_the_budget(
    kube: Kube, namespace: str, eventually: Eventually, tmp_path: Any
) -> None:
    script = (
        f'echo run >> {tmp_path}/w-$INDEX; if [ "$ATTEMPT" = 1 ] || [ "$INDEX" = 1 ]; then sleep 0.5; exit; fi; '
        f"until [ -s {tmp_path}/w-1 ]; do sleep 0.05; done; exit 9"
    )
    env = [
        {"name": "ATTEMPT", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{ATTEMPT}']"}}},
        {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}}},
    ]
    create(kube, namespace, jobset("js", script, replicas=2, env=env, failurePolicy={"maxRestarts": 1}))
    done = eventually(JOBSETS, "js", namespace, ends("Completed"))
    assert (done["status"]["restarts"], done["status"]["restartsCountTowardsMax"]) == (1, 1)
    assert (tmp_path / "w-0").read_text() == "run\nrun\n"
    assert (tmp_path / "w-1").read_text() == "run\nrun\n"


POLICY = {
    "rules": [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [65]}},
    ]
}
RULES = {
    "maxRestarts": 3,
    "rules": [
        {
            "name": "preempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": ["condition DisruptionTarget"],
        },
        {"name": "user", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
    ],
}


def test_preemption_restarts_without_charging_the_budget(kube: Kube, namespace: str, eventually: Eventually) -> None:
    script = 'if [ "$ATTEMPT" = 0 ]; then trap "exit 75" TERM; while :; do sleep 0.05; done; fi'
    env = [{"name": "ATTEMPT", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{ATTEMPT}']"}}}]
    create(kube, namespace, jobset("js", script, env=env, job={"podFailurePolicy": POLICY}, failurePolicy=RULES))
    pod = _first_running(kube, namespace, "js")
    note = {"metadata": {"annotations": {"local.posttrain.dev/preempt": "2"}}}
    kube.patch(PODS, pod["metadata"]["name"], namespace, note)
    done = eventually(JOBSETS, "js", namespace, ends("Completed"))
    assert done["status"]["restarts"] == 1
    assert done["status"].get("restartsCountTowardsMax", 0) == 0


def _first_running(kube: Kube, namespace: str, name: str) -> Manifest:
    def running() -> Manifest | None:
        pods = pods_of(kube, namespace, name)
        return next((pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"), None)

    first: Manifest = waiting.eventually(running)
    return first


def test_suspend_ends_the_pods_and_resume_starts_new_ones(kube: Kube, namespace: str, eventually: Eventually) -> None:
    script = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    create(kube, namespace, jobset("js", script, job={"podFailurePolicy": POLICY}, failurePolicy=RULES))
    first = _first_running(kube, namespace, "js")
    kube.patch(JOBSETS, "js", namespace, {"spec": {"suspend": True}})
    suspended = eventually(
        JOBSETS, "js", namespace, lambda j: (condition(j, "Suspended") or {}).get("status") == "True"
    )
    eventually(PODS, first["metadata"]["name"], namespace, lambda p: p is None)
    assert suspended["status"].get("restarts", 0) == 0
    kube.patch(JOBSETS, "js", namespace, {"spec": {"suspend": False}})
    second = _first_running(kube, namespace, "js")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    resumed = eventually(JOBSETS, "js", namespace, lambda j: (condition(j, "Suspended") or {}).get("status") == "False")
    assert "terminalState" not in resumed["status"]


def test_foreground_deletion_waits_for_the_pods(
    kube: Kube, namespace: str, eventually: Eventually, tmp_path: Any
) -> None:
    end = tmp_path / "end"
    script = f"trap 'until [ -e {end} ]; do sleep 0.05; done; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    create(kube, namespace, jobset("js", script))
    pod = _first_running(kube, namespace, "js")
    waiting.eventually(lambda: list(kube.pod_logs(pod["metadata"]["name"], namespace)) == ["up"])
    kube.delete(JOBSETS, "js", namespace, propagation="Foreground")
    owner = kube.get(JOBSETS, "js", namespace)
    assert owner["metadata"]["finalizers"] == ["foregroundDeletion"]
    end.touch()
    eventually(JOBSETS, "js", namespace, lambda j: j is None)
    assert pod["metadata"]["name"] not in [p["metadata"]["name"] for p in kube.list(PODS, namespace).items]


def test_orphaned_children_stay_without_their_owner(kube: Kube, namespace: str, eventually: Eventually) -> None:
    create(kube, namespace, jobset("js", "sleep 100"))
    _first_running(kube, namespace, "js")
    kube.delete(JOBSETS, "js", namespace, propagation="Orphan")
    eventually(JOBSETS, "js", namespace, lambda j: j is None)
    job = eventually(JOBS, "js-w-0", namespace, lambda j: j and not j["metadata"].get("ownerReferences"))
    assert not job["metadata"].get("deletionTimestamp")


def test_ttl_removes_a_finished_jobset(kube: Kube, namespace: str, eventually: Eventually) -> None:
    create(kube, namespace, jobset("js", "true", ttlSecondsAfterFinished=1))
    eventually(JOBSETS, "js", namespace, lambda j: j is None)


def test_a_plain_job_counts_completions(kube: Kube, namespace: str, eventually: Eventually) -> None:
    container = {"name": "main", "image": "none", "command": ["sh", "-c", "echo $JOB_COMPLETION_INDEX"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"completionMode": "Indexed", "completions": 5, "parallelism": 2, "template": template}
    kube.create(JOBS, {"metadata": {"name": "j", "namespace": namespace}, "spec": spec})
    done = eventually(JOBS, "j", namespace, lambda j: condition({"status": {}, **j}, "Complete"))
    assert (done["status"]["succeeded"], done["status"]["completedIndexes"]) == (5, "0-4")
    logs = {"".join(kube.pod_logs(p["metadata"]["name"], namespace)) for p in kube.list(PODS, namespace).items}
    assert logs == {"0", "1", "2", "3", "4"}
