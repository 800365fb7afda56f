"""`code` and `math`: right, wrong, and what a policy may find instead of an answer."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptapi.spec import Reward
from pttrainer.rewards import Sample
from pttrainer.rewards.builtin import code
from pttrainer.rewards.runner import Runner
from pttrainer.sandbox import confinement
from pttrainer.sandbox.user_code import RewardCodeError

ADD = {"tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]}
SUM = {"tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5\n", "output": "9"}]}
REFUSED = "def add(a, b): return a + b"

pytestmark = pytest.mark.skipif(bool(confinement.unsupported_reason()), reason=confinement.unsupported_reason())


def fenced(program: str) -> str:
    return f"So:\n```python\n{program}\n```\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner([Reward(builtin="code", timeout_seconds=60.0)])
    yield made
    made.close()


def judged(runner: Runner, *programs: str, row: dict[str, Any] = ADD) -> list[float]:
    return runner.score([Sample("", fenced(program), row) for program in programs]).total.tolist()


def test_a_program_is_worth_1_when_all_its_tests_pass(runner: Runner) -> None:
    right = "def add(a, b):\n    return a + b"
    assert judged(runner, right, "def add(a, b):\n    return 3", "def ad(a, b):\n    return a + b") == [1.0, 0.0, 0.0]


def test_a_program_that_ends_or_hangs_before_its_tests_is_wrong(runner: Runner) -> None:
    programs = ("import os\nos._exit(0)", "raise SystemExit(0)", "def add(a, b:")
    assert judged(runner, *programs) == [0.0] * 3
    assert code.code_reward(0.5)("", "while True: pass", ADD) == 0.0


@pytest.mark.parametrize(
    "attempt",
    [
        "import socket; socket.socket()",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['/usr/bin/true'])",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.setsid()",
        "open('/tmp/posttrain-outside', 'w')",
        f"open({__file__!r})",
        "open('big', 'wb').write(bytes(64 << 20))",
    ],
)
def test_a_program_reaches_nothing_outside(runner: Runner, attempt: str) -> None:
    """The function is only defined where the attempt was refused."""
    program = f"try:\n    {attempt}\n    quit(1)\nexcept OSError:\n    {REFUSED}\n"
    assert judged(runner, program) == [1.0]
    assert not Path("/tmp/posttrain-outside").exists()


def test_a_program_has_a_limit_of_memory_and_no_variables_of_ours(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hungry = f"try:\n    bytearray(3 << 30)\nexcept MemoryError:\n    {REFUSED}"
    clean = (
        f"import os, threading\nif len(os.environ) < 9 and threading.Thread(target=int).start() is None:\n    {REFUSED}"
    )
    assert judged(runner, hungry, clean) == [1.0, 1.0]


@pytest.mark.parametrize(
    "endless",
    [
        "open(str(i), 'w').write('x' * 4_000_000)",
        "os.mkdir('d'); os.chdir('d')",
        "os.mkdir('d' * 250); os.chdir('d' * 250)",
    ],
)
def test_a_program_that_fills_the_disk_is_wrong_and_leaves_nothing(
    endless: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = f"import itertools, os\nfor i in itertools.count():\n    {endless}\n"
    assert code.code_reward(60.0)("", fenced(program), ADD) == 0.0
    assert list(tmp_path.iterdir()) == []


def test_what_a_program_prints_is_compared_line_by_line(runner: Runner) -> None:
    right = "print(sum(map(int, input().split())), end='  \\n\\n')"
    assert judged(runner, right, "print(3)", row=SUM) == [1.0, 0.0]


def test_tests_are_read_in_the_forms_of_common_data_sets() -> None:
    assert code.tests_of({"tests": "assert f()"}) == ["assert f()"]
    assert code.tests_of({"test_list": ["assert f()", "assert g()"]}) == ["assert f()", "assert g()"]
    assert code.tests_of({"tests": '[{"input": "1", "output": "2"}]'}) == [{"input": "1", "output": "2"}]
    with pytest.raises(RewardCodeError, match="the row has no tests; accepted: a column tests"):
        code.tests_of({"answer": "1"})
    with pytest.raises(RewardCodeError, match="neither Python text nor"):
        code.tests_of({"tests": [1]})


def test_a_check_of_a_candidate_gets_the_entry_point(runner: Runner) -> None:
    row = {"test": "def check(candidate):\n    assert candidate(2, 2) == 4", "entry_point": "add"}
    assert judged(runner, "def add(a, b):\n    return a + b", "def add(a, b):\n    return 5", row=row) == [1.0, 0.0]


def test_the_program_is_the_last_python_block_or_the_whole_text() -> None:
    assert code.program_of("```python\na\n```\nno:\n```py\nb\n```\n```text\nc\n```") == "b\n"
    assert code.program_of("a = 1") == "a = 1"


def test_expressions_are_compared_as_mathematics() -> None:
    pairs = [
        (r"\frac{1}{2}", r"thus $\boxed{0.5}$", 1.0),
        ("x^2 + 2x + 1", r"\boxed{(x+1)^2}", 1.0),
        (r"2\sqrt{2}", r"\boxed{\sqrt{8}}", 1.0),
        (r"\{1, 2\}", r"\boxed{\{2, 1\}}", 1.0),
        ("the sum is #### 1,080", "<answer>1080</answer>", 1.0),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", 0.0),
        ("5", r"It is \boxed{4}. No: $\boxed{\boxed{5}}$.", 1.0),
        ("5", r"It is $\boxed{5}$. No: $\boxed{4}$.", 0.0),
        ("4, 5", r"\boxed{6}? No, $\boxed{4}$ and $\boxed{5}$", 1.0),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}", 1.0),
        ("(1,2]", r"\boxed{(1,2)}", 0.0),
        ("7", "I do not know", 0.0),
    ]
    runner = Runner([Reward(builtin="math", timeout_seconds=30.0)])
    try:
        samples = [Sample("", completion, {"answer": gold}) for gold, completion, _ in pairs]
        scores = runner.score([*samples, Sample("", "7", {"answer": "no idea"})])
    finally:
        runner.close()
    np.testing.assert_array_equal(scores.total, [*(right for *_, right in pairs), np.nan])
