"""The demo's two jobs: the files of `manifests/demo`, which are jobs as they stand, with this machine's paths put in.

A wheel carries them inside the package (pyproject.toml), a checkout where they are.
"""

from __future__ import annotations

from pathlib import Path

from ptapi.text import kubectl_yaml
from ptctl.demo.paths import GRPO, LABEL, NAMESPACE, SFT, Place
from ptkube.resources import Manifest


def sft(place: Place, seed: int) -> Manifest:
    """Imitation: half of the examples reason step by step, half answer at once."""
    return _placed("sft.yaml", SFT, place, seed)


def grpo(place: Place, seed: int) -> Manifest:
    """Reward: starts from what the first job exported."""
    job = _placed("grpo.yaml", GRPO, place, seed)
    job["spec"]["model"]["uri"] = f"{place.run(SFT).as_uri()}/export"
    return job


def _placed(template: str, name: str, place: Place, seed: int) -> Manifest:
    job: Manifest = kubectl_yaml.read((_folder() / template).read_text(encoding="utf-8"))
    labels = {**(job["metadata"].get("labels") or {}), LABEL: "true"}
    job["metadata"] = {"name": name, "namespace": NAMESPACE, "labels": labels}
    spec = job["spec"]
    spec["data"]["train"]["uri"] = place.train.as_uri()
    spec["data"]["eval"] = {**(spec["data"].get("eval") or {}), "uri": place.held_out.as_uri()}
    spec["output"]["uri"] = place.runs.as_uri()
    spec["training"]["seed"] = seed
    return job


def _folder() -> Path:
    packaged = Path(__file__).parent / "jobs"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "manifests" / "demo"
