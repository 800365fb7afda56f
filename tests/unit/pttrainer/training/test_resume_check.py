"""Which edits of a job may go on with a run that has begun, and what is said of those that may not."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.builders.servers import bucket as bucketserver

from ptapi import run_directory
from ptapi.accelerators import compiler_flags
from ptapi.load import parse_job
from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError, DataError
from pttrainer.runtime.io import file_digests, storage
from pttrainer.runtime.io.directory import Directory
from pttrainer.training.run_directory import resume_check, run_files

Edit = dict[str, Any]
REWARD = "from beside import worth\n\n\ndef reward(prompt, completion, row):\n    return worth(completion)\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Everything that a job may name."""
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    (tmp_path / "other.jsonl").write_text('{"prompt": "1+2", "answer": "3"}\n')
    shutil.copy(tmp_path / "train.jsonl", tmp_path / "copy.jsonl")
    shutil.copy(tmp_path / "train.jsonl", tmp_path / "copy.json")
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "beside.py").write_text("def worth(text):\n    return 1.0\n")
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    (tmp_path / "more").mkdir()
    for name in ("reward.py", "beside.py"):
        shutil.copy(tmp_path / name, tmp_path / "more" / name)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(4096))
    return tmp_path


def spec(home: Path) -> dict[str, Any]:
    return {
        "model": {"uri": f"file://{home}/model", "chatTemplate": f"file://{home}/chat.jinja"},
        "algorithm": {"grpo": {"groupSize": 4}},
        "data": {"train": {"uri": f"file://{home}/train.jsonl"}},
        "rewards": [{"python": {"uri": f"file://{home}/reward.py"}}],
        "training": {"steps": 12, "batchSize": 8, "optimizer": {"learningRate": 3e-3}, "lora": {"rank": 4}},
        "checkpoint": {"everySteps": 2},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": f"file://{home}/runs"},
    }


