"""1 if the completion's program passes all tests of the row, else 0.

The program is the last fenced block of the completion (```python), or the whole completion if it has none. Tests come
from the row's `tests`, `test_list` or `test` column, in one of two forms:

- Python text, or a list of it (`assert add(1, 2) == 3`), run after the program in its namespace. If the row names an
  `entry_point`, a test that defines `check(candidate)` gets that function (HumanEval's form).
- a list of `{"input": …, "output": …}`: the program runs once for each, with the input on stdin, and its output is
  compared line by line, ignoring trailing white space.

Each run is a fresh interpreter, confined (`sandbox`), with an empty environment. A program that crashes, hangs, asks
for too much memory or exits before its tests is wrong: 0. Left out: other languages. In the first form program and
tests share an interpreter, so a program may cheat (compare equal to everything); the second form prevents that.
"""

import json
import math
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pttrainer.rewards import Row
from pttrainer.runtime.io import json_text
from pttrainer.sandbox import confinement
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError

LOOK_S = 0.05
"""Interval between two looks at what a program has written."""
COLUMNS = ("tests", "test_list", "test")
_FENCE = re.compile(r"```[ \t]*([A-Za-z0-9+_-]*)[^\n]*\n(.*?)```", re.DOTALL)
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

# Runs the program, then the tests, and only then prints the secret word from stdin.
_CHECKED = """
import json, os, sys
request = json.load(sys.stdin)
names = {"__name__": "__main__"}
exec(compile(request["program"], "program.py", "exec"), names)
for test in request["tests"]:
    exec(compile(test, "tests.py", "exec"), names)
if request["entry"] and callable(names.get("check")):
    names["check"](names[request["entry"]])
os.write(1, request["word"].encode())
"""


def code_reward(timeout_s: float) -> Callable[[str, str, Row], float]:
    """Return the reward function; `timeout_s` covers all tests of a completion.

    Raises RewardCodeError if this machine cannot confine programs.
    """
    if why := confinement.unsupported_reason():
        raise RewardCodeError(why)

    def reward(prompt: str, completion: str, row: Row) -> float:
        tests, program = tests_of(row), program_of(completion)
        deadline = time.monotonic() + timeout_s
        if isinstance(tests[0], Mapping):
            return float(all(_prints(program, case, deadline) for case in tests))
        return float(_passes(program, tests, str(row.get("entry_point") or ""), deadline))

    return reward


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of this reward."""
    reward = code_reward(source["timeout"])
    return Handler(lambda sample: reward(*sample))


def program_of(completion: str) -> str:
    """Return the program of a completion."""
    blocks = _FENCE.findall(completion)
    python = [text for language, text in blocks if language.lower() in ("", "python", "python3", "py")]
    return python[-1] if python else completion


def tests_of(row: Row) -> Sequence[Any]:
    """Return the row's tests: texts, or cases of input and output. Raises RewardCodeError."""
    tests = next((row[name] for name in COLUMNS if row.get(name)), None)
    if tests is None:
        raise RewardCodeError(f"the row has no tests; accepted: a column {', '.join(COLUMNS)}")
    if isinstance(tests, str) and tests.lstrip().startswith(("[", "{")):
        try:
            tests = json_text.loads(tests)
        except ValueError:
            pass  # Python that begins with a list
    tests = [tests] if isinstance(tests, str) else tests
    if isinstance(tests, list) and tests:
        if all(isinstance(test, str) for test in tests):
            return tests
        if all(isinstance(test, Mapping) and {"input", "output"} <= set(test) for test in tests):
            return tests
    raise RewardCodeError("the row's tests are neither Python text nor a list of {input, output}")


def _passes(program: str, tests: Sequence[str], entry: str, deadline: float) -> bool:
    word = secrets.token_hex(16)
    request = json.dumps({"program": program, "tests": list(tests), "entry": entry, "word": word})
    printed = _run(_CHECKED, request, deadline)
    return printed is not None and printed.endswith(word)


def _prints(program: str, case: Mapping[str, Any], deadline: float) -> bool:
    printed = _run(program, str(case["input"]), deadline)
    return printed is not None and _lines(printed) == _lines(str(case["output"]))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _run(program: str, stdin: str, deadline: float) -> str | None:
    """Return what a confined interpreter printed, or None if it failed, timed out or wrote too much."""
    left = deadline - time.monotonic()
    if left <= 0:
        return None
    home = tempfile.mkdtemp(prefix="posttrain-code-")
    try:
        source, printed = Path(home, "program.py"), Path(home, "printed")
        source.write_text(program, errors="replace")
        with printed.open("wb") as target:
            process = subprocess.Popen(
                [sys.executable, "-I", str(source)],
                cwd=home,
                env={**_ENVIRONMENT, "HOME": home, "TMPDIR": home},
                stdin=subprocess.PIPE,  # a pipe is read once: the program cannot read the word of `_CHECKED` again
                stdout=target,
                stderr=subprocess.DEVNULL,
                preexec_fn=confinement.confinement(home, math.ceil(left) + 1),
            )
            if not _ends(process, stdin.encode(errors="replace"), home, deadline):
                return None
        return printed.read_text(errors="replace") if process.returncode == 0 else None
    finally:
        _remove(home)


def _ends(process: subprocess.Popen[bytes], stdin: bytes, home: str, deadline: float) -> bool:
    """Return True if the process exits by itself. The kernel limits each file's size, not the total: this counts it."""
    pending: bytes | None = stdin
    while True:
        try:
            process.communicate(pending, timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))
            return True
        except subprocess.TimeoutExpired:
            pending = None
            if time.monotonic() >= deadline or confinement.holds_too_much(home):
                process.kill()
                process.communicate()
                return False


def _remove(directory: str) -> None:
    try:
        shutil.rmtree(directory)
    except (OSError, RecursionError):  # nested deeper than Python's recursion limit
        subprocess.run(["rm", "-rf", "--", directory], stderr=subprocess.DEVNULL, check=False)
