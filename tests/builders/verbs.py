"""Every command of ptctl, groups included: what tests of helps and of documents go through."""

from collections.abc import Iterator

import click

from ptctl.cli import root
from ptctl.ui.command_line.lazy_group import LazyGroup


def verbs(
    group: click.Command = root, path: tuple[str, ...] = ("ptctl",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words that call it, command)."""
    yield path, group
    if isinstance(group, LazyGroup):
        for name in group.table:
            command = group.get_command(click.Context(group), name)
            assert command is not None
            yield from verbs(command, (*path, name))