def job(home: Path, *edits: tuple[str, Any], uid: str | None = None) -> PostTrainJob:
    """The job of `spec`, with values at dotted paths; None takes a field away."""
    document = copy.deepcopy(spec(home))
    for path, value in edits:
        *parents, last = path.split(".")
        at: Any = document
        for name in parents:
            at = at[int(name)] if name.isdigit() else at.setdefault(name, {})
        if value is None:
            at.pop(last, None)
        else:
            at[int(last) if last.isdigit() else last] = value
    metadata = {"name": "sums"} if uid is None else {"name": "sums", "uid": uid}
    return parse_job(
        {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": metadata, "spec": document}
    )


def begun(mine: PostTrainJob, step: int = 8) -> Directory:
    """The directory of a run that has come to a step, as the trainer leaves it."""
    place = storage.place(f"{mine.spec.output.uri}/{mine.metadata.name}")
    assert isinstance(place, Directory)
    run_files.claim(place, mine)
    run_files.write_lineage(place, mine, mine.spec.data, {})
    place.write(f"{run_directory.CHECKPOINTS}/{step}/run/metadata", b"{}")
    place.write(f"{run_directory.CHECKPOINTS}/{step + 2}.orbax-checkpoint-tmp/run", b"{")
    return place


def content(place: Directory) -> dict[str, bytes | None]:
    return {name: place.read(name) for name in place.names()}


REFUSED: dict[str, tuple[list[tuple[str, Any]], str]] = {
    "learning rate": ([("training.optimizer.learningRate", 1e-3)],
     "spec.training.optimizer.learningRate: was 0.003, is 0.001"),
    "optimizer": ([("training.optimizer.name", "lion")], "spec.training.optimizer.name: was adamw, is lion"),
    "schedule": ([("training.schedule.kind", "linear")], "spec.training.schedule.kind: was cosine, is linear"),
    "batch": ([("training.batchSize", 16)], "spec.training.batchSize: was 8, is 16"),
    "sequence": ([("training.sequenceLength", 2048)], "spec.training.sequenceLength: was 1024, is 2048"),
    "seed": ([("training.seed", 1)], "spec.training.seed: was 0, is 1"),
    "rank": ([("training.lora.rank", 8)], "spec.training.lora.rank: was 4, is 8"),
    "alpha": ([("training.lora.alpha", 8)], "spec.training.lora.alpha: was 32.0, is 8.0"),
    "no adapters": ([("training.lora", None)], 'spec.training.lora: was {"rank": 4, "alpha": 32.0'),
    "quantization": ([("training.quantization", {"weights": "int8"})], "spec.training.quantization: was unset, is {"),
    "freeze": ([("training.lora", None), ("training.freeze", ["norms"])], 'spec.training.freeze: was [], is ["norms"]'),
    "ema": ([("training.ema", {"decay": 0.9})], 'spec.training.ema: was unset, is {"decay": 0.9}'),
    "steps below the checkpoint": ([("training.steps", 6)],
     "spec.training.steps: was 12, is 6; the newest checkpoint is at step 8; accepted: more than 8"),
    "steps at the checkpoint": ([("training.steps", 8)],
     "spec.training.steps: was 12, is 8; the newest checkpoint is at step 8; accepted: more than 8"),
    "epochs instead": ([("training.steps", None), ("training.epochs", 3)],
     "spec.training.epochs: was 12 steps, is 3; accepted: spec.training.steps, more than 8, the step of the newest"),
    "base model": ([("model.uri", "random://tiny")], "spec.model.uri: was file://{home}/model, is random://tiny"),
    "tokenizer": ([("model.tokenizer", "random://tiny")], "spec.model.tokenizer: was unset, is random://tiny"),
    "no template": ([("model.chatTemplate", None)], "spec.model.chatTemplate: was file://{home}/chat.jinja, is unset"),
    "algorithm": ([("algorithm", {"ppo": {}})], 'spec.algorithm.grpo: was {"loss": "grpo", "groupSize": 4,'),
    "loss": ([("algorithm.grpo.loss", "dapo")], "spec.algorithm.grpo.loss: was grpo, is dapo"),
    "group": ([("algorithm.grpo.groupSize", 8)], "spec.algorithm.grpo.groupSize: was 4, is 8"),
    "temperature": ([("rollout.temperature", 0.5)], "spec.rollout.temperature: was 1.0, is 0.5"),
    "stop": ([("rollout.stop", ["END"])], 'spec.rollout.stop: was [], is ["END"]'),
    "system prompt": ([("data.systemPrompt", "Add.")], "spec.data.systemPrompt: was unset, is Add."),
    "columns": ([("data.train.columns", {"prompt": "question"})],
     "spec.data.train.columns.prompt: was unset, is question"),
    "limit": ([("data.train.limit", 3)], "spec.data.train.limit: was unset, is 3"),
    "other data": (
        [("data.train.uri", "file://{home}/other.jsonl")],
        "spec.data.train.uri: was file://{home}/train.jsonl, is file://{home}/other.jsonl, whose content differs: "
        "was 33 bytes (sha256 ",
    ),
    "the same bytes read in another form": ([("data.train.uri", "file://{home}/copy.json")],
     "spec.data.train.uri: was file://{home}/train.jsonl, is file://{home}/copy.json, whose"),
    "held-out data": ([("data.eval", {"uri": "file://{home}/other.jsonl"})], "spec.data.eval: was unset, is {"),
    "weight": ([("rewards.0.weight", 2)], "spec.rewards[0].weight: was 1.0, is 2.0"),
    "another reward": ([("rewards", [{"python": {"uri": "file://{home}/reward.py"}}, {"builtin": "gsm8k"}])],
     "spec.rewards[1]: was unset, is {",),
    "function": ([("rewards.0.python.function", "other")], "spec.rewards[0].python.function: was reward, is other"),
    "environment": ([("environment", {"tools": [{"builtin": "calculator"}]})], "spec.environment: was unset, is {"),
    "pass mark": ([("evaluation.passMark", 0.5)], "spec.evaluation.passMark: was 1.0, is 0.5"),
    "origin": ([("checkpoint.fork", {"uri": "file:///runs/other"})], "spec.checkpoint.fork: was unset, is {"),
    "number format": ([("training.precision.params", "bfloat16")],
     "spec.training.precision.params: was float32, is bfloat16"),
}  # fmt: skip


def filled(home: Path, value: Any) -> Any:
    return json.loads(json.dumps(value).replace("{home}", str(home)))


@pytest.mark.parametrize("name", REFUSED)
def test_an_edit_that_changes_the_meaning_is_refused_and_nothing_is_written(home: Path, name: str) -> None:
    edits, line = REFUSED[name]
    place = begun(job(home))
    before = content(place)
    with pytest.raises((ConfigError, DataError)) as refused:
        resume_check.compare(job(home, *filled(home, edits)), place)
    first, *lines, last = str(refused.value).splitlines()
    assert first == f"spec: differs from the job that started the run in {place.uri}, now at step 8:"
    assert any(each.startswith(filled(home, line)) for each in lines), lines
    assert "; hint: start a new run under another metadata.name" in last
    assert content(place) == before


FREE: dict[str, tuple[list[tuple[str, Any]], list[str]]] = {
    "nothing": ([], []),
    "steps up": ([("training.steps", 20)],
     ["spec.training.steps: was 12, is 20; the cosine schedule then covers the new length"]),
    "an earlier end": ([("training.steps", 9)],
     ["spec.training.steps: was 12, is 9; the cosine schedule then covers the new length"]),
    "evaluation": ([("evaluation.atEnd", False)], ["spec.evaluation.atEnd: was true, is false"]),
    "checkpoints": (
        [("checkpoint", {"everySteps": 5, "keep": 3, "everySeconds": 60})],
        [
            "spec.checkpoint.everySteps: was 2, is 5",
            "spec.checkpoint.keep: was 2, is 3",
            "spec.checkpoint.everySeconds: was unset, is 60",
        ],
    ),
    "export": ([("export.format", "none")], ["spec.export.format: was safetensors, is none"]),
    "tensorboard": ([("tensorboard.enabled", False)], ["spec.tensorboard.enabled: was true, is false"]),
    "profile": ([("training.profile", {"start": 9})],
     ['spec.training.profile: was unset, is {"start": 9, "steps": 3}']),
    "micro-batches": ([("training.microBatchSize", 4)], ["spec.training.microBatchSize: was unset, is 4"]),
    "devices": ([("accelerator.type", "cpu-8"), ("training.parallelism", {"fsdp": 8})],
     ["spec.training.parallelism.fsdp: was auto, is 8", "spec.accelerator.type: was cpu-1, is cpu-8"]),
    "remat": ([("training.remat", "full")], ["spec.training.remat: was auto, is full"]),
    "slots": ([("rollout.slots", 4)], ["spec.rollout.slots: was unset, is 4"]),
    "image": ([("image", "trainer:2")], ["spec.image: was unset, is trainer:2"]),
    "limits": ([("runPolicy.maxRestarts", 9)], ["spec.runPolicy.maxRestarts: was 3, is 9"]),
    "priority": ([("priorityClassName", "high")], ["spec.priorityClassName: was unset, is high"]),
    "a moved file": ([("data.train.uri", "file://{home}/copy.jsonl")],
     ["spec.data.train.uri: was file://{home}/train.jsonl, is file://{home}/copy.jsonl"]),
    "moved code": ([("rewards.0.python.uri", "file://{home}/more/reward.py")],
     ["spec.rewards[0].python.uri: was file://{home}/reward.py, is file://{home}/more/reward.py"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FREE)
def test_an_edit_that_leaves_the_meaning_alone_goes_on_and_is_named(home: Path, name: str) -> None:
    edits, lines = FREE[name]
    place = begun(job(home))
    resumed = resume_check.compare(job(home, *filled(home, edits)), place)
    assert resumed.at == (8, 8)
    assert list(map(str, resumed.changes)) == filled(home, lines)


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b" ")


@pytest.mark.parametrize(
    ("file", "field", "error"),
    [
        ("train.jsonl", "spec.data.train.uri", DataError),
        ("reward.py", "spec.rewards[0].python.uri", ConfigError),
        ("beside.py", "spec.rewards[0].python.uri", ConfigError),
        ("chat.jinja", "spec.model.chatTemplate", ConfigError),
        ("model/config.json", "spec.model.uri", ConfigError),
        ("model/model.safetensors", "spec.model.uri", ConfigError),
    ],
)
def test_a_file_that_holds_something_else_is_refused_by_name(
    home: Path, file: str, field: str, error: type[Exception]
) -> None:
    place = begun(job(home))
    size = (home / file).stat().st_size
    rewrite(home / file)
    with pytest.raises(error) as refused:
        resume_check.compare(job(home), place)
    (line,) = str(refused.value).splitlines()[1:-1]
    assert line.startswith(f"{field}: file://{home}/{file}: was {size:,} bytes (sha256 ")


def test_files_that_came_and_went_are_named(home: Path) -> None:
    for name in "abc":
        (home / "rows").mkdir(exist_ok=True)
        (home / "rows" / f"{name}.jsonl").write_text(f'{{"prompt": "{name}", "answer": "1"}}\n')
    mine = job(home, ("data.train.uri", f"file://{home}/rows"))
    place = begun(mine)
    (home / "rows" / "b.jsonl").rename(home / "rows" / "d.jsonl")
    with pytest.raises(DataError) as refused:
        resume_check.compare(mine, place)
    first, second = str(refused.value).splitlines()[1:-1]
    assert first.startswith(f"spec.data.train.uri: file://{home}/rows/b.jsonl: was 31 bytes")
    assert first.endswith(", is not there")
    assert second.startswith(f"spec.data.train.uri: file://{home}/rows/d.jsonl: was not there, is 31 bytes")


def test_all_differences_are_in_one_error_with_the_ways_on(home: Path) -> None:
    place = begun(job(home))
    rewrite(home / "train.jsonl")
    with pytest.raises(ConfigError) as refused:
        resume_check.compare(job(home, ("training.seed", 3), ("algorithm.grpo.beta", 0.1)), place)
    text = str(refused.value)
    assert [line.split(":")[0] for line in text.splitlines()[1:-1]] == [
        "spec.algorithm.grpo.beta",
        "spec.training.seed",
        "spec.data.train.uri",
    ]
    assert f"checkpoint: {{fork: {{uri: {place.uri}/checkpoints/8, state: weights}}}}" in text
    assert "ptctl train --fresh" in text


def test_weights_are_not_offered_to_a_job_with_another_model_nor_starting_over_to_a_cluster(home: Path) -> None:
    place = begun(job(home))
    with pytest.raises(ConfigError) as refused:
        resume_check.compare(job(home, ("model.uri", "random://tiny"), uid="u-1"), place)
    assert "fork" not in str(refused.value)
    assert "--fresh" not in str(refused.value)


@pytest.mark.parametrize("left", ["checkpoints", "metrics"])
def test_a_run_with_a_step_in_its_metrics_alone_has_begun_too(home: Path, left: str) -> None:
    place = begun(job(home))
    if left == "metrics":
        shutil.rmtree(place.path / run_directory.CHECKPOINTS)
        place.write(run_directory.METRICS, b'{"step": 0}\n{"step": 1}\n{"step": 2}\n{"st')
    with pytest.raises(ConfigError, match=f"step {8 if left == 'checkpoints' else 2}:"):
        resume_check.compare(job(home, ("training.seed", 3)), place)


def test_a_directory_without_a_step_is_anybody_s(home: Path) -> None:
    place = begun(job(home))
    shutil.rmtree(place.path / run_directory.CHECKPOINTS / "8")
    place.write(run_directory.METRICS, b'{"step": 0, "eval/loss": 5.5}\n')
    assert resume_check.compare(job(home, ("training.seed", 3), ("checkpoint.resume", "never")), place) is None


def test_never_refuses_to_go_on_and_keeps_what_is_there(home: Path) -> None:
    mine = job(home, ("checkpoint.resume", "never"))
    place = begun(mine)
    before = content(place)
    with pytest.raises(ConfigError, match=r"spec\.checkpoint\.resume: never: file://.*/sums holds a run at step"):
        resume_check.compare(mine, place)
    assert content(place) == before


@pytest.mark.parametrize("name", [run_directory.SPEC, run_directory.LINEAGE])
@pytest.mark.parametrize("damage", [None, b"{"])
def test_a_run_whose_beginning_is_not_known_is_refused(home: Path, name: str, damage: bytes | None) -> None:
    place = begun(job(home))
    place.remove(name) if damage is None else place.write(name, damage)
    with pytest.raises(ConfigError, match=rf"its original job is unknown: {name} (is not there|cannot be read)"):
        resume_check.compare(job(home), place)


def test_a_run_of_an_older_posttrain_goes_on_with_what_its_lineage_knew(home: Path) -> None:
    place = begun(job(home))
    lineage = run_files.read_lineage(place)
    del lineage["files"], lineage["changes"]
    place.write(run_directory.LINEAGE, json.dumps(lineage).encode())
    rewrite(home / "reward.py")
    assert resume_check.compare(job(home), place) == ((8, 8), [])
    rewrite(home / "train.jsonl")
    with pytest.raises(DataError):
        resume_check.compare(job(home), place)


def test_the_lineage_keeps_every_change_over_all_attempts(home: Path) -> None:
    place = begun(job(home))
    for attempt in (1, 2):
        run_files.record(place, 8, [("spec.training.steps", "12", "20")])  # a kill may have it written twice
        lineage = run_files.read_lineage(place)
        lineage["versions"]["jax"] = f"0.{attempt}"
        place.write(run_directory.LINEAGE, json.dumps(lineage).encode())
        (line,) = run_files.write_lineage(place, job(home), job(home).spec.data, {}, 8)
        assert line.startswith(f"versions.jax: was 0.{attempt}, is ")
    fields = [change["field"] for change in run_files.read_lineage(place)["changes"]]
    assert fields == ["spec.training.steps", "versions.jax", "versions.jax"]


def test_other_compiler_flags_are_in_the_lineage_and_in_what_changed(home: Path) -> None:
    chips, flag = ("accelerator.type", "v6e-4"), "xla_jf_spmd_threshold_for_windowed_einsum_mib"
    place = begun(job(home, chips))
    assert run_files.read_lineage(place)["xlaFlags"] == compiler_flags.flags("v6e")
    again = job(home, chips, ("accelerator.xlaFlags", [f"--{flag}=0"]))
    assert run_files.write_lineage(place, again, again.spec.data, {}, 8) == [f"xlaFlags.{flag}: was 1000000, is 0"]


def test_epochs_may_become_more_and_steps_take_their_place(home: Path) -> None:
    place = begun(job(home, ("training.steps", None), ("training.epochs", 2)))
    for edits, line in (
        ([("training.steps", None), ("training.epochs", 3)], "spec.training.epochs: was 2, is 3;"),
        ([("training.steps", 12)], "spec.training.steps: was 2 epochs, is 12;"),
    ):
        resumed = resume_check.compare(job(home, *edits), place)
        assert str(resumed.changes[0]).startswith(line)
    for edits in ([("training.steps", None)], [("training.steps", 8)]):  # neither of both is one epoch
        with pytest.raises(ConfigError, match=r"accepted: more than (2, or spec\.training\.steps|8)"):
            resume_check.compare(job(home, *edits), place)


def test_a_run_is_set_aside_whole_and_beside_those_that_were_before(home: Path) -> None:
    for number in (1, 2):
        place = begun(job(home))
        before = content(place)
        assert run_files.set_aside(place, 8) == f"{place.uri}.previous-{number}"
        assert content(Directory(place.path.with_name(f"sums.previous-{number}"))) == before
        assert not place.path.exists()


def test_large_weights_are_sampled_and_others_of_the_same_size_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digests, "WHOLE_BYTES", 2**20)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(bytes(8 * 2**20))
    second.write_bytes(bytes(7 * 2**20) + b"\x01" * 2**20)
    assert file_digests.weights(first).startswith("sampled:")
    assert file_digests.weights(first) != file_digests.weights(second)


def test_on_a_bucket_objects_are_compared_by_the_service_s_checksum_and_nothing_is_set_aside(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucketserver.serve() as buckets:
        for name, value in buckets.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        files = {"chat.jinja": "{{ messages }}", "model/config.json": "{}", "model/model.safetensors": "1234"}
        for name, text in (files | {"rows/train.jsonl": '{"prompt": "1", "answer": "1"}\n'}).items():
            buckets.put("lab", name, text.encode())
        mine = job(
            home,
            ("model", {"uri": "gs://lab/model", "chatTemplate": "gs://lab/chat.jinja"}),
            ("data.train.uri", "gs://lab/rows/*.jsonl"),
            ("output.uri", "gs://lab/runs"),
        )
        place = storage.place("gs://lab/runs/sums")
        run_files.claim(place, mine)
        run_files.write_lineage(place, mine, mine.spec.data, {})
        place.write(f"{run_directory.CHECKPOINTS}/8/run/metadata", b"{}")
        assert resume_check.compare(mine, place) is None  # not committed
        place.write(f"{run_directory.CHECKPOINTS}/8/commit_success.txt", b"")
        assert resume_check.compare(mine, place) == ((8, 8), [])
        for name in (*files, "rows/train.jsonl"):
            kept = buckets.content("lab", name)
            buckets.put("lab", name, kept + b" ")
            with pytest.raises((ConfigError, DataError), match=rf"gs://lab/{name}: was {len(kept)} bytes \("):
                resume_check.compare(mine, place)
            buckets.put("lab", name, kept)
        with pytest.raises(
            ConfigError, match=r"--fresh: gs://lab/runs/sums holds .* gcloud storage mv gs://lab/runs/sums"
        ):
            run_files.set_aside(place, 8)
