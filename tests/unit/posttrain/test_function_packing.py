"""Functions packed into a job: what travels, how the trainer gets them, and what is refused with its name."""

import importlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

import posttrain
from posttrain import function_packing
from ptapi import pickled
from pttrainer.sandbox import user_code

JOB: dict[str, Any] = {
    "name": "a",
    "model": {"uri": "random://tiny"},
    "algorithm": {"grpo": {"groupSize": 2}},
    "data": {"train": {"uri": "file:///data/train.jsonl"}},
    "accelerator": {"type": "cpu-1"},
    "output": {"uri": "file:///runs"},
}
LOCK = threading.Lock()


def locked(text: str) -> float:
    with LOCK:
        return float(len(text))


def weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"{city}: {days} days of rain"


class Guessing:
    def reset(self, row: dict[str, Any]) -> str:
        return "guess"

    def step(self, text: str) -> tuple[str, float, bool]:
        return "no", -1.0, True


def loaded(code: str, name: str, folder: Path, signature: user_code.Signature | None = None) -> Any:
    path = folder / "code.py"
    path.write_text(code)
    return user_code.load(str(path), name, signature)


def test_a_reward_travels_with_its_closure_in_the_job_itself(tmp_path: Path) -> None:
    scale = 0.5

    def half_length(prompt: str, completion: str, row: dict[str, Any]) -> float:
        return scale * len(completion)

    rewards: list[Any] = [half_length, {"python": half_length, "weight": 2.0, "name": "again"}]
    job = posttrain.PostTrainJob(**JOB, rewards=rewards)
    assert [reward.label for reward in job.rewards] == ["half_length", "again"]
    document = job.manifest()["spec"]["rewards"]
    assert document[1]["weight"] == 2.0
    assert document[0]["python"] == document[1]["python"]
    assert loaded(document[0]["python"]["code"], "half_length", tmp_path, user_code.ONE)("", "four", {}) == 2.0
    path = tmp_path / "job.yaml"
    path.write_text(job.to_yaml())
    assert posttrain.PostTrainJob.from_file(path) == job


def test_tools_and_an_environment_are_packed_where_the_spec_takes_code(tmp_path: Path) -> None:
    job = posttrain.PostTrainJob(**JOB, rewards=[{"builtin": "gsm8k"}], environment={"tools": [weather]})
    assert job.environment is not None
    tool = job.environment.tools[0].python
    assert tool is not None
    assert tool.function == "weather"
    assert loaded(tool.code or "", "weather", tmp_path)("Bern", 2) == "Bern: 2 days of rain"
    played = posttrain.PostTrainJob(**JOB, environment=Guessing).environment
    assert played is not None
    assert played.python is not None
    assert played.python.class_name == "Guessing"
    assert loaded(played.python.code or "", "Guessing", tmp_path)().step("1")[1] == -1.0


def test_modules_of_ones_own_travel_with_their_local_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scores.py").write_text("import json\nWEIGHT = 3\ndef score(text): return WEIGHT * len(text)\n")
    (tmp_path / "my_rewards.py").write_text(
        "import my_scores\ndef reward(prompt, completion, row): return float(my_scores.score(completion))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reward = importlib.import_module("my_rewards").reward
    importlib.import_module("my_scores").WEIGHT = 5
    _, code = function_packing.python_file(reward)
    script = f"{code}\nprint(reward('', 'ab', {{}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout == "10.0\n", "a process that has neither file"


def test_what_cannot_travel_is_refused_with_the_path_to_its_name() -> None:
    def reward(prompt: str, completion: str, row: dict[str, Any]) -> float:
        return locked(completion)

    with pytest.raises(posttrain.Error, match=r"reward -> locked -> LOCK \(lock\) cannot travel to the job"):
        posttrain.PostTrainJob(**JOB, rewards=[reward])


def test_code_of_another_python_is_refused_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as older:
        older.setattr(sys, "version", "3.10.4 (main, Mar 23 2022, 23:05:40) [GCC 11.2.0]")
        _, code = function_packing.python_file(weather)
    with pytest.raises(user_code.RewardCodeError, match=r"packed with python 3.10, and python 3\.\d+ runs here"):
        loaded(code, "weather", tmp_path)


def test_exactly_one_of_uri_and_code_is_accepted() -> None:
    both = {"uri": "file:///r.py", "code": "def reward(*_): return 0.0"}
    for python in (both, {"function": "reward"}):
        with pytest.raises(posttrain.SpecError, match=r"spec\.rewards\[0\]\.python: .*exactly one of uri, code"):
            posttrain.PostTrainJob(**JOB, rewards=[{"python": python}])


def test_arrays_are_written_from_their_own_memory_and_mapped_back_writable(tmp_path: Path) -> None:
    array = numpy.arange(100_000.0)
    parts = pickled.dumps({"a": array, "rest": [array[:10].copy(), "text"]})
    view = next(part for part in parts if memoryview(part).nbytes == array.nbytes)
    assert numpy.shares_memory(numpy.frombuffer(view, array.dtype), array), "not copied"
    assert len(bytes(parts[2])) < 1_000, "the pickle has no array"
    path = tmp_path / "value"
    path.write_bytes(b"".join(parts))
    value = pickled.load(path)
    value["a"][0] = 7.0
    numpy.testing.assert_array_equal(value["a"][1:], array[1:])
    assert pickled.load(path)["a"][0] == 0.0, "the file is as it was"
    numpy.testing.assert_array_equal(value["rest"][0], array[:10])


@pytest.mark.parametrize("content", [b"", b"no value\n", json.dumps({"lengths": [3]}).encode() + b"\n"])
def test_other_bytes_are_no_packed_value(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_bytes(content)
    with pytest.raises(pickled.NotLoadable):
        pickled.load(path)
    whole = b"".join(pickled.dumps(numpy.arange(1000)))
    path.write_bytes(whole[:-100])
    with pytest.raises(pickled.NotLoadable, match="accepted: all"):
        pickled.load(path)
