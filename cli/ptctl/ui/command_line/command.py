"""The click command class of all verbs: examples in the help, and other tools' flags refused with a replacement.

A flag is never accepted and ignored.
"""

from collections.abc import Mapping
from typing import Any

import click

_TEXT_WIDTH = 100


class SectionOption(click.Option):
    """An option listed under its own heading in the help, for verbs with dozens of options."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Verb(click.Command):
    """A command with kubectl's -h, examples that are printed verbatim, and a help no wider than a page.

    `replacements` maps a flag of XPK or gcluster to what to use here.
    """

    def __init__(self, *, examples: str = "", replacements: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": _TEXT_WIDTH}
        super().__init__(context_settings=settings, **kwargs)
        self.examples = examples
        self.replacements = replacements or {}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, ready to copy."""
        if self.examples:
            formatter.write_paragraph()
            formatter.write("Examples:\n")
            for line in self.examples.strip().splitlines():
                formatter.write(f"  {line}\n" if line else "\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(param.heading if isinstance(param, SectionOption) else "Options", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; refuse another tool's flags, all at once, with their replacements."""
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
            self._refuse_repeated(ctx, given)
            return rest
        except click.NoSuchOption as error:
            words = dict.fromkeys(word.partition("=")[0] for word in given)
            flags = [word for word in words if word in self.replacements]
            if error.option_name not in flags:
                raise
            if len(flags) == 1:
                message = f"{flags[0]} does not exist here.\nhint: {self.replacements[flags[0]]}"
            else:
                hints = "".join(f"\n  {flag}: {self.replacements[flag]}" for flag in flags)
                message = f"{', '.join(flags)} do not exist here.\nhint: use{hints}"
            raise click.UsageError(message, ctx) from error
        except click.MissingParameter as error:
            files = [word for word in given if word.endswith((".yaml", ".yml", ".json"))]
            if not files or error.param is None or "--filename" not in error.param.opts:
                raise
            raise click.UsageError(f"{files[0]}: a job file is given with -f.\nhint: -f {files[0]}", ctx) from error

    def _refuse_repeated(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse an option with one value that is given more than once: click would ignore all but the last."""
        _, _, given = self.make_parser(ctx).parse_args(args)
        for param in given:
            has_one_value = isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count)
            if has_one_value and given.count(param) > 1:
                raise click.UsageError(f"{param.opts[-1]} is given {given.count(param)} times; accepted: once.", ctx)
