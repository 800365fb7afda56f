"""Start an image's program, and look at what is installed."""

import re
from collections.abc import Iterable

from scripts.images.commands import container, entrypoint, label, output, step
from scripts.images.settings import ROOT, ImageError, Settings, project

REVISION = "org.opencontainers.image.revision"

USER = """
import os, pathlib
assert (os.getuid(), os.getgid()) == (65532, 65532), f"uid {os.getuid()}, gid {os.getgid()}"
(pathlib.Path.home() / "written").touch()
"""
NO_JAX = "import importlib.util; assert importlib.util.find_spec('jax') is None, 'jax is installed'"
TRAIN = """
cd /tmp
cat > job.yaml
for row in 1 2 3 4; do echo '{"prompt": "What is 2 plus 2?", "completion": "4"}'; done > train.jsonl
python -m pttrainer run job.yaml
test -s runs/smoke/export/model.safetensors
"""
JOB = """
apiVersion: posttrain.dev/v1alpha1
kind: PostTrainJob
metadata: {name: smoke}
spec:
  model: {uri: "random://tiny"}
  algorithm: {sft: {}}
  data: {train: {uri: file:///tmp/train.jsonl}}
  training: {steps: 3, batchSize: 2, sequenceLength: 64, optimizer: {learningRate: 1.0e-3}}
  accelerator: {type: cpu-1}
  output: {uri: file:///tmp/runs}
"""


def run(settings: Settings, target: str, revision: str) -> None:
    """Try an image that was built of a commit; raise ImageError at the first thing that is wrong."""
    labelled = label(settings, settings.image(target), REVISION)
    if labelled != revision:
        raise ImageError(f"{target}: label {REVISION}: {labelled}: expected {revision}")
    with container(settings, target) as inside:
        step(f"{target}: --help", [*inside, *entrypoint(settings, settings.image(target)), "--help"])
        step(f"{target}: its user and home", [*inside, "python", "-c", USER])
        step(f"{target}: pip check", [*inside, "python", "-m", "pip", "check"])
        check_pins(output([*inside, "cat", "/dist/installed.txt"]).splitlines(), (ROOT / "constraints.txt").read_text())
        if target == "operator":
            step(f"{target}: no JAX", [*inside, "python", "-c", NO_JAX])
        else:
            step(f"{target}: 3 steps of training", [*inside, "sh", "-ec", TRAIN], stdin=JOB)


def check_pins(installed: Iterable[str], constraints: str) -> None:
    """Raise ImageError for a package of an image that was installed at a version which nobody chose.

    installed: lines `name==version --hash=…`.
    """
    pinned = {_normal(line) for line in constraints.splitlines() if "==" in line}
    others = [line.split()[0] for line in installed if _normal(line) not in pinned]
    floating = [each for each in others if _normal(each).partition("==")[0] != project()["name"]]
    if floating:
        names = ", ".join(floating)
        raise ImageError(f"constraints.txt: lacks {names}; hint: add them, so that the next build installs the same")


def _normal(requirement: str) -> str:
    name, _, rest = requirement.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={rest.split()[0]}"
