"""Tables of wrong inputs: a line that says what is given, then, indented, exactly what it is answered.

`make golden` rewrites the answers, to be read in the diff. A wrong input is added by its line alone.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parents[2] / "golden" / "wrong_inputs"
ACCEPTED = "(accepted)"


def cases(name: str) -> dict[str, list[str]]:
    """The inputs of a table, each a line of JSON, and the lines that answer it."""
    answers: dict[str, list[str]] = {}
    for line in (TABLES / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            answers[list(answers)[-1]].append(line.removeprefix("  "))
        elif line and not line.startswith("#"):
            assert line not in answers, f"twice in {name}.txt: {line}"
            answers[line] = []
    return answers


def check(name: str, answer: Callable[[Any], str]) -> None:
    """Ask for every answer of a table, and compare."""
    table = cases(name)
    given = {line: answer(json.loads(line)).splitlines() for line in table}
    if os.environ.get("UPDATE_GOLDEN"):
        _write(name, given)
        table = cases(name)
    different = [line for line in table if given[line] != table[line] or given[line] == [ACCEPTED]]
    assert not different, "\n".join(f"{line}\n  {given[line]}\n  {table[line]}" for line in different[:5])


def _write(name: str, given: dict[str, list[str]]) -> None:
    file = TABLES / f"{name}.txt"
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("  ")]
    written = [part for line in lines for part in (line, *(f"  {one}" for one in given.get(line, [])))]
    file.write_text("\n".join(written) + "\n", encoding="utf-8")
