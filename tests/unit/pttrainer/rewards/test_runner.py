"""The runner: rewards that hang, die, lie or are not there never stop the run, and are never a 0."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.trainer.forked import is_running

from ptapi.spec import PythonReward, Reward
from pttrainer.errors import ConfigError, UserCodeError
from pttrainer.rewards import Sample, scorers
from pttrainer.rewards.runner import Runner
from pttrainer.sandbox import pool

SAMPLES = [Sample("p", text, {"answer": "1"}) for text in ("good", "bad", "good")]
Load = Callable[..., Runner]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """A runner with one Python reward of this source."""
    runners: list[Runner] = []

    def make(source: str | None, timeout_s: float = 10.0, function: str = "reward", batched: bool = False) -> Runner:
        path = tmp_path / "own.py"
        if source is not None:
            path.write_text(source)
        python = PythonReward(uri=f"file://{path}", function=function)
        runners.append(Runner([Reward(name="own", python=python, timeout_seconds=timeout_s, batched=batched)]))
        return runners[-1]

    yield make
    for runner in runners:
        runner.close()


def test_a_python_reward_gets_prompt_completion_and_row(load: Load) -> None:
    runner = load(
        "def reward(prompt, completion, row):\n    return len(prompt) + len(completion) / 10 + int(row['answer'])\n"
    )
    np.testing.assert_allclose(runner.score(SAMPLES).total, [2.4, 2.3, 2.4])


def test_what_the_reward_prints_is_not_taken_for_its_answer(load: Load) -> None:
    runner = load("def reward(p, c, row):\n    print('{\"reward\": 7}')\n    return 0.5\n")
    np.testing.assert_array_equal(runner.score(SAMPLES).total, [0.5] * 3)


def test_waiting_for_a_reward_is_a_sign_of_life(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs has no limit of its own: the watchdog would end a run whose reward is slow. This one takes as long as
    it takes to be called alive five times."""
    monkeypatch.setattr(pool, "WAKE_S", 0.02)
    runner, there = load(WAITING), tmp_path / "there"
    signs: list[int] = []

    def alive() -> None:
        signs.append(1)
        if len(signs) == 5:
            there.touch()

    assert runner.score([Sample("", str(there), {})], alive).total.tolist() == [1.0]


WAITING = """
import os, time
def reward(prompt, completion, row):
    while not os.path.exists(completion):
        time.sleep(0.01)
    return 1.0
"""


def test_a_reward_that_hangs_in_c_code_is_killed(load: Load) -> None:
    runner = load(
        "import re\ndef reward(p, c, row):\n    re.match('(a+)+$', 'a' * 60 + 'b')\n    return 1.0\n", timeout_s=0.5
    )
    assert np.isnan(runner.score(SAMPLES[:1]).total).all()


@pytest.mark.parametrize("broken", ["None", "'1'", "float('nan')", "float('inf')", "True", "[1.0]", "1 / 0"])
def test_what_is_no_finite_number_is_no_reward(load: Load, broken: str, capfd: pytest.CaptureFixture[str]) -> None:
    runner = load(f"def reward(p, c, row):\n    return 1.0 if c == 'good' else {broken}\n")
    np.testing.assert_array_equal(runner.score(SAMPLES).total, [1.0, np.nan, 1.0])
    assert "reward own: 1 of 3 samples have no reward; the first:" in capfd.readouterr().err


def test_integers_and_numpy_floats_are_numbers(load: Load) -> None:
    runner = load("import numpy\ndef reward(p, c, row):\n    return 1 if c == 'good' else numpy.float64(0.25)\n")
    np.testing.assert_array_equal(runner.score(SAMPLES).total, [1.0, 0.25, 1.0])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "no such file"),
        ("def rewrad(p, c, row):\n    return 1.0\n", "no function 'reward'; accepted: def reward(prompt: str"),
        ("def reward(p, c):\n    return 1.0\n", "cannot be called with (prompt, completion, row)"),
        ("reward = 3\n", "reward is not a function but 3"),
        ("def reward(p, c, row)\n    return 1.0\n", "line 1: is not valid Python"),
        ("import not_there\n", "cannot be imported: ModuleNotFoundError: No module named 'not_there' (line 1)"),
        ("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
        ("import os\nos._exit(1)\n", "its process died (exit code 1) while the file was loaded"),
    ],
)
def test_a_reward_file_that_cannot_work_is_refused_before_the_first_step(
    load: Load, source: str | None, says: str
) -> None:
    with pytest.raises(UserCodeError) as error:
        load(source)
    assert says in str(error.value)
    assert str(error.value).startswith("spec.rewards[own]: ")


