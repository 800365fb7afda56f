"""`ptctl image build`: one layer on a base image, by OCI's layout, straight into a registry."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptctl.cluster.images import layer as layers
from ptctl.cluster.images.layer import Layer
from ptctl.cluster.images.reference import Reference
from ptctl.cluster.images.registry import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Registry
from ptctl.errors import CliError, InputError

Document = dict[str, Any]
Note = Callable[[str], None]
_CONFIG = {
    OCI_MANIFEST: "application/vnd.oci.image.config.v1+json",
    DOCKER_MANIFEST: "application/vnd.docker.container.image.v1+json",
}
_LAYER = {
    OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar+gzip",
    DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}


@dataclass(frozen=True)
class Recipe:
    """What is built. place: where in the image the directory's files lie, which is its working directory, too."""

    directory: Path
    base: Reference
    tag: Reference
    place: str
    env: Sequence[str] = ()
    platform: str = "linux/amd64"


@dataclass(frozen=True)
class _Base:
    """A base image: its manifest of one platform, and its config."""

    registry: Registry
    kind: str
    manifest: Document
    config: Document


def build(recipe: Recipe, note: Note, *, pushes: bool = True) -> str:
    """Push the image and return its name by digest. Raises CliError, InputError."""
    with tempfile.TemporaryDirectory(prefix="posttrain-image-") as folder:
        scratch = Path(folder)
        blob = layers.write(recipe.directory, recipe.place, scratch / "layer")
        base = _base(recipe, scratch)
        config = json.dumps(_config(base.config, blob, recipe), separators=(",", ":"), sort_keys=True).encode()
        manifest = json.dumps(_manifest(base, blob, config), separators=(",", ":"), sort_keys=True).encode()
        digest = _digest(manifest)
        note(f"{recipe.directory}: {blob.files} files, {layers_size(blob)} in one layer on {recipe.base}")
        if pushes:
            _push(recipe, base, blob, scratch, config, note)
            Registry(recipe.tag, writes=True).publish(base.kind, manifest)
    return recipe.tag.at(digest)


def layers_size(blob: Layer) -> str:
    """Return a layer's size for people."""
    return f"{blob.size / 1e6:.2f} MB" if blob.size >= 1e5 else f"{blob.size} bytes"


def _base(recipe: Recipe, scratch: Path) -> _Base:
    registry = Registry(recipe.base)
    kind, content = registry.manifest(recipe.base.version)
    if kind in (OCI_INDEX, DOCKER_INDEX):
        kind, content = registry.manifest(_of_platform(recipe, json.loads(content)))
    if kind not in _CONFIG:
        raise CliError(f"--base {recipe.base}: a manifest of type {kind}; accepted: OCI's, or Docker's schema 2")
    manifest: Document = json.loads(content)
    registry.read(manifest["config"]["digest"], scratch / "config")
    config: Document = json.loads((scratch / "config").read_text())
    platform = f"{config.get('os')}/{config.get('architecture')}"
    if platform != recipe.platform:
        raise InputError(f"--base {recipe.base}: an image of {platform}; accepted: one of {recipe.platform}")
    return _Base(registry, kind, manifest, config)


def _of_platform(recipe: Recipe, index: Document) -> str:
    """Return the digest of the manifest of the platform."""
    by_platform: dict[str, str] = {}
    for each in index["manifests"]:
        platform = each.get("platform") or {}
        by_platform.setdefault(f"{platform.get('os')}/{platform.get('architecture')}", str(each["digest"]))
    if recipe.platform not in by_platform:
        there = ", ".join(sorted(name for name in by_platform if "unknown" not in name))
        raise InputError(f"--base {recipe.base}: no image of {recipe.platform}; it has {there}")
    return by_platform[recipe.platform]


def _config(base: Document, blob: Layer, recipe: Recipe) -> Document:
    """Return the image's config: the base's, with the layer, the working directory and the variables."""
    runtime = dict(base.get("config") or {})
    names = {each.partition("=")[0] for each in recipe.env}
    kept = [each for each in runtime.get("Env") or [] if each.partition("=")[0] not in names]
    runtime |= {"Env": [*kept, *recipe.env], "WorkingDir": recipe.place}
    step = {"created": "1970-01-01T00:00:00Z", "created_by": f"ptctl image build: COPY . {recipe.place}"}
    return {
        **base,
        "config": runtime,
        "rootfs": {"type": "layers", "diff_ids": [*base["rootfs"]["diff_ids"], blob.diff_id]},
        "history": [*_history(base), step],
    }


def _history(base: Document) -> list[Document]:
    """Return a step for each layer: podman builds on no image whose history lacks some, and some bases have none."""
    history: list[Document] = base.get("history") or []
    missing = len(base["rootfs"]["diff_ids"]) - sum(not step.get("empty_layer") for step in history)
    return [*history, *[{"created": "1970-01-01T00:00:00Z", "created_by": "unknown"}] * missing]


def _manifest(base: _Base, blob: Layer, config: bytes) -> Document:
    own = {"mediaType": _LAYER[base.kind], "digest": blob.digest, "size": blob.size}
    return {
        "schemaVersion": 2,
        "mediaType": base.kind,
        "config": {"mediaType": _CONFIG[base.kind], "digest": _digest(config), "size": len(config)},
        "layers": [*base.manifest["layers"], own],
    }


def _push(recipe: Recipe, base: _Base, blob: Layer, scratch: Path, config: bytes, note: Note) -> None:
    """Bring every blob there that is not there yet."""
    is_same = recipe.base.registry == recipe.tag.registry
    target = Registry(recipe.tag, writes=True, reads=(recipe.base.repository,) if is_same else ())
    (scratch / "config").write_bytes(config)
    for digest, path in ((blob.digest, scratch / "layer"), (_digest(config), scratch / "config")):
        if not target.has(digest):
            target.upload(digest, path)
    for each in base.manifest["layers"]:
        digest = each["digest"]
        if target.has(digest):
            continue
        if is_same and target.mount(digest, recipe.base.repository):
            note(f"{digest[7:19]}: taken over from {recipe.base.repository}")
            continue
        base.registry.read(digest, scratch / "copied")
        target.upload(digest, scratch / "copied")
        note(f"{digest[7:19]}: copied from {recipe.base.registry}")


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
