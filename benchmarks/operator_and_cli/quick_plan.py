"""What `ptctl plan --quick` costs: wall and CPU seconds of the whole command, for jobs that fit and one that does not.

    python benchmarks/operator_and_cli/quick_plan.py [--runs 10]

The median of the runs, after one that is not counted (disk cache, bytecode). A shared machine makes wall time longer;
CPU seconds hardly.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LORA: dict[str, Any] = {"lora": {"rank": 16}}
QLORA: dict[str, Any] = {**LORA, "quantization": {"weights": "nf4"}}
JOBS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "SFT 8B": ("llama3.1-8b", "v6e-16", "sft", {"batchSize": 16}),
    "GRPO 70B": ("llama3.1-70b", "v5p-128", "grpo", {"batchSize": 64}),
    "QLoRA MoE 30B": ("qwen3-30b-a3b", "v5e-64", "sft", {"batchSize": 64, **QLORA}),
    "DPO 8B": ("llama3.1-8b", "v5p-16", "dpo", {"batchSize": 16}),
    "SFT 70B, does not fit": ("llama3.1-70b", "v6e-16", "sft", {"batchSize": 16}),
}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    print("| job | chips | exit code | wall s | CPU-s |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, chips, algorithm, training) in JOBS.items():
            file = Path(folder) / "job.json"
            file.write_text(json.dumps(_job(model, chips, algorithm, training)))
            command = [sys.executable, "-m", "ptctl", "plan", "-f", str(file), "--quick"]
            _, *counted = [_measured(command) for _ in range(runs + 1)]
            wall, cpu, codes = zip(*counted, strict=True)
            print(f"| {name} | {chips} | {codes[0]} | {statistics.median(wall):.2f} | {statistics.median(cpu):.2f} |")


def _job(model: str, chips: str, algorithm: str, training: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "model": {"uri": f"random://{model}"},
        "algorithm": {algorithm: {}},
        "data": {"train": {"uri": "gs://bucket/data.jsonl"}},
        "training": {"sequenceLength": 4096, **training},
        "accelerator": {"type": chips},
        "output": {"uri": "gs://bucket/runs"},
    }
    if algorithm == "grpo":
        spec["rewards"] = [{"builtin": "gsm8k"}]
    return {
        "apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": "asked"}, "spec": spec
    }  # fmt: skip


def _measured(command: list[str]) -> tuple[float, float, int]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    code = subprocess.run(command, capture_output=True).returncode
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code


if __name__ == "__main__":
    main()
