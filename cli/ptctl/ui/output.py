"""Documents on stdout: `-o json`, `-o yaml`, `-o name`. Stable, because scripts read them."""

import json
from collections.abc import Sequence

from ptctl.ui.console import Console
from ptkube.resources import Manifest

DOCUMENT_FORMS = ("json", "yaml", "name")
RESOURCE = "posttrainjob.posttrain.dev"


def document(objects: Sequence[Manifest], form: str, *, as_list: bool = False) -> str:
    """Format one object, or with `as_list` (or several objects) a v1 List, as kubectl prints them."""
    objects = [without_managed_fields(body) for body in objects]
    if form == "name":
        return "\n".join(f"{RESOURCE}/{obj['metadata']['name']}" for obj in objects)
    body: Manifest = (
        objects[0]
        if len(objects) == 1 and not as_list
        else {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": list(objects)}
    )
    return json.dumps(body, indent=2) if form == "json" else to_yaml(body)


def to_yaml(body: Manifest) -> str:
    """Format as YAML, with the keys in the API's order."""
    from ptapi.text import kubectl_yaml  # imported here: it costs more than a whole listing

    return kubectl_yaml.write(body).rstrip("\n")


def without_managed_fields(body: Manifest) -> Manifest:
    """Return the object without its managed fields, like kubectl: only server-side apply needs them."""
    return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key != "managedFields"}}


def stream(objects: Sequence[Manifest]) -> str:
    """Format several manifests as one YAML stream, ready for `kubectl apply -f`."""
    return "\n---\n".join(to_yaml(body) for body in objects)


def show(console: Console, objects: Sequence[Manifest], form: str, *, as_list: bool = False) -> None:
    """Print objects; nothing at all for an empty `-o name`."""
    if objects or form != "name":
        console.data(document(objects, form, as_list=as_list))
