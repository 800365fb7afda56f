"""Progress by the log: MaxText's lines, as its metric_logger and RL hooks print them at e591f30, and our document."""

import json

import pytest
from tests.builders.operator.job_steps import bring_up, condition, status
from tests.builders.operator.world import Operator, World

from ptoperator.observe import maxtext_log
from ptoperator.observe.log_progress import newest

HEAD = "I0706 16:50:26.230209 140110937163584 metric_logger.py:214]"
SFT = (
    "{time} " + HEAD + " completed step: {step}, seconds: 0.250, TFLOP/s/device: 85.920, Tokens/s/device: 16404.374, "
    "total_weights: 5351, loss: {loss}, lm_loss: 0.000, perplexity: 2.001"
)
NOISE = "2026-08-22T10:00:00Z W0822 tokenizer.py:1] loss: 9.9 is no step"
JOB = {
    "image": "maxtext:1",
    "model": {"uri": "gs://lab/m/0/items"},
    "training": {"steps": 250, "batchSize": 8},
    "accelerator": {"type": "cpu-2"},
    "runtime": {"maxtext": {"modelName": "llama3.1-8b"}},
}


def sft(step: int, loss: float, time: str) -> str:
    return SFT.format(time=time, step=step, loss=f"{loss:.3f}")


def test_the_newest_step_counts_with_its_loss_rate_and_rest() -> None:
    lines = [
        sft(9, 2.5, "2026-08-22T10:00:00Z"),
        NOISE,
        sft(10, 2.125, "2026-08-22T10:00:01.5Z"),
        NOISE.replace("00Z", "09Z"),
    ]
    progress = maxtext_log.read(lines, 250, 128)
    assert (progress.step, progress.total_steps, progress.stage) == (10, 250, "training")
    assert progress.seconds_per_step == 0.25
    assert progress.eta_seconds == 60.0
    assert progress.metrics == {"loss": 2.125, "perplexity": 2.001, "tokens_per_second": 16404.374 * 128}
    assert progress.updated == "2026-08-22T10:00:09Z"


def test_an_evaluation_adds_its_loss_and_leaves_the_step() -> None:
    evaluation = f"2026-08-22T10:01:00Z {HEAD} Completed eval after train step 10, loss=1.750, perplexity=5.755"
    progress = maxtext_log.read([sft(10, 2.0, "2026-08-22T10:00:00Z"), evaluation], 250, 1)
    assert (progress.step, progress.metrics["eval/loss"], progress.metrics["loss"]) == (10, 1.75, 2.0)


@pytest.mark.parametrize(
    ("line", "step", "reward"),
    [
        ("Pre RL Training: corr=1, total=5, accuracy=20.0%, partial_accuracy=20.0%, format_accuracy=0.0%,"
         " mean_reward=0.2500", 0, 0.25),
        ("Intermediate Eval (step=20): corr=3, total=5, accuracy=60.0%, partial_accuracy=60.0%, format_accuracy=80.0%,"
         " mean_reward=-0.5000", 20, -0.5),
        ("RL Training Completed Successfully!", 250, None),
        ("Starting RL training...", 0, None),
        ("actor:  10%|#         | 25/250 [01:00<09:00,  2.40s/step, actor_train_loss=0.123]", 25, None),
    ],
)  # fmt: skip
def test_reinforcement_learning_speaks_at_its_evaluations(line: str, step: int, reward: float | None) -> None:
    progress = maxtext_log.read([f"2026-08-22T10:00:00Z W0822 train_rl.py:9] {line}"], 250, 1)
    assert (progress.step, progress.metrics.get("eval/reward")) == (step, reward)


@pytest.mark.parametrize("line", ["", "10:00:00Z", NOISE, "10:00:00Z Fetching:  50%|##| 1/2 [00:01<"])
def test_lines_that_say_nothing_are_no_progress(line: str) -> None:
    assert maxtext_log.read([line], 250, 1) is None


def test_a_loss_that_is_no_number_is_shown_as_such() -> None:
    progress = maxtext_log.read([sft(1, float("nan"), "2026-08-22T10:00:00Z")], 250, 1)
    assert progress.metrics["loss"] != progress.metrics["loss"]


def test_status_shows_what_the_first_pods_log_says(operator: Operator, world: World) -> None:
    bring_up(operator, **JOB)
    world.files.clear()  # MaxText writes no document
    (pod,) = world.unfinished
    world.tick(15)
    now = world.api.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.api.logs[pod["metadata"]["name"], "trainer"] = [NOISE, sft(25, 1.5, now)]
    operator.work()
    shown = status(world)
    assert (shown.phase, shown.progress.steps, shown.metrics.loss) == ("Running", "25/250", "1.5")
    assert condition(world, "Running")[1] == "Training"
    world.tick(15)
    world.api.logs[pod["metadata"]["name"], "trainer"] += [sft(26, 1.25, world.api.now.strftime("%Y-%m-%dT%H:%M:%SZ"))]
    operator.work()
    assert (status(world).progress.step, status(world).metrics.loss) == (26, "1.25")


CLAIM = [{"name": "work", "mountPath": "/mnt/work", "persistentVolumeClaim": {"claimName": "work"}}]


def repeated(step: int, now: str, **more: object) -> str:
    document = {"stage": "training", "step": step, "totalSteps": 250, "metrics": {"loss": 2.0}, "updated": now, **more}
    return f"{now} posttrain-progress: {json.dumps(document)}"


def test_a_run_on_a_claim_is_followed_by_one_read_of_a_log_per_look(
    operator: Operator, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(operator, volumes=CLAIM, output={"uri": "file:///mnt/work/runs"})
    world.files.clear()  # nobody but the pod sees the claim
    (pod,) = world.unfinished
    world.tick(15)
    now = world.api.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = [repeated(24, now), repeated(25, now), f"{now} step 25/250  loss 2.0000", f"{now} from a reward"]
    world.api.logs[pod["metadata"]["name"], "trainer"] = lines
    reads: list[str] = []
    pod_logs = world.api.pod_logs
    monkeypatch.setattr(
        world.api, "pod_logs", lambda name, *rest, **more: reads.append(name) or pod_logs(name, *rest, **more)
    )
    operator.work()
    shown = status(world)
    assert (shown.phase, shown.progress.steps, shown.metrics.loss) == ("Running", "25/250", "2")
    assert reads == [pod["metadata"]["name"]]


def test_a_run_on_a_claim_that_stands_still_is_hung(operator: Operator, world: World) -> None:
    policy = {"hangTimeoutSeconds": 60}
    bring_up(operator, volumes=CLAIM, output={"uri": "file:///mnt/work/runs"}, runPolicy=policy)
    world.files.clear()
    (pod,) = world.unfinished
    now = world.api.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.api.logs[pod["metadata"]["name"], "trainer"] = [repeated(25, now)]
    for _ in range(6):
        world.tick(40)
        operator.work()
    assert condition(world, "Running")[:2] == ("False", "Hang")
    assert "after step 25 while training" in condition(world, "Running")[2]


def test_a_line_that_was_cut_is_no_progress() -> None:
    assert newest(['10:00:00Z posttrain-progress: {"step": 2']) is None
    assert newest(["10:00:00Z step 1/2"]) is None
