"""`ptctl workload logs`: the trainer's logs, all ranks in one stream."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.options import cluster_options, complete_names
from ptctl.ui.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload logs llama-gsm8k
ptctl workload logs llama-gsm8k -f               # follow, through restarts, to the job's end
ptctl workload logs llama-gsm8k --rank 0 --tail 50
ptctl workload logs llama-gsm8k --link --rank 3  # the address in Cloud Logging, also for deleted pods
"""


@click.command("logs", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("-f", "--follow", is_flag=True, help="Follow the logs through restarts until the job ends.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Only this process; rank 0 reports the run.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Start with the newest N lines of each rank.")
@click.option("--link", is_flag=True, help="Print the address of the logs in Cloud Logging instead.")
@cluster_options
@pass_app
def logs(app: App, target: Target, name: str, follow: bool, rank: int | None, tail: int | None, link: bool) -> None:
    """Print the trainer's logs, all ranks merged.

    With more than one rank each line begins with its rank. Deleted pods have no logs; the run's measurements are in its
    run directory.
    """
    if link:
        from ptctl.runs.log_links import link_of

        app.console.data(link_of(app.connect(target), target, name, rank))
        return
    from ptctl.runs.log_stream import follow_logs, print_logs

    show = follow_logs if follow else print_logs
    show(app, target, name, rank, tail)
