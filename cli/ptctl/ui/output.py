"""Documents to stdout: `-o json`, `-o yaml`, `-o name`. Stable: scripts read them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ptctl.ui.console import Console
from ptkube.resources import Manifest

DOCUMENT_FORMS = ("json", "yaml", "name")
RESOURCE = "posttrainjob.posttrain.dev"


def document(objects: Sequence[Manifest], form: str, *, as_list: bool = False) -> str:
    """One object, or with `as_list` (or several) a v1 List, as kubectl prints them."""
    objects = [without_managed_fields(body) for body in objects]
    if form == "name":
        return "\n".join(f"{RESOURCE}/{obj['metadata']['name']}" for obj in objects)
    body: Manifest = (
        objects[0]
        if len(objects) == 1 and not as_list
        else {
            "apiVersion": "v1",
            "kind": "List",
            "metadata": {},
            "items": list(objects),
        }
    )
    return json.dumps(body, indent=2) if form == "json" else to_yaml(body)


def to_yaml(body: Manifest) -> str:
    """YAML in the order of the keys, as the API writes it."""
    from ptapi.text import kubectl_yaml  # here: it costs more than a whole listing

    return kubectl_yaml.write(body).rstrip("\n")


def without_managed_fields(body: Manifest) -> Manifest:
    """As kubectl: hundreds of lines that only server-side apply needs."""
    return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key != "managedFields"}}


def stream(objects: Sequence[Manifest]) -> str:
    """Several manifests as one YAML stream, as a file for `kubectl apply -f`."""
    return "\n---\n".join(to_yaml(body) for body in objects)


def show(console: Console, objects: Sequence[Manifest], form: str, *, as_list: bool = False) -> None:
    """Print objects; nothing at all for an empty `-o name`."""
    if objects or form != "name":
        console.data(document(objects, form, as_list=as_list))
