"""What the page is told of jobs and runs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders.servers import bucket as bucketserver

from ptctl.page import run_files
from ptctl.page.job_sources import ClusterJobs, runs_at
from ptkube.resources import EVENTS, NODES, POSTTRAINJOBS


async def read(client: Any, path: str, status: int = 200) -> Any:
    answer = await client.get(f"/api/{path}")
    assert answer.status == status, await answer.text()
    return await answer.json()


async def test_the_list_has_every_job_and_whose_it_is(
    serve: Any, kube: Any, cluster: ClusterJobs, make_job: Any
) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", labels={"example.com/owner": "ann", "team": "x"}))
    kube.put(
        POSTTRAINJOBS, make_job("b", "Failed", namespace="other", failure={"failureClass": "Hang", "message": "m"})
    )
    answer = await read(await serve(cluster), "jobs")
    rows = {row["id"]: row for row in answer["items"]}
    assert set(rows) == {"default/a", "other/b"}
    assert (rows["default/a"]["owner"], rows["other/b"]["failure"]) == ("ann", "Hang")


async def test_a_job_has_its_failure_with_its_hint_apart_and_what_follows(
    serve: Any, kube: Any, cluster: ClusterJobs, make_job: Any
) -> None:
    failure = {"failureClass": "DataError", "message": "row 3 has no prompt\nhint: ptctl data check", "exitCode": 65}
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", failure=failure, completionTime="2026-01-01T01:00:00Z"))
    about = {"involvedObject": {"name": "a"}, "metadata": {"name": "e"}, "reason": "Restarting"}
    kube.put(EVENTS, {**about, "message": "again", "lastTimestamp": "2026-01-01T00:30:00Z"})
    job = await read(await serve(cluster), "job?id=default/a")
    assert (job["failure"]["message"], job["failure"]["hint"]) == ("row 3 has no prompt", "ptctl data check")
    assert "not restarted" in job["failure"]["reaction"]
    assert [entry["kind"] for entry in job["timeline"]] == ["phase", "restart", "end"]
    assert job["spec"].startswith("model:")


async def test_runs_without_a_cluster_have_curves_and_samples(serve: Any, make_run: Callable[..., Path]) -> None:
    runs = make_run("one").parent
    make_run("two", steps=3, samples=())
    client = await serve(runs_at(str(runs)))
    assert {row["id"]: row["phase"] for row in (await read(client, "jobs"))["items"]} == {
        "one": "Succeeded",
        "two": "Succeeded",
    }
    assert (await read(client, "metrics?id=one"))["usual"] == ["loss", "reward"]
    curve = await read(client, "curve?id=one,two&metric=reward&from=2&to=3")
    assert [run["x"] for run in curve["runs"]] == [[2, 3], [2, 3]]
    [entry, _] = (await read(client, "job?id=one"))["timeline"]
    assert (entry["text"], entry["seconds"]) == ("on its chips, step 20/20", 600)
    samples = await read(client, "samples?id=one&step=6")
    assert (samples["step"], samples["previous"], samples["next"]) == (5, None, 10)
    assert samples["rows"][0]["completion"] == "<script>"
    assert (await read(client, "samples?id=two"))["rows"] == []
    assert [row["field"] for row in (await read(client, "diff?a=one&b=two"))["spec"]] == []


async def test_new_steps_are_added_and_a_file_that_is_another_one_is_read_anew(
    serve: Any, make_run: Callable[..., Path]
) -> None:
    metrics = make_run("one", steps=5) / "metrics.jsonl"
    client = await serve(runs_at(str(metrics.parent)))
    assert (await read(client, "metrics?id=one"))["step"] == 5
    with metrics.open("a") as file:
        file.write('{"step": 6, "loss": 9}\n{"step": 7, "lo')
    assert (await read(client, "curve?id=one&metric=loss&from=6"))["runs"][0]["mean"] == [9]
    metrics.write_text('{"step": 1, "kl": 4}\n')
    assert (await read(client, "metrics?id=one"))["names"] == ["kl"]


async def test_an_unchanged_answer_is_not_sent_again(serve: Any, make_run: Callable[..., Path]) -> None:
    client = await serve(runs_at(str(make_run("one").parent)))
    first = await client.get("/api/jobs")
    again = await client.get("/api/jobs", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, await again.read()) == (304, b"")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("job", 404, "id: not set"),
        ("job?id=../etc", 404, "'../etc' is not one of the runs in"),
        ("job?id=%2Fetc", 404, "is not one of the runs in"),
        ("curve?id=one&metric=loss&by=day", 400, "by: 'day'; accepted: step or time"),
        ("curve?id=one&metric=loss&from=x", 400, "from: 'x'; accepted: a number"),
        ("curve?id=one&metric=loss&width=nan", 400, "width: 'nan'; accepted: a number"),
        ("samples?id=none", 404, "'none' is not one of the runs in"),
    ],
)
async def test_a_wrong_question_is_answered_with_what_is_accepted(
    serve: Any, make_run: Callable[..., Path], path: str, status: int, message: str
) -> None:
    client = await serve(runs_at(str(make_run("one").parent)))
    assert message in (await read(client, path, status))["message"]


async def test_a_run_on_a_claim_is_not_read_by_a_pod(
    serve: Any, kube: Any, cluster: ClusterJobs, make_job: Any
) -> None:
    volume = {"name": "v", "mountPath": "/claim", "persistentVolumeClaim": {"claimName": "c"}}
    kube.put(POSTTRAINJOBS, make_job("a", spec={"output": {"uri": "file:///claim/runs"}, "volumes": [volume]}))
    answer = await read(await serve(cluster), "metrics?id=default/a", 502)
    assert (answer["message"], answer["hint"]) == (
        "file:///claim/runs/a is not in a bucket, and cannot be read from here",
        "ptctl workload metrics a",
    )
    assert [call for call in kube.calls if call[0] != "list"] == []


async def test_capacity_says_who_waits_and_which_chips_are_used(
    serve: Any, kube: Any, cluster: ClusterJobs, make_job: Any
) -> None:
    attempt = {"option": "spot", "started": "2026-01-01T00:00:00Z", "outcome": "no stock"}
    kube.put(POSTTRAINJOBS, make_job("a", "Provisioning", capacity={"attempts": [attempt]}))
    node = {"metadata": {"name": "n"}, "status": {"capacity": {"google.com/tpu": "4"}}}
    kube.objects[(NODES.plural, "", "n")] = node
    answer = await read(await serve(cluster), "capacity")
    assert [row["name"] for row in answer["queue"]] == ["a"]
    assert answer["attempts"] == [{"id": "default/a", **attempt}]
    assert [(row["node"], row["chips"], row["used"]) for row in answer["nodes"]] == [("n", 4, 0)]


def test_ptctl_ui_refuses_a_folder_that_is_not_there_and_a_port_that_is_taken(invoke: Any, tmp_path: Path) -> None:
    missing = invoke("ui", "--runs", str(tmp_path / "none"))
    assert (missing.code, "no such folder; accepted: a folder of run directories" in missing.err) == (2, True)
    both = invoke("ui", "--runs", str(tmp_path), "-A")
    assert (both.code, "--runs reads no cluster" in both.err) == (2, True)
    remote = invoke("ui", "--runs", "s3://x/y")
    assert (remote.code, "accepted: a folder here, file:///PATH or gs://BUCKET/PATH" in remote.err) == (2, True)


async def test_runs_in_a_bucket_are_listed_and_their_metrics_continued(
    serve: Any, make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run("one", steps=5)
    with bucketserver.serve_here(monkeypatch) as objects:
        for file in folder.rglob("*.json*"):
            objects.put("lab", f"x/runs/one/{file.relative_to(folder)}", file.read_bytes())
        objects.put("lab", "x/runs/one/spec.yaml", (folder / "spec.yaml").read_bytes())
        objects.put("lab", "x/runs/.preflight/verdict.json", b"{}")
        client = await serve(runs_at("gs://lab/x/runs"))
        assert [row["id"] for row in (await read(client, "jobs"))["items"]] == ["one"]
        assert (await read(client, "metrics?id=one"))["step"] == 5
        whole = objects.content("lab", "x/runs/one/metrics.jsonl")
        objects.put("lab", "x/runs/one/metrics.jsonl", whole + b'{"step": 6, "loss": 9}\n')
        assert (await read(client, "curve?id=one&metric=loss&from=6"))["runs"][0]["mean"] == [9]
        assert [row["prompt"] for row in (await read(client, "samples?id=one"))["rows"]] == ["P10"]


async def test_of_a_large_file_an_outline_is_shown_until_all_of_it_is_parsed(
    serve: Any, make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "_LARGE", 1000)
    monkeypatch.setattr(run_files, "_OUTLINE_ROWS", 10)
    client = await serve(runs_at(str(make_run("one", steps=500))))
    outline = await read(client, "metrics?id=one")
    assert (outline["whole"], outline["rows"] <= 10, outline["usual"]) == (False, True, ["loss", "reward"])
    for _ in range(600):
        if (metrics := await read(client, "metrics?id=one"))["whole"]:
            break
        await asyncio.sleep(0.05)
    assert (metrics["rows"], metrics["step"]) == (500, 500)
