"""1 when the completion's program passes all tests of the row, else 0.

The program is the last fenced block of the completion (```python), or the whole completion where it has none. Tests
stand in the row under `tests`, `test_list` or `test`, in one of two forms:

- Python text, or a list of it (`assert add(1, 2) == 3`), run after the program in its namespace. Where the row names an
  `entry_point`, a test that defines `check(candidate)` gets that function (HumanEval's form).
- a list of `{"input": …, "output": …}`: the program is run once for each, input on stdin, and what it prints is
  compared line by line, trailing white space aside.

Each run is a fresh interpreter, confined (`sandbox`), with an empty environment. A program that crashes, hangs, asks
for too much memory or ends before the tests do is wrong: 0. Left out: other languages. In the first form program and
tests share an interpreter, so a program may cheat (compare equal to everything); the second form cannot be fooled so.
"""

from __future__ import annotations

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
from pttrainer.sandbox import confinement
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError

LOOK_S = 0.05
"""Between two looks at what a program has written."""
COLUMNS = ("tests", "test_list", "test")
_FENCE = re.compile(r"```[ \t]*([A-Za-z0-9+_-]*)[^\n]*\n(.*?)```", re.DOTALL)
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

# Runs the program, then the tests, and only then says the word that it was told on stdin.
_CHECKED = """
import json, os, sys
told = json.load(sys.stdin)
names = {"__name__": "__main__"}
exec(compile(told["program"], "program.py", "exec"), names)
for test in told["tests"]:
    exec(compile(test, "tests.py", "exec"), names)
if told["entry"] and callable(names.get("check")):
    names["check"](names[told["entry"]])
os.write(1, told["word"].encode())
"""


def judging(timeout_s: float) -> Callable[[str, str, Row], float]:
    """The reward; timeout_s: for all tests of a completion together. Raises RewardCodeError where it cannot confine."""
    if why := confinement.missing():
        raise RewardCodeError(why)

    def judge(prompt: str, completion: str, row: Row) -> float:
        tests, program = tests_of(row), program_of(completion)
        deadline = time.monotonic() + timeout_s
        if isinstance(tests[0], Mapping):
            return float(all(_prints(program, case, deadline) for case in tests))
        return float(_passes(program, tests, str(row.get("entry_point") or ""), deadline))

    return judge


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of this reward."""
    judge = judging(source["timeout"])
    return Handler(lambda sample: judge(*sample))


def program_of(completion: str) -> str:
    """The program that a completion ends up with."""
    blocks = _FENCE.findall(completion)
    python = [text for language, text in blocks if language.lower() in ("", "python", "python3", "py")]
    return python[-1] if python else completion


def tests_of(row: Row) -> Sequence[Any]:
    """The row's tests: texts, or cases of input and output. Raises RewardCodeError."""
    found = next((row[name] for name in COLUMNS if row.get(name)), None)
    if found is None:
        raise RewardCodeError(f"the row has no tests; accepted: a column {', '.join(COLUMNS)}")
    if isinstance(found, str) and found.lstrip().startswith(("[", "{")):
        try:
            found = json.loads(found)
        except ValueError:
            pass  # Python that begins with a list
    tests = [found] if isinstance(found, str) else found
    if isinstance(tests, list) and tests:
        if all(isinstance(test, str) for test in tests):
            return tests
        if all(isinstance(test, Mapping) and {"input", "output"} <= set(test) for test in tests):
            return tests
    raise RewardCodeError("the row's tests are neither Python text nor a list of {input, output}")


def _passes(program: str, tests: Sequence[str], entry: str, deadline: float) -> bool:
    word = secrets.token_hex(16)
    told = json.dumps({"program": program, "tests": list(tests), "entry": entry, "word": word})
    printed = _run(_CHECKED, told, deadline)
    return printed is not None and printed.endswith(word)


def _prints(program: str, case: Mapping[str, Any], deadline: float) -> bool:
    printed = _run(program, str(case["input"]), deadline)
    return printed is not None and _lines(printed) == _lines(str(case["output"]))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _run(program: str, stdin: str, deadline: float) -> str | None:
    """What a confined interpreter printed; None where it failed, took too long, or wrote too much."""
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
                stdin=subprocess.PIPE,  # a pipe is read once: the word of `_CHECKED` cannot be read again
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
    """Whether it ends by itself. Nobody but us counts its files: the kernel limits one of them, not all."""
    told: bytes | None = stdin
    while True:
        try:
            process.communicate(told, timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))
            return True
        except subprocess.TimeoutExpired:
            told = None
            if time.monotonic() >= deadline or confinement.holds_too_much(home):
                process.kill()
                process.communicate()
                return False


def _remove(directory: str) -> None:
    try:
        shutil.rmtree(directory)
    except (OSError, RecursionError):  # directories within directories, deeper than Python goes
        subprocess.run(["rm", "-rf", "--", directory], stderr=subprocess.DEVNULL, check=False)
