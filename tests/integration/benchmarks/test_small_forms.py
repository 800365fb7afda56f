"""Every benchmark runs, in its smallest form: a figure that nobody can repeat is no figure."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import quick, runs

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
ALONE = ("--ours", "--turns", "1", "--steps", "4")
SMALL = {
    "operator_and_cli/apply_to_jobset.py": ("--jobs", "2", "--idle-seconds", "1"),
    "operator_and_cli/thousand_jobs.py": ("--jobs", "20", "--restart-seconds", "1", "--most-calls", "20"),
    "operator_and_cli/simulated_jobs.py": ("--jobs", "20", "--most-calls", "16"),
    "operator_and_cli/one_large_job.py": ("--samplers", "3"),
    "operator_and_cli/simulated_day.py": ("--hours", "2", "--jobs", "40"),
    "operator_and_cli/soak.py": ("--minutes", "0.2", "--state", "soak", "--jobs", "2"),
    "operator_and_cli/ptctl_cpu.py": ("--jobs", "3", "--runs", "1"),
    "operator_and_cli/quick_plan.py": ("--runs", "1"),
    "operator_and_cli/page_interactions.py": ("--jobs", "0", "--steps", "200", "--turns", "1"),
    "peers/sft.py": (*ALONE, "--only", "1", "--model", "tiny"),
    "peers/grpo.py": (*ALONE, "--only", "2", "--model", "tiny"),
    "peers/rollout.py": (*ALONE, "--only", "1"),
    "gpu/gpu_bench.py": (
        *(
            "--accelerator",
            "cpu-1",
            "--model",
            "random://tiny",
            "--only",
            "qlora,decode",
            "--steps",
            "3",
            "--batch",
            "1",
        ),
        *("--length", "32", "--new-tokens", "2", "--out", "figures.json"),
    ),
    "trainer/speculative.py": ("--model", "tiny", "--rows", "1", "--new-tokens", "4", "--repeats", "1"),
    "trainer/turns.py": (
        *("--model", "tiny", "--episodes", "2", "--turns", "2", "--turn-tokens", "68", "--new-tokens", "4"),
    ),
    "trainer/long_tails.py": (
        *("--model", "tiny", "--prompts", "2", "--samples", "2", "--new-tokens", "16", "--mean", "8", "--batches", "2"),
    ),
    "trainer/cpu_step.py": ("--tokens", "64", "--shrink", "64", "--runs", "1"),
    "trainer/delta_layer.py": ("--tokens", "70", "--runs", "1"),
    "preflight/preflight_draws.py": ("1", "--count", "1"),
    "preflight/preflight_formula.py": (),
}
ELSEWHERE = {
    "operator_and_cli/jumping_clock.py": "benchmarks/operator_and_cli/soak.py",
    "gpu/decode.py": "benchmarks/gpu/gpu_bench.py",
    "trainer/loading_memory.py": "tests/integration/pttrainer/test_loading_memory.py",
    "peers/native_rollout.py": "benchmarks/peers/rollout.py",
    "preflight/preflight_times.py": "Makefile",  # asks the TPU compiler
    "tpu/tpu_programs.py": "Makefile",  # as above
    "tpu/rl_step.py": "Makefile",  # as above
    "tpu/decode_step.py": "Makefile",  # as above
    "tpu/feed_forward.py": "Makefile",  # as above
    "reference_runs/reference_runs.py": "tests/integration/benchmarks/test_small_forms.py",
    "tpu/maxtext_program.py": "benchmarks/tpu/tpu_programs.py",
}


@pytest.fixture(autouse=True)
def compiled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As other tests compile: a small form shows that a benchmark runs, not how fast."""
    monkeypatch.setenv("XLA_FLAGS", quick.FLAGS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", runs.compiled())


def test_every_benchmark_has_a_small_form() -> None:
    programs = {
        str(file.relative_to(BENCHMARKS))
        for file in BENCHMARKS.glob("*/*.py")
        if '__name__ == "__main__"' in file.read_text() and file.parent.name != "learning"
    }
    assert programs == SMALL.keys() | ELSEWHERE.keys()
    for name, caller in ELSEWHERE.items():
        assert Path(name).stem in (BENCHMARKS.parent / caller).read_text()


@pytest.mark.parametrize("name", SMALL)
def test_it_runs_and_prints_its_figures(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(BENCHMARKS / name), *SMALL[name]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(character.isdigit() for character in done.stdout)


def test_a_reference_run_trains_and_one_that_starts_elsewhere_is_not_compared(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(16)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {
        "model.uri": "random://tiny", "accelerator.type": "cpu-1", "output.uri": f"file://{tmp_path}/runs",
        "data.train.uri": f"file://{data}", "data.train.split": "null", "data.eval.uri": f"file://{data}",
        "data.eval.split": "null", "training.steps": "1", "training.batchSize": "8", "training.sequenceLength": "256",
        "rollout.maxNewTokens": "4",
    }  # fmt: skip
    program, name = str(BENCHMARKS / "reference_runs" / "reference_runs.py"), "qwen25-gsm8k-grpo"
    words = [word for path, value in changes.items() for word in ("--set", f"{path}={value}")]
    started = [sys.executable, program, "start", name, "--here", "--seeds", "4", *words]
    assert subprocess.run(started, capture_output=True, text=True, cwd=tmp_path).returncode == 0
    judged = [sys.executable, program, "judge", name, f"{tmp_path}/runs/{name}-s4"]
    done = subprocess.run(judged, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, "not comparable: 0.0 % before training" in done.stdout) == (3, True), done.stdout


def test_a_trial_of_the_learning_curves_trains(tmp_path: Path) -> None:
    """Three steps of `sorting`, from `random://tiny`."""
    sys.path.append(str(BENCHMARKS / "learning"))
    import trial as learning  # it is in no package
    from tasks import TASKS

    task = TASKS["sorting"]
    known = task.trial("grpo")

    def short(place: Any) -> dict[str, Any]:
        spec = known.spec(place)
        training = {**spec["training"], "steps": 3, "batchSize": 8}
        return {**spec, "model": {"uri": "random://tiny"}, "training": training}

    outcome = learning.perform(task, replace(known, spec=short, needs=()), 0, tmp_path)
    assert outcome.steps == 3
    assert len(outcome.curve) >= 2
    assert outcome.cpu_seconds > 0
