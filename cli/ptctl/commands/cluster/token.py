"""`ptctl cluster token`: the credential plugin of a kubeconfig, where gcloud's is not installed."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl cluster token        # kubectl calls it; `ptctl cluster credentials` writes it into the kubeconfig
"""


@click.command("token", cls=Verb, examples=_EXAMPLES)
@pass_app
def token(app: App) -> None:
    """Print a token, as kubectl's credential plugin.

    An ExecCredential with a token of Application Default Credentials, or of GOOGLE_OAUTH_ACCESS_TOKEN.
    """
    import json

    from ptctl.cluster.cloud.settings import CloudSettings

    status = {"token": CloudSettings.from_env().token()}
    body = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": status}
    app.console.data(json.dumps(body))
