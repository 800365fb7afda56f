"""Map exceptions to messages and exit codes, for the whole program. `ptctl/errors.py` lists the codes.

Anything not handled here is a bug: its traceback goes into a file, never on the screen.
"""

import os
import sys
import tempfile
import traceback

import click

from ptctl import errors
from ptctl.ui.console import Console


def report(error: BaseException, console: Console) -> int:
    """Print the error and return the exit code."""
    if isinstance(error, errors.CliError):
        console.error(error.message, error.hint)
        return error.code
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):  # click's shell completion exits the program itself
        return error.code if isinstance(error.code, int) else errors.FAILED
    if isinstance(error, (KeyboardInterrupt, click.Abort)):  # the signal's handler has said so
        return errors.INTERRUPTED
    if isinstance(error, click.ClickException):
        return _report_click_error(error, console)
    if isinstance(error, BrokenPipeError):
        # The interpreter flushes stdout again at exit, which would raise once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.BROKEN_PIPE
    return _report_other_error(error, console)


def _report_click_error(error: click.ClickException, console: Console) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the help
        console.say(error.format_message())
        return errors.USAGE
    # Click names its type, not what a user may write.
    message, _, hint = error.format_message().replace("a valid integer range", "a whole number").partition("\nhint: ")
    console.error(message, hint)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        console.say(f"see:  {error.ctx.command_path} --help")
    return errors.USAGE if isinstance(error, click.UsageError) else errors.FAILED


def _report_other_error(error: BaseException, console: Console) -> int:
    from ptkube import errors as kube_errors

    if isinstance(error, kube_errors.ApiError):
        message, _, hint = str(error).partition("\nhint: ")
        console.error(message, hint or api_hint(error))
        return _api_code(error)
    spec_error = sys.modules.get("ptapi.errors")
    if spec_error is not None and isinstance(error, spec_error.SpecError):
        console.error(str(error))
        return errors.USAGE
    if isinstance(error, OSError):
        console.error(f"{error.filename or 'system'}: {error.strerror or error}")
        return errors.FAILED
    return _report_bug(error, console)


def _api_code(error: Exception) -> int:
    from ptkube import errors as kube_errors

    if isinstance(error, kube_errors.NotFound):
        return errors.NOT_FOUND
    if isinstance(error, (kube_errors.Forbidden, kube_errors.Unauthorized)):
        return errors.NOT_AUTHORISED
    return errors.USAGE if isinstance(error, kube_errors.Invalid) else errors.FAILED


def api_hint(error: Exception) -> str:
    """Return what to try after the API server's refusal; empty if its own words say enough."""
    from ptkube import errors as kube_errors

    if isinstance(error, kube_errors.NotFound) and "not find the requested resource" in str(error):
        return "posttrain is not installed in this cluster; see docs/guides/install.md, or try `ptctl local up`"
    if isinstance(error, kube_errors.Unreachable):
        return "check that the cluster is up; `ptctl local up` starts one on this machine, --context selects another"
    return ""


def _report_bug(error: BaseException, console: Console) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="ptctl-", suffix=".log", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    console.error(f"a bug in ptctl: {type(error).__name__}: {error}", f"please report it and attach {file.name}")
    return errors.FAILED
