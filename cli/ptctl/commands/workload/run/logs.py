"""`ptctl workload logs`: the trainer's logs, all ranks in one stream."""

import re

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import Duration, cluster_options, complete_names
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload logs llama-gsm8k
ptctl workload logs llama-gsm8k -f               # follow, through restarts, to the job's end
ptctl workload logs llama-gsm8k --rank 0 --tail 50
ptctl workload logs llama-gsm8k --since 10m --grep 'reward [01]'
ptctl workload logs llama-gsm8k --role sampler   # of samplers with pods of their own
ptctl workload logs llama-gsm8k --role judge     # of a service of the job
ptctl workload logs llama-gsm8k --attempt 1      # before the first restart, while its pods exist
ptctl workload logs llama-gsm8k --link --rank 3  # the address in Cloud Logging, also for deleted pods
"""


def _pattern(ctx: click.Context, param: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise click.UsageError(
            f"--grep {text!r}: {error}; accepted: a regular expression, such as 'loss|reward'", ctx
        ) from error


@click.command("logs", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("-f", "--follow", is_flag=True, help="Follow the logs through restarts until the job ends.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Only this process; rank 0 reports the run.")
@click.option(
    "--role",
    metavar="ROLE",
    default="trainer",
    help="Whose: trainer, sampler, or a service's name. A sampler's or replica's rank is its number.",
)
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Start with the newest N lines of each rank.")
@click.option("--since", type=Duration(), metavar="TIME", help="Only lines of the last 90s, 15m, 2h30m.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Only this attempt; 1 is before any restart.")
@click.option("--grep", metavar="PATTERN", help="Only lines that match this regular expression.", callback=_pattern)
@click.option("--link", is_flag=True, help="Print the address of the logs in Cloud Logging instead.")
@cluster_options
@pass_app
def logs(
    app: App,
    target: Target,
    name: str,
    follow: bool,
    rank: int | None,
    role: str,
    tail: int | None,
    since: float | None,
    attempt: int | None,
    grep: re.Pattern[str] | None,
    link: bool,
) -> None:
    """Print the trainer's logs, all ranks merged.

    With more than one rank each line begins with its rank, and without -f a line that several ranks wrote is printed
    once: [0-7]. Deleted pods have no logs; the run's measurements are in its run directory.
    """
    if link:
        from ptctl.runs.logs.log_links import link_of

        app.console.data(link_of(app.connect(target), target, name, rank))
        return
    from ptctl.runs.logs.log_stream import Limits, follow_logs, print_logs

    since_s = None if since is None else max(1, round(since))
    show = follow_logs if follow else print_logs
    show(app, target, name, Limits(rank, attempt, tail, since_s, grep, role))
