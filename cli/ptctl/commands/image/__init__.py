"""`ptctl image`: verbs on the images that jobs run, one file each."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup

COMMANDS = {"build": Lazy("ptctl.commands.image.build:build", "Build an image of a base and a directory, and push it.")}

_PUSHED = "`ptctl image build DIRECTORY --base IMAGE --tag IMAGE` builds and pushes"
MOVED = {"push": _PUSHED, "create": _PUSHED}

_EXAMPLES = """
ptctl image build . --base my-registry/trainer:v1 --tag us-docker.pkg.dev/my-project/images/trainer:mine
"""


@click.group("image", cls=LazyGroup, table=COMMANDS, moved=MOVED, examples=_EXAMPLES)
def image() -> None:
    """Build the images that jobs run."""
