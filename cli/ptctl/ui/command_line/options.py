"""Options that several verbs share, with kubectl's names.

Each decorator turns its flags into one value (`target`, `output`, …), so that verbs take values and not flags.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from ptctl.ui.app import App, Target
from ptctl.ui.command_line.choices import STATUS_NAMES
from ptctl.ui.duration import parse_duration

Function = Callable[..., Any]


class Duration(click.ParamType[float]):
    """A duration in seconds, given as `90`, `90s`, `15m` or `2h30m`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the flag's text to seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def cluster_options(function: Function) -> Function:
    """Add -n, --kubeconfig and --context, passed to the verb as `target`."""
    function = _context_flags(function)
    function = click.option(
        "-n",
        "--namespace",
        metavar="NS",
        help="Namespace; default: the context's.",
        callback=_namespace,
        default=configured("namespace"),
    )(function)

    @wraps(function)
    def wrapped(
        *args: Any,
        namespace: str | None,
        kubeconfig: str | None,
        context: str | None,
        all_namespaces: bool = False,
        **kwargs: Any,
    ) -> Any:
        defaults = _configured("namespace", "context")
        if all_namespaces and namespace:
            if "namespace" not in dict(defaults):
                raise click.UsageError("-n and -A exclude each other.", click.get_current_context())
            namespace = None
        return function(*args, target=Target(namespace, kubeconfig, context, all_namespaces, defaults), **kwargs)

    return wrapped


def context_options(function: Function) -> Function:
    """Add --kubeconfig and --context, for verbs on a whole cluster, passed to the verb as `target`."""
    function = _context_flags(function)

    @wraps(function)
    def wrapped(*args: Any, kubeconfig: str | None, context: str | None, **kwargs: Any) -> Any:
        return function(*args, target=Target(None, kubeconfig, context, defaults=_configured("context")), **kwargs)

    return wrapped


def configured(name: str) -> Callable[[], str | None]:
    """Return the default of a flag that `ptctl config` sets."""

    def default() -> str | None:
        from ptctl.ui import configurations

        return configurations.value(name)

    return default


def _configured(*names: str) -> tuple[tuple[str, str], ...]:
    """Return the flags of this command that were not typed and have a value, with where each comes from."""
    from ptctl.ui import configurations

    ctx = click.get_current_context()
    untyped = [name for name in names if ctx.get_parameter_source(name) is ParameterSource.DEFAULT]
    origins = ((name, configurations.in_effect(name)) for name in untyped if ctx.params.get(name))
    return tuple((name, origin) for name, (_, origin) in origins)


def _context_flags(function: Function) -> Function:
    function = click.option(
        "--context", metavar="NAME", help="Context of the kubeconfig.", default=configured("context")
    )(function)
    return click.option(
        "--kubeconfig",
        metavar="PATH",
        type=click.Path(),
        help="Kubeconfig file; default: $KUBECONFIG, else ~/.kube/config.",
    )(function)


def all_namespaces(function: Function) -> Function:
    """Add -A, for verbs on many jobs. Apply it below `cluster_options`, which takes its value."""
    return click.option("-A", "--all-namespaces", is_flag=True, help="Jobs in all namespaces.")(function)


def job_or_directory(function: Function) -> Function:
    """Add the argument of verbs that read runs: a job in the cluster, or a run directory on this machine."""
    return click.argument("name", metavar="NAME|DIRECTORY", shell_complete=complete_names)(function)


def model(function: Function) -> Function:
    """Add the argument of verbs that load a model: a job in the cluster, or a path or URI."""
    return click.argument("model", metavar="JOB|PATH", shell_complete=complete_names)(function)


def models(function: Function) -> Function:
    """Add the argument of verbs that load several models."""
    metavar = "JOB|PATH..."
    return click.argument("models", metavar=metavar, nargs=-1, required=True, shell_complete=complete_names)(function)


