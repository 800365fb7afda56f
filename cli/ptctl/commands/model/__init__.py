"""Verbs on models: staged into a bucket, measured, served, or talked to. The trainer does the work, in a child process.

`ptctl chat`, `eval` and `serve` are verbs of the root, as they are typed often.
"""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup

COMMANDS = {"stage": Lazy("ptctl.commands.model.stage:stage", "Copy a model of the hub into a bucket.")}

_EXAMPLES = """
ptctl model stage hf://google/gemma-3-27b-it gs://my-bucket/models/gemma-3-27b-it
"""


@click.group("model", cls=LazyGroup, table=COMMANDS, examples=_EXAMPLES)
def model() -> None:
    """Copy a model of the hub into a bucket, before chips wait for it."""
