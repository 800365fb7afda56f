"""The click command that all verbs use: examples in the help, and foreign words refused with the right one.

Left out: accepting a flag and doing nothing with it, the worst habit of the tools that people come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

TEXT_WIDTH = 100


class Examples(click.Command):
    """Adds a section `Examples:` that is printed as it is written, to be copied."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            formatter.write_paragraph()
            formatter.write("Examples:\n")
            for line in self.examples.strip().splitlines():
                formatter.write(f"  {line}\n" if line else "\n")


class Headed(click.Option):
    """An option that the help shows under a heading of its own: for verbs with dozens."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Verb(Examples):
    """A leaf command. `foreign` maps an option of XPK or gcluster to what to use here."""

    def __init__(self, *args: Any, foreign: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("no_args_is_help", False)
        super().__init__(*args, **kwargs)
        self.foreign = foreign or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(param.heading if isinstance(param, Headed) else "Options", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = self.foreign.get(error.option_name)
            if instead is None:
                raise
            raise click.UsageError(f"{error.option_name} does not exist here.\nhint: {instead}", ctx) from error
