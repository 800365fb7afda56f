"""`ptctl completion`: the script that lets a shell complete commands, flags and job names."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb

SHELLS = ("bash", "zsh", "fish")

_EXAMPLES = """
source <(ptctl completion bash)                      # this shell only; add it to ~/.bashrc for all
ptctl completion zsh > "${fpath[1]}/_ptctl"
ptctl completion fish > ~/.config/fish/completions/ptctl.fish
"""


@click.command("completion", cls=Verb, examples=_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
@pass_app
def completion(app: App, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell  # click has a class for each of SHELLS
    script = kind(click.get_current_context().find_root().command, {}, "ptctl", "_PTCTL_COMPLETE")
    # Not `source()`: for bash it runs `bash --version`, which fails where bash is not installed.
    app.console.data((script.source_template % script.source_vars()).rstrip())
