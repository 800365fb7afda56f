"""`ptctl cluster list` and `describe`."""

from __future__ import annotations

import json

from ptctl.cluster.actions.cluster_text import as_document, list_table, page
from ptctl.cluster.cloud.gke import ClusterView, find, open_gke
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.ui.app import App
from ptctl.ui.output import to_yaml
from ptkube.resources import Manifest


def list_clusters(app: App, project: str | None, location: str, form: str | None) -> None:
    """Print the clusters of the project."""
    settings = CloudSettings.from_env()
    chosen = settings.project_for(project)
    clusters = open_gke(settings).clusters(chosen, location)
    if form == "name":
        names = [each.name for each in clusters]
        if names:
            app.console.data("\n".join(names))
    elif form:
        _print(app, {"clusters": [as_document(each) for each in clusters]}, form)
    elif clusters:
        app.console.data(list_table(clusters))
    else:
        app.console.say(f"no clusters in project {chosen}{f', {location}' if location != '-' else ''}")


def describe_cluster(app: App, name: str, project: str | None, location: str | None, form: str | None) -> None:
    """Print a page about the cluster, or everything that GKE reports of it."""
    settings = CloudSettings.from_env()
    cluster = find(open_gke(settings), settings.project_for(project), name, location)
    _show(app, cluster, form)


def _show(app: App, cluster: ClusterView, form: str | None) -> None:
    if form == "name":
        app.console.data(cluster.name)
    elif form:
        _print(app, as_document(cluster), form)
    else:
        app.console.data(page(cluster))


def _print(app: App, body: Manifest, form: str) -> None:
    app.console.data(json.dumps(body, indent=2) if form == "json" else to_yaml(body))
