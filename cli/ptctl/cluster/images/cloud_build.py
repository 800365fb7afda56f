"""The same recipe in Google Cloud Build, by its REST API: the directory goes to a bucket, the build runs there."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.cluster.images import container_file
from ptctl.cluster.images import layer as layers
from ptctl.cluster.images.build import Recipe
from ptctl.errors import CliError
from ptctl.runs.storage import bucket

_BUILDER = "gcr.io/cloud-builders/docker"
_FILE = ".posttrain-containerfile"
_TIMEOUT_S = 60.0
_PATIENCE = 5
"""How often a poll may fail in turn: the build goes on without us."""
_RUNNING = ("STATUS_UNKNOWN", "PENDING", "QUEUED", "WORKING")


def build(recipe: Recipe, project_flag: str | None, note: Callable[[str], None]) -> str:
    """Build and push; return the image's name by digest."""
    settings = CloudSettings.from_env()
    project = settings.project_for(project_flag)
    source = _source(recipe, f"gs://{project}_cloudbuild/source")
    steps = [{"name": _BUILDER, "args": ["build", "-f", _FILE, "-t", str(recipe.tag), "."]}]
    body = {"source": {"storageSource": _place(source)}, "steps": steps, "images": [str(recipe.tag)]}
    url = f"{settings.cloud_build_endpoint}/v1/projects/{project}/builds"
    begun = _ask(settings, "POST", url, body)["metadata"]["build"]
    note(f"Cloud Build {begun['id']}: {begun.get('logUrl', '')}")
    done = _finished(settings, f"{url}/{begun['id']}")
    if done["status"] != "SUCCESS":
        reason = (done.get("failureInfo") or {}).get("detail") or done.get("statusDetail") or ""
        raise CliError(f"Cloud Build {begun['id']}: {done['status']}: {reason}", begun.get("logUrl", ""))
    return recipe.tag.at(str(done["results"]["images"][0]["digest"]))


def _source(recipe: Recipe, folder: str) -> str:
    """Upload the directory and its Containerfile, under a name of their content; return the URI."""
    with tempfile.TemporaryDirectory(prefix="posttrain-image-") as scratch:
        path = Path(scratch) / "source.tgz"
        archive = layers.write(recipe.directory, "", path, {_FILE: container_file.text(recipe).encode()})
        uri = f"{folder}/posttrain-{archive.digest.removeprefix('sha256:')[:32]}.tgz"
        bucket.write_once(uri, [path.read_bytes()])
    return uri


def _place(uri: str) -> dict[str, str]:
    name, _, path = uri.removeprefix("gs://").partition("/")
    return {"bucket": name, "object": path}


def _finished(settings: CloudSettings, url: str) -> dict[str, Any]:
    failures = 0
    while True:
        try:
            build_now = _ask(settings, "GET", url)
            failures = 0
        except CliError:
            failures += 1
            if failures >= _PATIENCE:
                raise
            build_now = {"status": "STATUS_UNKNOWN"}
        if build_now["status"] not in _RUNNING:
            return build_now
        time.sleep(settings.poll_s)


def _ask(settings: CloudSettings, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    import requests

    headers = {"Authorization": f"Bearer {settings.token()}"}
    try:
        answer = requests.request(method, url, json=body, headers=headers, timeout=_TIMEOUT_S)
        document: dict[str, Any] = answer.json()
    except (requests.RequestException, ValueError) as error:
        raise CliError(f"Cloud Build cannot be reached: {error}") from error
    if not answer.ok:
        message = (document.get("error") or {}).get("message") or answer.reason
        raise CliError(
            f"Cloud Build answers {answer.status_code}: {message}", "roles/cloudbuild.builds.editor is needed"
        )
    return document
