"""A run from Python: the guide's own code as a real job, then what jobs that stand still can show."""

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import posttrain

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDE, METRICS = DOCS / "guides" / "python.md", DOCS / "reference" / "metrics.md"
Make = Callable[..., posttrain.PostTrainJob]


@pytest.fixture
def job(tmp_path: Path) -> Make:
    """A small job; suspended unless told otherwise, so that nothing is trained."""

    def make(name: str = "a", *, suspend: bool = True, **fields: Any) -> posttrain.PostTrainJob:
        return posttrain.PostTrainJob(
            name=name,
            model={"uri": "random://tiny"},
            algorithm={"sft": {}},
            data={"train": {"uri": (tmp_path / "nowhere.jsonl").as_uri()}},
            run_policy={"suspend": suspend},
            accelerator={"type": "cpu-1"},
            output={"uri": f"{tmp_path.as_uri()}/runs"},
            **fields,
        )

    return make


def is_documented(metric: str) -> bool:
    """Return True if the reference names a metric, as `reward/NAME`, or in two parts: `reward`, `/std`."""
    named = re.findall(r"`([a-zA-Z0-9/_@…]+)`", METRICS.read_text())
    patterns = [re.sub(r"NAME|…", r"[\\w-]+", name) for name in named]
    whole = [name for name in patterns if not name.startswith("/")]
    endings = ["", *(name for name in patterns if name.startswith("/"))]
    return any(re.fullmatch(f"{name}{ending}", metric) for name in whole for ending in endings)


def test_every_code_block_of_the_guide_runs(
    client: posttrain.Client, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    blocks = [block.replace("/tmp/posttrain-python", str(tmp_path)) for block in blocks]
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert [row["step"] for row in names["metrics"]] == [0, 1, 2], "0: evaluated before training"
    assert names["rewards"].shape == (3,)
    assert [column for column in names["metrics"].columns if not is_documented(column)] == []
    assert {"step", "prompt", "completion", "reward"} <= set(names["best"])
    assert names["result"].model == f"{tmp_path.as_uri()}/runs/first-from-python/export"
    assert [row["step"] for row in names["result"].evaluation][-1] == 2
    for words in ("<polyline", "step 2/2", "sample of step 2"):
        assert words in names["card"]
    assert (tmp_path / "runs" / "first-from-python" / "export" / "model.safetensors").is_file()
    assert names["again"].value() == 1.0
    with pytest.raises(posttrain.NotFound, match="'first-from-python' does not exist"):
        names["client"].get("first-from-python")
    for run in names["client"].list():
        run.delete()


def test_a_reward_written_here_scores_what_the_trainer_samples_there(client: posttrain.Client, tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(f'{{"prompt": "{i} + 1 =", "answer": "{i + 1}"}}\n' for i in range(8)))
    longest = 40

    def shortness(prompt: str, completion: str, row: dict[str, str]) -> float:
        return 1.0 - len(completion) / longest + (row["answer"] in completion)

    run = client.submit(
        posttrain.PostTrainJob(
            name="own-reward",
            model={"uri": "random://tiny"},
            algorithm={"grpo": {"group_size": 2}},
            data={"train": {"uri": data.as_uri()}},
            rewards=[shortness],
            training={"steps": 3, "batch_size": 2, "sequence_length": 32},
            rollout={"max_new_tokens": 4},
            accelerator={"type": "cpu-1"},
            output={"uri": f"{tmp_path.as_uri()}/runs"},
        )
    )
    run.wait(timeout=600)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    answers = {f"{i} + 1 =": str(i + 1) for i in range(8)}
    for sample in run.samples(3):
        row = next({"answer": answer} for prompt, answer in answers.items() if prompt in sample["prompt"])
        assert sample["reward"] == pytest.approx(shortness("", sample["completion"], row))


def test_a_job_that_fails_raises_its_class_message_and_hint(client: posttrain.Client, job: Make) -> None:
    run = client.submit(job(suspend=False))
    lines = list(run.logs(follow=True))
    with pytest.raises(posttrain.JobFailed) as failed:
        run.wait(timeout=600)
    assert failed.value.failure_class == "DataError"
    assert "nowhere.jsonl" in failed.value.message
    assert any("nowhere.jsonl" in line for line in lines)
    assert "hint:" not in failed.value.message
    with pytest.raises(posttrain.JobFailed):
        run.result()


def test_a_job_is_submitted_once_listed_cancelled_and_resumed(client: posttrain.Client, job: Make) -> None:
    run = client.submit(job(labels={"team": "x"}))
    with pytest.raises(posttrain.Error, match="job 'a' already exists in namespace"):
        client.submit(job())
    client.submit(job("b"))
    assert [each.name for each in client.list()] == ["a", "b"]
    assert [each.name for each in client.list(labels="team=x")] == ["a"]
    assert client.get("a").uid == run.uid
    with pytest.raises(posttrain.NotFound, match="hint: jobs there: a, b"):
        client.get("c")
    with pytest.raises(posttrain.Error, match="has no result yet"):
        run.result()
    assert run.metrics() == []
    with pytest.raises(posttrain.NotFound, match="no samples yet"):
        run.samples()
    run.resume()
    assert not run.status.suspended
    run.cancel()
    assert run.status.suspended


def test_a_wait_ends_with_its_timeout_and_with_the_deletion_of_the_job(client: posttrain.Client, job: Make) -> None:
    run = client.submit(job())
    with pytest.raises(posttrain.TimedOut, match="job 'a' is "):
        run.wait(timeout=0)
    watched = threading.Event()
    deletion = threading.Thread(target=lambda: (watched.wait(60), run.delete()))
    deletion.start()
    with pytest.raises(posttrain.NotFound, match="was deleted during the wait"):
        run.wait(timeout=600, on_change=lambda status: watched.set())
    deletion.join()


def test_an_await_that_is_cancelled_ends_its_thread_and_the_client_goes_on(client: posttrain.Client, job: Make) -> None:
    run, watched = client.submit(job()), threading.Event()

    async def cancel_a_wait() -> None:
        waiting = asyncio.create_task(run.wait_async(on_change=lambda status: watched.set()))
        await asyncio.to_thread(watched.wait, 60)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(posttrain.TimedOut):
            await run.wait_async(timeout=0)

    asyncio.run(cancel_a_wait())  # joins the threads
    assert "<b>a</b> sft on cpu-1" in run._repr_html_()
    assert "<td>a</td>" in client.list()._repr_html_()
    run.delete(timeout=60)
    assert "does not exist any more" in run._repr_html_()


def test_a_run_is_not_that_of_a_job_made_anew_under_its_name(client: posttrain.Client, job: Make) -> None:
    run = client.submit(job())
    run.delete(timeout=60)
    again = client.submit(job())
    with pytest.raises(posttrain.NotFound, match="was deleted, and another one has its name"):
        run.cancel()
    run.delete()
    assert again.status.name == "a"


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(posttrain.Error, match="kubeconfig not found"):
        posttrain.Client(str(tmp_path / "nowhere"))
