"""`ptctl plan --quick`, whole: exit codes, where its lines go, what it costs, and what it never imports."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.trainer.preflight import job

from ptctl.errors import FAILED, USAGE

HEAVY = {
    "jax", "flax", "optax", "orbax", "numpy", "grain", "pyarrow", "tokenizers", "jinja2", "safetensors", "tensorboard",
    "huggingface_hub", "google.cloud.storage", "kopf", "kubernetes", "aiohttp", "rich", "matplotlib", "multiprocessing",
}  # fmt: skip
CPU_SECONDS = 1.0
"""It is 0.5 where nothing else runs; a machine that is shared makes it more."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GRPO of an 8 B model on 16 v6e chips."""
    requested = job("llama3.1-8b", "v6e-16", algorithm="grpo", batchSize=64, sequenceLength=2048)
    body = requested.model_dump(mode="json", by_alias=True, exclude_unset=True)
    body["spec"]["rewards"] = [{"builtin": "gsm8k"}]
    path = tmp_path_factory.mktemp("quick") / "job.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def plan(file: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """What became of it, and its CPU seconds."""
    command = [sys.executable, "-m", "ptctl", "plan", "-f", str(file), "--quick", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_job_that_fits_ends_with_0_within_a_second(file: Path) -> None:
    spent = []
    for _ in range(10):
        done, seconds = plan(file, "-o", "json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["fits"]
        spent.append(seconds)
        if seconds < CPU_SECONDS:
            break
    assert min(spent) < CPU_SECONDS


def test_one_that_does_not_fit_ends_with_1_and_says_what_would(file: Path) -> None:
    done, _ = plan(file, "--set", "accelerator.type=v5e-8", "--set", "training.batchSize=128")
    assert (done.returncode, done.stderr) == (FAILED, "")
    assert "does not fit" in done.stdout
    assert "adapters on 4-bit weights (QLoRA)" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.batchSize=65", "spec.training.batchSize: 65"),
        ("model.uri=random://tinny", "did you mean random://tiny?"),
    ],
)
def test_one_that_is_wrong_ends_with_2_and_names_the_field(file: Path, change: str, message: str) -> None:
    done, _ = plan(file, "--set", change)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_heavy_is_imported(file: Path, tmp_path: Path) -> None:
    """By the verdict of a job that fits and of one that does not, by the search, the table and the smallest slices."""
    body: dict[str, Any] = yaml.safe_load(file.read_text())
    body["spec"]["training"] |= {"batchSize": 1024, "sequenceLength": 8192, "lora": {}}
    large = tmp_path / "large.yaml"
    large.write_text(yaml.safe_dump(body))
    code = f"""
import sys
from pttrainer.__main__ import main
runs = (["{file}", "--quick"], ["{large}", "--quick"], ["{large}", "--fit", "--quick"], ["{large}", "--matrix"],
        ["{large}", "--smallest"])
codes = [main(["preflight", *words]) for words in runs]
print(codes, sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "[0, 70, 0, 0, 0] []\n"
