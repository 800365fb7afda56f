"""The Secret with the token that trainer and samplers of one job share.

Its value is drawn where the Secret is written (`kube.actions.CreateToken`), so that no plan, log or rendered file ever
holds one.
"""

from ptkube.resources import SECRETS, Manifest
from ptoperator.kube import labels
from ptoperator.render.layout import Layout
from ptoperator.render.pods.environment_variables import TOKEN_KEY


def sampler_secret(layout: Layout) -> Manifest:
    """Return the Secret without its value."""
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {
            "name": layout.sampler_secret,
            "namespace": layout.namespace,
            "labels": labels.for_job(layout.name, layout.uid),
            "ownerReferences": layout.owner_references,
        },
        "immutable": True,
        "type": "Opaque",
        "stringData": {TOKEN_KEY: ""},
    }