def test_a_reward_that_fails_on_every_sample_of_the_first_step_ends_the_run(load: Load) -> None:
    runner = load("def reward(p, c, row):\n    return row['gold']\n")
    with pytest.raises(
        UserCodeError, match=r"3 of 3 samples have no reward; the first: raised KeyError: 'gold' \(line 2\)"
    ):
        runner.score(SAMPLES)


def test_a_reward_that_worked_before_may_fail_on_a_whole_step(load: Load) -> None:
    runner = load("def reward(p, c, row):\n    return float(c)\n")
    assert runner.score([Sample("p", "1", {})]).total[0] == 1.0
    assert np.isnan(runner.score(SAMPLES).total).all()


def test_an_async_reward_judges_samples_side_by_side_and_a_slow_one_is_no_reward(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "default_children", lambda: 1)
    runner = load(TOGETHER, timeout_s=3.0)
    total = runner.score(SAMPLES + SAMPLES[:1] * 40).total
    np.testing.assert_array_equal(total, [1.0, np.nan, *[1.0] * 41])


TOGETHER = """
import asyncio
here, all_here = 0, asyncio.Event()
async def reward(prompt, completion, row):
    global here
    if completion == "bad":
        await asyncio.sleep(600)
    here += 1
    if here == 42:
        all_here.set()
    await all_here.wait()
    return len(completion) / 4
"""


def test_an_async_reward_that_blocks_its_loop_is_killed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import time\nasync def reward(p, c, row):\n    time.sleep(60)\n    return 1.0\n"
    monkeypatch.setattr(scorers, "GRACE_S", 0.2)
    runner = load(source, timeout_s=0.2)
    assert np.isnan(runner.score(SAMPLES[:1]).total).all()


BATCHED = "def reward(prompts, completions, rows):\n    return [{value} for c, row in zip(completions, rows)]\n"


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_batched_reward_gets_all_samples_in_one_call(load: Load, kind: str) -> None:
    runner = load(kind + BATCHED.format(value="len(completions) + int(row['answer']) / 4"), batched=True)
    np.testing.assert_array_equal(runner.score(SAMPLES).total, [3.25] * 3)


def test_one_bad_value_of_a_batch_is_no_reward_of_that_sample_alone(load: Load) -> None:
    runner = load(BATCHED.format(value="float('nan') if c == 'bad' else 0.5"), batched=True)
    np.testing.assert_array_equal(runner.score(SAMPLES).total, [0.5, np.nan, 0.5])


@pytest.mark.parametrize(
    ("returned", "says"),
    [("[1.0]", "returned 1 rewards for 3 samples"), ("0.5", r"returned 0.5 \(float\); accepted: a list of 3 floats")],
)
def test_a_batch_of_the_wrong_count_or_type_says_nothing_about_any_sample(load: Load, returned: str, says: str) -> None:
    runner = load(f"def reward(p, c, rows):\n    return {returned}\n", batched=True)
    with pytest.raises(UserCodeError, match=says):
        runner.score(SAMPLES)


def test_a_batched_reward_of_single_arguments_is_refused_before_the_first_step(load: Load) -> None:
    with pytest.raises(UserCodeError, match=r"cannot be called with \(prompts, completions, rows\)"):
        load("def reward(samples):\n    return []\n", batched=True)


def test_a_file_that_breaks_while_the_run_goes_on_ends_nothing(load: Load, tmp_path: Path) -> None:
    runner = load("import os\ndef reward(p, c, row):\n    return 1.0 if c == 'good' else os._exit(3)\n")
    (tmp_path / "own.py").write_text("raise ValueError\n")
    for _ in range(2):
        assert np.isnan(runner.score(SAMPLES[1:2]).total).all()


