"""The entry point of `ptctl` and `python -m ptctl`: run the command, turn what it raises into an exit code."""

from __future__ import annotations

import shutil
import sys


def main(args: list[str] | None = None) -> None:
    """Run and exit."""
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """Run; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a question mark; a traceback helps nobody.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    try:
        from ptctl.cli import root
        from ptctl.ui.app import App
        from ptctl.ui.exit_codes import report
    except ModuleNotFoundError as error:
        print(f"error: {error}\nhint: install the command line: pip install 'posttrain[cli]'", file=sys.stderr)
        return 1
    app = App()
    try:
        outcome = root.main(args, prog_name="ptctl", standalone_mode=False, obj=app, terminal_width=narrow_width())
        return outcome if isinstance(outcome, int) else 0
    except BaseException as error:
        return report(error, app.console)


def narrow_width() -> int | None:
    """The width of a terminal so narrow that click's help, which never goes below 50, would not fit it."""
    columns = shutil.get_terminal_size().columns
    return max(columns - 1, 20) if columns < 52 else None


if __name__ == "__main__":
    main()
