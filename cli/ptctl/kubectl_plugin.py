"""`kubectl pt`: kubectl runs `kubectl-pt` of the PATH with the words after `pt`, and `kubectl_complete-pt` to complete.

`kubectl pt list` is `ptctl workload list`. The first word of another command of ptctl (`kubectl pt cluster doctor`) is
that command: no verb on jobs has such a name.
"""

import sys

from ptctl.__main__ import main
from ptctl.ui import interrupts

_NO_FILES = ":4"
"""Cobra's directive to a shell: complete nothing but these."""


def run() -> None:
    """Run the words after `kubectl pt`."""
    main(words_of_ptctl(sys.argv[1:]))


def complete() -> None:
    """Print what the last word can become, one a line, as kubectl reads it."""
    interrupts.install()
    from click.shell_completion import ShellComplete

    from ptctl.cli import root

    *before, incomplete = words_of_ptctl(sys.argv[1:] or [""])
    shell = ShellComplete(root, {}, "ptctl", "_PTCTL_COMPLETE")
    for item in shell.get_completions(before, incomplete):
        print(item.value if item.help is None else f"{item.value}\t{item.help}")
    print(_NO_FILES)


def words_of_ptctl(words: list[str]) -> list[str]:
    """Return the words of ptctl's own command line."""
    from ptctl.cli import COMMANDS

    return words if words and words[0] in COMMANDS else ["workload", *words]
