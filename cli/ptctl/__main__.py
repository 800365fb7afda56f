"""The entry point of `ptctl` and `python -m ptctl`: run the command, turn what it raises into an exit code."""

from __future__ import annotations

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
        from ptctl.app import App
        from ptctl.exits import report
        from ptctl.root import root
    except ModuleNotFoundError as error:
        print(f"error: {error}\nhint: install the command line: pip install 'posttrain[cli]'", file=sys.stderr)
        return 1
    app = App()
    try:
        outcome = root.main(args, prog_name="ptctl", standalone_mode=False, obj=app)
        return outcome if isinstance(outcome, int) else 0
    except BaseException as error:
        return report(error, app.console)


if __name__ == "__main__":
    main()
