"""`ptctl cluster delete`: check, ask, delete, wait."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NoReturn

from ptctl.cluster import teardown
from ptctl.cluster.cloud.gke import find, open_gke
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.errors import INTERRUPTED
from ptctl.ui import interrupts
from ptctl.ui.app import App


def delete_cluster(app: App, name: str, project: str | None, location: str | None, *, yes: bool, force: bool) -> None:
    """Delete the cluster and return when it is gone. Raises CliError for one that must stay."""
    settings = CloudSettings.from_env()
    project = settings.project_for(project)
    gke = open_gke(settings)
    cluster = find(gke, project, name, location)
    teardown.check_deletable(cluster)
    if not force:
        teardown.check_idle(cluster, teardown.running_jobs(settings, cluster))
    if not yes:
        teardown.confirm(app.console, cluster, sys.stdin.readline)
    path = f"projects/{project}/locations/{cluster.location}/clusters/{name}"
    app.console.say(f"delete cluster {name}: about 5 minutes")

    def report_interruption(number: int, frame: FrameType | None) -> NoReturn:
        interrupts.say(f"Interrupted. Google continues to delete cluster {name}; the same command waits for it again.")
        os._exit(INTERRUPTED)

    with interrupts.handled(report_interruption):
        teardown.delete_cluster(gke, path, cluster, settings.poll_s)
    app.console.data(f"cluster {name} deleted")
    if networks := teardown.networks_left(cluster):
        app.console.say(
            f"the networks of its GPUs stay: {', '.join(networks)}\n"
            "after their subnetworks and firewall rules: gcloud compute networks delete NETWORK"
        )
