"""`ptctl cluster credentials`: what `gcloud container clusters get-credentials` does."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.google_options import cluster_name, location, one_name, project
from ptctl.ui.command_line.xpk_flags import CLUSTER_OTHERS

_EXAMPLES = """
ptctl cluster credentials tpus
ptctl cluster credentials tpus --location us-east5 -n team-a
ptctl cluster credentials tpus --dns-endpoint --kubeconfig ./tpus.yaml
"""


@click.command("credentials", cls=Verb, examples=_EXAMPLES, replacements=CLUSTER_OTHERS)
@cluster_name
@project
@location
@click.option("-n", "--namespace", metavar="NS", help="Namespace of the context.")
@click.option("--kubeconfig", metavar="PATH", help="File to write; default: $KUBECONFIG, else ~/.kube/config.")
@click.option("--dns-endpoint", is_flag=True, help="Reach the control plane by its DNS name.")
@pass_app
def credentials(
    app: App,
    name: str | None,
    cluster_flag: str | None,
    project: str | None,
    location: str | None,
    namespace: str | None,
    kubeconfig: str | None,
    dns_endpoint: bool,
) -> None:
    """Write a cluster into the kubeconfig.

    Its context becomes the current one; other contexts stay. Tokens come from gke-gcloud-auth-plugin where it is
    installed, else from `ptctl cluster token`.
    """
    from ptctl.cluster.cloud.gke import find, open_gke
    from ptctl.cluster.cloud.settings import CloudSettings
    from ptctl.cluster.kubeconfig import address, context_name, document, exec_user, kubeconfig_path, merge_into

    settings = CloudSettings.from_env()
    chosen = settings.project_for(project)
    cluster = find(open_gke(settings), chosen, one_name(name, cluster_flag), location)
    context = context_name(chosen, cluster)
    path = kubeconfig_path(kubeconfig)
    entry = address(cluster, by_dns=True if dns_endpoint else None)
    merge_into(path, document(context, entry, exec_user()), namespace)
    app.console.data(context)
    app.console.say(f"{path}: the current context is {context}")
