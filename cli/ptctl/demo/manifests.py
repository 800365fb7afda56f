"""The demo's two jobs: the files of `manifests/demo`, with this machine's paths filled in.

A wheel carries them inside the package (pyproject.toml), a checkout in their own directory.
"""

from pathlib import Path

from ptapi.text import kubectl_yaml
from ptctl.demo.paths import GRPO, LABEL, NAMESPACE, SFT, DemoPaths
from ptkube.resources import Manifest


def sft(paths: DemoPaths, seed: int) -> Manifest:
    """Return the SFT job: half of the examples reason step by step, half answer at once."""
    return _fill_in("sft.yaml", SFT, paths, seed)


def grpo(paths: DemoPaths, seed: int) -> Manifest:
    """Return the GRPO job, which starts from the model that the SFT job exported."""
    job = _fill_in("grpo.yaml", GRPO, paths, seed)
    job["spec"]["model"]["uri"] = f"file://{paths.run(SFT)}/export"
    return job


def _fill_in(template: str, name: str, paths: DemoPaths, seed: int) -> Manifest:
    job: Manifest = kubectl_yaml.read((_manifest_directory() / template).read_text(encoding="utf-8"))
    labels = {**(job["metadata"].get("labels") or {}), LABEL: "true"}
    job["metadata"] = {"name": name, "namespace": NAMESPACE, "labels": labels}
    spec = job["spec"]
    spec["data"]["train"]["uri"] = f"file://{paths.train}"
    spec["data"]["eval"] = {**(spec["data"].get("eval") or {}), "uri": f"file://{paths.held_out}"}
    spec["output"]["uri"] = f"file://{paths.runs}"
    spec["training"]["seed"] = seed
    return job


def _manifest_directory() -> Path:
    packaged = Path(__file__).parent / "job_templates"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "manifests" / "demo"
