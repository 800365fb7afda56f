"""`workload logs` and `describe`: what pods and their job say."""

from collections.abc import Callable
from typing import Any

import pytest

from ptkube.resources import EVENTS, PODS, POSTTRAINJOBS

Invoke = Callable[..., Any]
Make = Callable[..., Any]


def pod(
    name: str,
    slice_index: int = 0,
    host: int = 0,
    *,
    attempt: int = 0,
    hosts: int = 2,
    phase: str = "Running",
    uid: str = "uid-a",
    containers: tuple[str, ...] = ("trainer",),
    **status: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {
                "posttrain.dev/job": "a",
                "posttrain.dev/job-uid": uid,
                "jobset.sigs.k8s.io/job-index": str(slice_index),
                "jobset.sigs.k8s.io/restart-attempt": str(attempt),
                "batch.kubernetes.io/job-completion-index": str(host),
            },
        },
        "spec": {
            "nodeName": "node-0",
            "containers": [
                {"name": c, "env": [{"name": "POSTTRAIN_HOSTS_PER_SLICE", "value": str(hosts)}]} for c in containers
            ],
        },
        "status": {"phase": phase, **status},
    }


def test_one_rank_prints_its_lines_as_they_are(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    kube.put(PODS, pod("p0", hosts=1))
    kube.logs[("p0", "trainer")] = ["one", "two"]
    assert invoke("workload", "logs", "a").out == "one\ntwo\n"
    assert invoke("workload", "logs", "a", "--tail", "1").out == "two\n"


def test_what_the_trainer_says_to_the_operator_is_not_shown(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    kube.put(PODS, pod("p0", hosts=1))
    kube.logs[("p0", "trainer")] = ["one", 'posttrain-progress: {"step": 1}', "two"]
    assert invoke("workload", "logs", "a").out == "one\ntwo\n"


def test_several_ranks_are_tagged_with_slice_times_hosts_plus_host(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    for slice_index in (1, 0):
        for host in (1, 0):
            name = f"p{slice_index}{host}"
            kube.put(PODS, pod(name, slice_index, host))
            kube.logs[(name, "trainer")] = [name]
    assert invoke("workload", "logs", "a").out == "[0] p00\n[1] p01\n[2] p10\n[3] p11\n"
    assert invoke("workload", "logs", "a", "--rank", "2").out == "[2] p10\n"
    absent = invoke("workload", "logs", "a", "--rank", "4")
    assert (absent.code, "rank 4, has no pod; ranks with pods: 0, 1, 2, 3" in absent.err) == (3, True)


def test_the_pods_of_samplers_of_several_hosts_are_counted_through(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    for index, host in ((0, 0), (0, 1), (1, 0), (1, 1)):
        kube.put(PODS, pod(f"s{index}{host}", index, host, containers=("sampler",)))
        kube.logs[(f"s{index}{host}", "sampler")] = [f"s{index}{host}"]
    assert invoke("workload", "logs", "a", "--role", "sampler", "--rank", "3").out == "[3] s11\n"


def test_the_replicas_of_a_service_have_logs_and_are_described(invoke: Invoke, kube: Any, make_job: Make) -> None:
    job = make_job("a")
    job["spec"]["services"] = [{"name": "judge", "replicas": 2, "image": "i"}, {"name": "game", "image": "i"}]
    kube.put(POSTTRAINJOBS, job)
    kube.put(PODS, pod("p0", hosts=1))
    for service, index in (("judge", 0), ("judge", 1), ("game", 0)):
        replica = pod(f"{service}{index}", index, hosts=1, containers=("service",))
        replica["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = service
        kube.put(PODS, replica)
        kube.logs[(f"{service}{index}", "service")] = [f"of {service} {index}"]
    assert invoke("workload", "logs", "a", "--role", "judge", "--rank", "1").out == "[1] of judge 1\n"
    assert invoke("workload", "logs", "a", "--role", "game").out == "of game 0\n"
    described = invoke("workload", "describe", "a").out
    tables = described.partition("Pods:")[2]
    assert [tables.count(name) for name in ("Service judge:", "Service game:", "judge1", "game0")] == [1, 1, 1, 1]
    unknown = invoke("workload", "logs", "a", "--role", "teacher")
    assert "has no role 'teacher'" in unknown.err
    assert "--role trainer, sampler, judge, game" in unknown.err


def test_a_line_of_several_ranks_is_printed_once_with_their_numbers(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    for slice_index in (0, 1):
        for host in (0, 1):
            kube.put(PODS, pod(f"p{slice_index}{host}", slice_index, host))
    kube.logs = {
        ("p00", "trainer"): ["loading", "step 1", "step 1"],
        ("p01", "trainer"): ["loading", "step 1"],
        ("p10", "trainer"): ["loading", "own"],
        ("p11", "trainer"): ["step 1", "loading", "step 1"],
    }
    printed = "[0-3] loading\n[0-1,3] step 1\n[0,3] step 1\n[2] own\n"
    assert invoke("workload", "logs", "a").out == printed
    assert invoke("workload", "logs", "a", "--grep", "^l|own$").out == "[0-3] loading\n[2] own\n"


def test_logs_of_one_attempt_and_of_the_last_minutes(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    kube.put(PODS, pod("p-old", hosts=1, phase="Failed"))
    kube.put(PODS, pod("p-new", hosts=1, attempt=1))
    kube.logs = {("p-old", "trainer"): ["first"], ("p-new", "trainer"): ["second"]}
    result = invoke("workload", "logs", "a", "--attempt", "1", "--since", "15m")
    assert (result.out, result.err) == ("first\n", "")
    assert [call[1] for call in kube.calls if call[0] == "logs"] == [("p-old", 900)]
    absent = invoke("workload", "logs", "a", "--attempt", "3")
    assert (absent.code, "attempt 3, has no pod; ranks with pods: 0; attempts: 1, 2" in absent.err) == (3, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--grep", "(["), "--grep '([': "), (("--since", "soon"), "2h30m"), (("--attempt", "0"), "0")],
)
def test_a_wrong_selection_of_lines_is_refused(invoke: Invoke, words: tuple[str, ...], message: str) -> None:
    result = invoke("workload", "logs", "a", *words)
    assert (result.code, message in result.err) == (2, True)


def test_two_containers_of_a_vm_are_two_ranks(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    kube.put(PODS, pod("p0", 0, 1, containers=("trainer-0", "trainer-1")))
    kube.logs = {("p0", "trainer-0"): ["x"], ("p0", "trainer-1"): ["y"]}
    assert invoke("workload", "logs", "a").out == "[2] x\n[3] y\n"


def test_attempts_are_announced_on_stderr(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    kube.put(PODS, pod("p-old", hosts=1, phase="Failed"))
    kube.put(PODS, pod("p-new", hosts=1, attempt=1))
    kube.logs = {("p-old", "trainer"): ["first"], ("p-new", "trainer"): ["second"]}
    result = invoke("workload", "logs", "a")
    assert (result.out, result.err) == ("first\nsecond\n", "--- attempt 2\n")


def test_pods_of_an_earlier_job_of_the_same_name_are_not_shown(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    kube.put(PODS, pod("p-other", uid="uid-of-another"))
    assert invoke("workload", "logs", "a").code == 3


def test_before_there_are_pods_logs_says_so(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Queued"))
    result = invoke("workload", "logs", "a")
    assert (result.code, result.out) == (3, "")
    assert "has no pods yet: Queued" in result.err
    assert "add -f to wait" in result.err


def test_after_the_pods_are_gone_logs_says_where_results_are(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded"))
    for words in (("a",), ("a", "-f")):
        result = invoke("workload", "logs", *words)
        assert result.code == 3
        assert "file:///runs/a" in result.err


def test_a_pod_that_waits_says_what_for(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Starting"))
    waiting = {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    kube.put(PODS, pod("p0", hosts=1, phase="Pending", containerStatuses=[waiting]))
    assert "rank 0 has not started: ImagePullBackOff: no such image" in invoke("workload", "logs", "a").err


def test_follow_reads_all_ranks_to_the_end_of_the_job(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded"))
    for host in (0, 1):
        kube.put(PODS, pod(f"p{host}", 0, host, phase="Succeeded"))
        kube.logs[(f"p{host}", "trainer")] = [f"line of {host}"]
    result = invoke("workload", "logs", "a", "-f")
    assert sorted(result.out.splitlines()) == ["[0] line of 0", "[1] line of 1"]
    assert result.err.endswith("job 'a' succeeded\n")
    assert result.code == 0


def test_describe_tells_everything(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(
        POSTTRAINJOBS,
        make_job(
            "a",
            "Restarting",
            chips=64,
            jobSet="a",
            labels={"team": "search"},
            spec={"accelerator": {"type": "v5p-128"}, "queue": "gold"},
            progress={
                "step": 40,
                "total": 300,
                "percent": 13,
                "secondsPerStep": 1.5,
                "eta": "6m",
                "stage": "training",
                "updated": "2026-01-01T00:00:00Z",
            },
            metrics={"loss": "0.8", "evalReward": "0.61"},
            restarts={"Preempted": 2},
            checkpoint={"step": 30, "uri": "file:///runs/a/checkpoints/30", "time": "2026-01-01T00:00:00Z"},
            failure={
                "failureClass": "Preempted",
                "message": "node is going away",
                "exitCode": 75,
                "pod": "a-0",
                "node": "gke-7",
                "log": "step 40\nSIGTERM",
            },
            links={"cloudLogs": "https://console.cloud.google.com/logs/query;query=x?project=p"},
            conditions=[
                {
                    "type": "Running",
                    "status": "False",
                    "reason": "Restarting",
                    "message": "starts again",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            capacity={
                "attempts": [{"option": "spot us-east5-a", "started": "2026-01-01T00:00:00Z", "outcome": "stockout"}]
            },
            time={"queueing": 30, "training": 60, "goodput": "66%"},
        ),
    )
    kube.put(PODS, pod("a-slice-0-0", hosts=1))
    kube.put(
        EVENTS,
        {
            "metadata": {"name": "e"},
            "involvedObject": {"name": "a", "uid": "uid-a"},
            "type": "Normal",
            "reason": "Created",
            "message": "JobSet a",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        },
    )
    out = invoke("workload", "describe", "a").out
    for words in (
        "Phase:           Restarting",
        "v5p-128 (64 chips)",
        "40 of 300 (13%)",
        "Queue:           gold",
        "team=search",
        "Preempted: node is going away",
        "exit code 75, pod a-0, node gke-7",
        "  | step 40\n  | SIGTERM",
        "Cloud Logging:   https://console.cloud.google.com/logs/query",
        "2 x Preempted",
        "starts again",
        "stockout",
        "queueing 30s, training 60s",
        "a-slice-0-0",
        "JobSet a",
        "file:///runs/a",
        "step 30, ",
        "Held-out reward: 0.61",
    ):
        assert words in out, words
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_describe_of_a_fresh_job_has_no_empty_sections(invoke: Invoke, kube: Any, make_job: Make) -> None:
    job = make_job("a")
    del job["status"]
    kube.put(POSTTRAINJOBS, job)
    out = invoke("workload", "describe", "a").out
    assert "Conditions:" not in out
    assert "None" not in out
    assert "\n\n\n" not in out


def test_describe_of_a_job_that_no_operator_has_seen_says_so(invoke: Invoke, kube: Any, make_job: Make) -> None:
    job = make_job("a")
    del job["status"]
    kube.put(POSTTRAINJOBS, job)
    line = "Operator:        none has handled the job yet; hint: does one run, and serve namespace default?\n"
    assert line in invoke("workload", "describe", "a").out
    kube.put(POSTTRAINJOBS, {**job, "status": {"phase": "Pending"}})
    assert "none has handled" not in invoke("workload", "describe", "a").out


@pytest.mark.parametrize("verb", ["logs", "describe", "metrics", "samples", "tensorboard", "suspend", "resume", "wait"])
def test_verbs_on_one_job_want_a_name_and_refuse_xpks_flag(invoke: Invoke, verb: str) -> None:
    assert invoke("workload", verb).code == 2
    result = invoke("workload", verb, "--workload", "a")
    assert (result.code, "the name is an argument" in result.err) == (2, True)
    assert invoke("workload", verb, "nope").code == 3


def test_a_link_leads_to_the_logs_of_all_ranks_or_of_one(invoke: Invoke, kube: Any, make_job: Make) -> None:
    links = {
        "cloudLogs": "https://console.cloud.google.com/logs/query;query=all?project=p",
        "cloudLogsOfRank": "https://console.cloud.google.com/logs/query;query="
        "resource.labels.pod_name%3D~%22%5Ea-slice-0-0-%22?project=p",
    }
    spec = {"accelerator": {"type": "v6e-16"}, "algorithm": {"sft": {}}, "training": {"batchSize": 16}}
    kube.put(POSTTRAINJOBS, make_job("a", spec=spec, links=links))
    assert invoke("workload", "logs", "a", "--link").out == links["cloudLogs"] + "\n"
    assert "%22%5Ea-slice-0-2-%22?" in invoke("workload", "logs", "a", "--link", "--rank", "2").out
    wrong = invoke("workload", "logs", "a", "--link", "--rank", "4")
    assert (wrong.code, "--rank: rank 4: the job has ranks 0 to 3" in wrong.err) == (2, True)


def test_a_job_outside_google_cloud_has_no_link(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    result = invoke("workload", "logs", "a", "--link")
    assert (result.code, "job 'a' has no link to Cloud Logging" in result.err) == (1, True)