def test_a_reward_from_a_bucket_is_read_by_the_storage_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(uri: str, field: str) -> bytes:
        assert (uri, field) == ("gs://lab/dir/own.py", "spec.rewards[0].python.uri")
        return b"def reward(p, c, row):\n    return 0.25\n"

    monkeypatch.setattr("pttrainer.runtime.io.storage.read_file", read)
    runner = Runner([Reward(name="own", python=PythonReward(uri="gs://lab/dir/own.py"))])
    try:
        np.testing.assert_array_equal(runner.score(SAMPLES).total, [0.25] * 3)
    finally:
        runner.close()


def test_every_reward_is_timed(load: Load) -> None:
    runner = load("import time\ndef reward(p, c, row):\n    time.sleep(0.2)\n    return 1.0\n")
    assert 0.2 <= runner.score(SAMPLES[:1]).facts["seconds/reward/own"] < 60.0


def test_length_falls_from_the_buffer_to_minus_one_and_no_further() -> None:
    runner = Runner([Reward(builtin="length", buffer_tokens=4)], max_new_tokens=10)
    lengths = (0, 6, 7, 8, 10, 40)
    total = runner.score([Sample("", "", {}, tokens) for tokens in lengths]).total
    np.testing.assert_array_equal(total, [0.0, 0.0, -0.25, -0.5, -1.0, -1.0])


def test_length_without_numbers_takes_a_fifth_of_the_longest_completion() -> None:
    runner = Runner([Reward(builtin="length")], max_new_tokens=100)
    np.testing.assert_array_equal(runner.score([Sample("", "", {}, n) for n in (80, 90)]).total, [0.0, -0.5])


def test_a_length_whose_buffer_is_longer_than_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spec.rewards\[0\].bufferTokens: 20: accepted: at most"):
        Runner([Reward(builtin="length", buffer_tokens=20)], max_new_tokens=10)


def test_several_rewards_are_weighted_and_one_that_is_missing_leaves_the_sample_out(load: Load, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def reward(p, c, row):\n    return None if c == 'bad' else 1.0\n")
    rewards = [
        Reward(builtin="gsm8k", weight=2.0),
        Reward(name="a", python=PythonReward(uri=f"file://{tmp_path}/a.py"), weight=0.5),
    ]
    runner = Runner(rewards)
    try:
        scores = runner.score([Sample("p", c, {"answer": "1"}) for c in ("1", "bad", "2")])
    finally:
        runner.close()
    np.testing.assert_array_equal(scores.total, [2.5, np.nan, 0.5])
    np.testing.assert_array_equal(scores.rewards["gsm8k"], [1.0, 0.0, 0.0])


def test_a_pattern_runs_where_it_can_be_killed() -> None:
    runner = Runner([Reward(builtin="format", pattern="(a+)+$", timeout_seconds=0.5)])
    try:
        scores = runner.score([Sample("", "a" * 60 + "b", {}), Sample("", "aa", {})])
    finally:
        runner.close()
    np.testing.assert_array_equal(scores.total, [np.nan, 1.0])


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a regular expression"):
        Runner([Reward(builtin="format", pattern="(")])


def test_two_rewards_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two rewards have this name"):
        Runner([Reward(builtin="gsm8k"), Reward(builtin="gsm8k")])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_children_die_with_a_killed_trainer_even_while_they_hang(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, time\ndef reward(p, c, row):\n"
        f"    open('{tmp_path}/pid', 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    )
    code = (
        "from ptapi.spec import PythonReward, Reward\nfrom pttrainer.rewards import Sample, scorers\n"
        "from pttrainer.rewards.runner import Runner\n"
        f"Runner([Reward(python=PythonReward(uri='file://{tmp_path}/own.py'), timeout_seconds=600)])"
        ".score([Sample('p', 'c', {})])\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code])
    pid_file = tmp_path / "pid"
    eventually(lambda: pid_file.exists() and pid_file.read_text() != "", 60)
    trainer.kill()
    trainer.wait()
    child = int(pid_file.read_text())
    eventually(lambda: not is_running(child), 60)
