"""How a verb ends when nobody reads what it prints."""

import subprocess
import sys

import pytest

SCRIPT = """
from pttrainer.commands.exit import exit_code_of
def action():
    {action}
raise SystemExit(exit_code_of(action))
"""


@pytest.mark.parametrize(
    ("action", "code", "error"),
    [
        ("print('a line')", 141, ""),
        ("print('a long line' * 10_000)", 141, ""),
        ("raise BrokenPipeError('of a connection')", 1, "BrokenPipeError: of a connection"),
    ],
)
def test_a_closed_pipe_ends_a_verb_without_a_word_and_a_closed_connection_is_an_error(
    action: str, code: int, error: str
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(action=action)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    if code == 141:
        child.stdout.close()
    errors = child.stderr.read()
    assert (child.wait(60), error in errors, bool(errors)) == (code, True, bool(error)), errors
