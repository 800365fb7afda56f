"""Entry point of `ptctl` and `python -m ptctl`: run the command and turn its exception into an exit code."""

import gc
import shutil
import sys

from ptctl.ui import interrupts

_COLLECTION_AFTER = 50_000
"""New containers after which garbage is collected; Python's 700 makes a tenth of the time of a short command."""


def main(args: list[str] | None = None) -> None:
    """Run ptctl and exit with its code."""
    interrupts.install()  # before the slow imports
    gc.set_threshold(_COLLECTION_AFTER)
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # On a terminal that cannot encode a character, print a question mark instead of failing with a traceback.
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
        result = root.main(args, prog_name="ptctl", standalone_mode=False, obj=app, terminal_width=narrow_width())
        return result if isinstance(result, int) else 0
    except BaseException as error:
        return report(error, app.console)


def narrow_width() -> int | None:
    """Return the width for click's help on a terminal below 52 columns, or None; click itself never goes below 50."""
    columns = shutil.get_terminal_size().columns
    return max(columns - 1, 20) if columns < 52 else None


if __name__ == "__main__":
    main()
