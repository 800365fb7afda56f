"""`ptctl local status`: show the state of the embedded cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl local status
ptctl local status -o json
"""


@click.command("status", cls=Verb, examples=_EXAMPLES)
@click.option("-o", "--output", "form", type=click.Choice(("json",)), help="Output format, for scripts.")
@pass_app
def status(app: App, form: str | None) -> int:
    """Show whether the cluster runs, and where. Exit code 1 if it does not run."""
    import json
    from dataclasses import asdict

    from ptctl import local_cluster
    from ptctl.errors import FAILED
    from ptctl.ui.table import table

    state = local_cluster.status()
    if form == "json":
        app.console.data(json.dumps(asdict(state), indent=2, default=str))
    else:
        facts = (
            ("phase", state.phase),
            ("message", state.message),
            ("server", state.server),
            ("kubeconfig", str(state.kubeconfig)),
            ("files", str(state.data_dir)),
        )
        app.console.data("\n".join(f"{key + ':':<11} {value}" for key, value in facts if value))
        rows = [(c.name, str(c.pid or ""), str(c.restarts), c.detail) for c in state.components]
        if rows:
            app.console.data(f"\n{table(('COMPONENT', 'PID', 'RESTARTS', 'DETAIL'), rows)}")
    return 0 if state.phase == "ready" else FAILED
