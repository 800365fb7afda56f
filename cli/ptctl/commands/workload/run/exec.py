"""`ptctl workload exec`: a command in a job's container."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload exec llama-gsm8k -- df -h
ptctl workload exec llama-gsm8k --rank 3 -it -- bash          # a shell in the container of rank 3
ptctl workload exec llama-gsm8k -- tar -cz /tmp/profile > profile.tar.gz
ptctl workload exec llama-gsm8k -i -- python - < look.py
"""


@click.command("exec", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--rank", type=click.IntRange(0), default=0, metavar="N", help="In the container of this process (0).")
@click.option("-i", "--stdin", is_flag=True, help="Pass this terminal's input, or a pipe's, to the command.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal; every key goes to it, Ctrl-C too.")
@cluster_options
@pass_app
def execute(app: App, target: Target, name: str, command: tuple[str, ...], rank: int, stdin: bool, tty: bool) -> int:
    """Run a command in a job's container.

    Its output is passed on as it is, and its exit code is that of ptctl. Needs the right to create pods/exec.
    """
    from ptctl.runs import container_exec

    return container_exec.execute(app, target, name, rank, command, stdin=stdin, tty=tty)
