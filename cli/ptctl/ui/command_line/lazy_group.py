"""A click group that imports its commands when they run, from one plain table.

The table holds each command's one-line help, so that `ptctl --help` imports no command; a test compares the two.
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from ptctl.ui.command_line.command import Verb


@dataclass(frozen=True)
class Lazy:
    """Where a command is defined (`package.module:attribute`), its one-line help, and its heading."""

    target: str
    help: str
    heading: str = "Commands"


class LazyGroup(Verb, click.Group):
    """A group of commands by name. `moved` maps another tool's command, of one word or two, to what to use here."""

    def __init__(self, *, table: dict[str, Lazy], moved: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**{"no_args_is_help": True, **kwargs})
        self.table = table
        self.moved = moved or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or None if there is none of that name."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command; refuse an unknown name with a suggestion."""
        name = args[0]
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(self._unknown(name, args, ctx), ctx)
        return super().resolve_command(ctx, args)

    def _unknown(self, name: str, args: list[str], ctx: click.Context) -> str:
        for words in (" ".join(args[:2]), name):
            if words in self.moved:
                return f"'{ctx.command_path} {words}' does not exist here.\nhint: {self.moved[words]}"
        from difflib import get_close_matches

        commands = dict(reversed(list(self._commands(ctx))))  # of two verbs with one name the first group's
        similar = [name] if name in commands else get_close_matches(name, commands, 2, 0.7)
        names = " or ".join(f"`{commands[word]}`" for word in similar) if similar else ", ".join(self.table)
        return f"No such command '{name}'.\nhint: {'did you mean' if similar else 'accepted:'} {names}"

    def _commands(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield each name and its whole command line: of the groups in this group, then of this group."""
        for group in self.table:
            command = self.get_command(ctx, group)
            if isinstance(command, LazyGroup):
                yield from ((verb, f"{ctx.command_path} {group} {verb}") for verb in command.table)
        yield from ((name, f"{ctx.command_path} {name}") for name in self.table)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, from the table alone."""
        width = max(map(len, self.table))
        for heading in dict.fromkeys(entry.heading for entry in self.table.values()):
            rows = [(name.ljust(width), entry.help) for name, entry in self.table.items() if entry.heading == heading]
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=16)
