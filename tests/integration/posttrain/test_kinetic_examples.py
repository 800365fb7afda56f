"""Kinetic's examples with `@posttrain.remote`: what needs no TPU runs as a script, the rest is accepted as jobs."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import posttrain

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "kinetic"
LINES = {
    "simple_demo": ["last loss: 2.1"],
    "example_async_jobs": ["  last line: 1000 rows: slope 2.006", "is Succeeded; its value is 0.0062"],
    "example_collections": ["failed: rate 5.0 diverges", "3 runs, 1 failed", "best: {'rate': 0.4, 'loss': 9.2"],
    "example_data_api": ["{'mean': 200.0, 'rate': 0.01}", "'weights.bin': 200000", "feature,label"],
    "example_checkpoint": ["steps of the first call: [0, 1, 2]", "steps of the second: [3, 4]"],
    "jax_profiling_demo": ["/profile"],
}
"""What each prints; the scripts that are left need TPUs."""


@pytest.mark.parametrize("name", LINES)
def test_an_example_prints_what_its_functions_return(name: str, kubeconfig: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "POSTTRAIN_OUTPUT": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    assert [line for line in LINES[name] if line not in done.stdout] == [], done.stdout
    if name == "jax_profiling_demo":
        assert list(tmp_path.rglob("profile/**/*.xplane.pb")) != []


def test_what_needs_tpus_is_accepted_as_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_OUTPUT", "gs://my-bucket/functions")
    functions = runpy.run_path(str(EXAMPLES / "on_tpus.py"))["FUNCTIONS"]
    jobs: list[posttrain.PostTrainJob] = runpy.run_path(str(EXAMPLES / "language_models.py"))["JOBS"]
    assert {job.accelerator.type for job in [*jobs, *(function.job() for function in functions)]} > {"v5e-8", "v6e-16"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*LINES, "on_tpus", "language_models"}
