"""`ptctl ui`: jobs, curves, samples and capacity in a browser."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import all_namespaces, cluster_options

_EXAMPLES = """
ptctl ui                              # the jobs of the context's namespace
ptctl ui -A                           # those of all namespaces
ptctl ui --runs /tmp/runs             # runs of `ptctl train`, without a cluster
ptctl ui --runs gs://my-bucket/runs --no-browser
"""


@click.command("ui", cls=Verb, examples=_EXAMPLES)
@click.option("--runs", metavar="DIR|URI", help="Folder of run directories, here or gs://, in place of a cluster.")
@click.option("--port", type=click.IntRange(0, 65535), default=8011, help="Port to listen on (8011); 0 picks one.")
@click.option("--no-browser", is_flag=True, help="Print the link, and open no browser.")
@click.option("--audience", help="In a pod, behind a proxy: audience of its tokens. Listens on every address.")
@click.option("--issuer", metavar="URL", help="OpenID issuer of these tokens; without it, Google's IAP.")
@click.option("--only", metavar="NS,NS", help="Behind a proxy: the namespaces that are read; without it, all.")
@all_namespaces
@cluster_options
@pass_app
def ui(
    app: App,
    target: Target,
    runs: str | None,
    port: int,
    no_browser: bool,
    audience: str | None,
    issuer: str | None,
    only: str | None,
) -> None:
    """Show jobs, curves, samples and capacity in a browser.

    A page on this machine: filters, timelines, live metrics of several runs, samples with their rewards, who waits for
    chips, what differs between two jobs. It changes nothing, and reads with your own rights. The link holds a token;
    nobody without it sees the page. Ctrl-C ends it. The chart runs it in a cluster, behind a proxy that logs people in
    (--audience): there everybody sees what their own Kubernetes rights allow.
    """
    from ptctl.jobs.lookup import namespace_of
    from ptctl.page.answers import Answers
    from ptctl.page.job_sources import ClusterJobs, runs_at
    from ptctl.page.server import serve_behind_proxy, serve_here

    if runs is not None and (target != Target() or audience):
        raise click.UsageError("--runs reads no cluster: leave out -n, -A, --context, --kubeconfig and --audience")
    if not audience and (issuer or only):
        raise click.UsageError("--issuer and --only go with --audience")
    if runs is not None:
        serve_here(app, Answers(runs_at(runs)), port, opens=not no_browser)
        return
    kube = app.connect(target)
    if audience:
        from ptctl.page.access import CallerAccess
        from ptctl.page.callers import Identities, Issuer, Rights, identity_aware_proxy

        identities = Identities(Issuer(issuer, audience) if issuer else identity_aware_proxy(audience))
        jobs = ClusterJobs(kube, tuple(filter(None, (only or "").split(","))))
        serve_behind_proxy(app, CallerAccess(jobs, Rights(kube), identities), port)
        return
    namespace = namespace_of(kube, target)
    source = ClusterJobs(kube, (namespace,) if namespace else ())
    source.jobs()  # a cluster that does not answer is an error here, not a page
    serve_here(app, Answers(source), port, opens=not no_browser)