def job_file(*, required: bool = True) -> Callable[[Function], Function]:
    """Add -f: one job file."""
    return click.option(
        "-f",
        "--filename",
        metavar="FILE",
        required=required,
        multiple=True,
        callback=_only_one,
        help="Job file, YAML or JSON; - is standard input.",
    )


def _only_one(ctx: click.Context, param: click.Parameter, files: tuple[str, ...]) -> str | None:
    """Refuse several files: click would silently take the last one."""
    if len(files) > 1:
        raise click.UsageError(
            f"-f: {len(files)} files ({', '.join(files)}); accepted: one job file at a time.\n"
            "hint: for several jobs use `kubectl apply -f`, or one command each",
            ctx,
        )
    return files[0] if files else None


def assignments(function: Function) -> Function:
    """Add --set: any field of the job."""
    return click.option(
        "--set", "assignments", multiple=True, metavar="PATH=VALUE", help="Change a field of spec; repeatable."
    )(function)


def dry_run(function: Function) -> Function:
    """Add --dry-run, for verbs that create a job."""
    return click.option(
        "--dry-run",
        type=click.Choice(("none", "client", "server")),
        is_flag=False,
        flag_value="client",
        default="none",
        metavar="[WHERE]",
        help="client (or no WHERE): validate and print; server: also ask the API server; nothing is created.",
    )(function)


def prices_file(function: Function) -> Function:
    """Add --prices: the user's table of prices per chip-hour."""
    return click.option(
        "--prices",
        metavar="FILE",
        envvar="PTCTL_PRICES",
        help="YAML file of chip-hour prices by generation [PTCTL_PRICES].",
    )(function)


def selector(function: Function) -> Function:
    """Add -l."""
    return click.option(
        "-l", "--selector", metavar="KEY=VALUE", help="Only jobs with these labels.", callback=_selector
    )(function)


def _selector(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    import re

    requirement = r"!?[\w./-]+|[\w./-]+\s*(=|==|!=)\s*[\w.-]*|[\w./-]+ (not)?in \([\w., -]*\)"
    if value is not None and not re.fullmatch(rf"({requirement})(,\s*({requirement}))*", value):
        raise click.UsageError(f"-l {value!r}: accepted: KEY=VALUE, KEY!=VALUE, KEY or !KEY, with commas between", ctx)
    return value


def output(*formats: str) -> Callable[[Function], Function]:
    """Add -o; when unset the verb prints its own form, for people."""
    return click.option("-o", "--output", type=click.Choice(formats), help="Output format.")


def pattern_filters(function: Function) -> Function:
    """Add XPK's filters."""
    function = click.option(
        "--filter-by-status",
        metavar="STATUS",
        type=click.Choice(STATUS_NAMES, case_sensitive=False),
        help=f"One of {', '.join(STATUS_NAMES)}.",
    )(function)
    return click.option("--filter-by-job", metavar="TEXT", help="Only jobs whose name contains TEXT.")(function)


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of jobs; nothing if the cluster does not answer."""
    from ptctl.ui import name_cache

    target = Target(ctx.params.get("namespace"), ctx.params.get("kubeconfig"), ctx.params.get("context"))

    def fetch() -> list[str]:
        from ptkube.resources import POSTTRAINJOBS

        kube = (ctx.find_object(App) or App()).connect(target)
        return [
            str(job["metadata"]["name"]) for job in kube.list(POSTTRAINJOBS, target.namespace or kube.namespace).items
        ]

    try:
        return name_cache.complete(target, incomplete, fetch)
    except Exception:  # completion must never print into the line being typed
        return []


def _namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return checked_name(value, "namespace", ctx) if value is not None else None


def checked_name(value: str, field: str, ctx: click.Context | None = None) -> str:
    """Return a valid Kubernetes name. Raises UsageError here, because the API server's own error is puzzling."""
    import re

    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value):
        raise click.UsageError(
            f"{field} {value!r}: accepted: lower-case letters, digits and -, with no - at either end", ctx
        )
    return value
