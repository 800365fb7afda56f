"""The formula of preflight against the TPU compiler: measures configurations, and writes the table of the docs.

    python benchmarks/preflight/preflight_formula.py --measure   # what is missing: a minute each
    python benchmarks/preflight/preflight_formula.py             # the table, from what was measured

Needs libtpu for --measure (`pip install -e '.[tpu-compiler]'`). Every configuration is compiled at its real depth and
width, at the lowest optimisation level, and nothing is allocated. `held` ones were not looked at when the formula's
numbers were chosen. What the compiler said is kept in `preflight_formula.json`, so that the table can be made again
when the formula changes.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from pttrainer.preflight.shapes import tpu_topology

MEASURED = Path(__file__).with_suffix(".json")
DRAWN = Path(__file__).with_name("preflight_draws.json")
TOWERS: dict[str, Any] = json.loads(Path(__file__).with_name("towers.json").read_text())
"""`config.json` of towers as they were released, each before a decoder too small to matter."""
WITH_IMAGES = "-with-images"
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "preflight.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
LORA: dict[str, Any] = {"lora": {"rank": 16}}
QLORA: dict[str, Any] = {**LORA, "quantization": {"weights": "nf4"}}
GIB = 2**30


class Case(NamedTuple):
    """One configuration. model: a preset, one of `TOWERS`, or a preset with the tower of the same family.

    held: kept out of the fit. options: the algorithm's.
    """

    model: str
    accelerator: str
    algorithm: str
    training: dict[str, Any]
    slices: int = 1
    held: bool = False
    options: dict[str, Any] = {}

    @property
    def name(self) -> str:
        slices = "" if self.slices == 1 else f"{self.slices} x "
        how = f" {json.dumps(self.options, sort_keys=True)}" if self.options else ""
        return (
            f"{self.model} {self.algorithm}{how} {slices}{self.accelerator} {json.dumps(self.training, sort_keys=True)}"
        )

    @property
    def has_images(self) -> bool:
        """With one for each row."""
        return self.model in TOWERS or self.model.endswith(WITH_IMAGES)


def _case(model: str, accelerator: str, algorithm: str, rows: int, length: int, **more: Any) -> Case:
    slices, held = more.pop("slices", 1), more.pop("held", False)
    return Case(model, accelerator, algorithm, {"batchSize": rows, "sequenceLength": length, **more}, slices, held)


CHOSEN = (
    _case("llama3.1-8b", "v5e-16", "sft", 16, 4096),
    _case("llama3.1-8b", "v5e-16", "sft", 32, 4096),
    _case("llama3.1-8b", "v5e-16", "sft", 64, 4096, microBatchSize=16),
    _case("llama3.1-8b", "v5p-16", "grpo", 16, 4096),
    _case("llama3.1-8b", "v5e-8", "sft", 8, 4096, **LORA),
    _case("llama3.1-8b", "v5e-8", "sft", 8, 4096, **QLORA),
    _case("qwen3-4b", "v6e-8", "sft", 8, 8192),
    _case("qwen3-0.6b", "v6e-4", "grpo", 32, 2048, microBatchSize=8),
    _case("gemma3-4b", "v5e-16", "sft", 16, 4096),
    _case("gemma2-9b", "v6e-16", "sft", 16, 4096),
    _case("qwen3-30b-a3b", "v5p-64", "sft", 32, 4096),
    *(_case("qwen3-30b-a3b", "v6e-64", "sft", rows, 4096, remat="full") for rows in (192, 768)),
    _case("gpt-oss-20b", "v6e-64", "sft", 256, 4096, remat="full"),
    _case("qwen3-30b-a3b", "v6e-32", "grpo", 32, 4096, **LORA),
    _case("llama3.1-70b", "v5p-128", "grpo", 64, 4096, held=True),
    _case("llama3.1-70b", "v6e-64", "sft", 16, 4096, parallelism={"fsdp": 16, "tensor": 4}),
    _case("llama3.1-70b", "v6e-16", "sft", 16, 2048, **QLORA),
    _case("llama3.1-8b", "v5e-16", "sft", 32, 4096, slices=2),
    _case("mistral-7b", "v5e-16", "sft", 8, 4096, parallelism={"fsdp": 8, "tensor": 2}, held=True),
    _case("llama3.2-1b", "v5e-4", "sft", 8, 2048),
    _case("qwen3-32b", "v5p-32", "sft", 16, 4096, **LORA),
    _case("llama3.2-3b", "v6e-8", "sft", 8, 2048, remat="none"),
    _case("qwen3-8b", "v6e-16", "sft", 8, 8192, parallelism={"fsdp": 8, "sequence": 2}, held=True),
    _case("llama3.1-8b", "v6e-8", "sft", 1, 131072, remat="full", parallelism={"fsdp": 1, "sequence": 8}),
    _case("llama3.1-70b", "v5p-128", "sft", 8, 131072, parallelism={"fsdp": 8, "sequence": 8}, held=True),
    _case("gemma3-12b", "v6e-16", "sft", 2, 65536, parallelism={"fsdp": 2, "sequence": 8}, held=True),
    _case("qwen3-30b-a3b", "v5p-16", "sft", 2, 65536, parallelism={"fsdp": 2, "sequence": 4}, held=True),
    _case("qwen3-8b", "v6e-8", "sft", 2, 32768, parallelism={"fsdp": 2, "sequence": 4}, held=True, **LORA),
    _case("qwen3-30b-a3b", "v5p-64", "sft", 32, 4096, parallelism={"fsdp": 8, "expert": 4}),
    _case("qwen3-14b", "v6e-32", "grpo", 64, 2048),
    _case("llama3.1-8b", "v5p-16", "dpo", 16, 4096, held=True),
    _case("gemma3-12b", "v5p-32", "sft", 16, 4096, held=True),
    _case("qwen3-8b", "v6e-16", "grpo", 32, 4096, **LORA),
    _case("gemma3-27b", "v6e-16", "dpo", 16, 2048, **QLORA),
    _case("qwen3-1.7b", "v6e-4", "sft", 16, 4096, microBatchSize=8, held=True),
    _case("gemma3-12b", "v6e-32", "sft", 32, 4096, **LORA),
    _case("qwen3-30b-a3b", "v5e-64", "sft", 64, 2048, **QLORA),
    _case("qwen3-8b", "v5p-32", "sft", 16, 16384, held=True),
    _case("llama3.2-3b", "v5e-32", "dpo", 64, 2048, microBatchSize=32),
    _case("qwen3-14b", "v5p-32", "dpo", 16, 4096, held=True),
    _case("gemma3-27b", "v6e-64", "sft", 64, 4096, held=True),
    _case("gemma2-27b", "v6e-16", "sft", 16, 2048, **LORA),
    _case("mistral-7b", "v5e-8", "grpo", 16, 4096, microBatchSize=8, **QLORA),
    _case("qwen3-4b", "v6e-8", "dpo", 16, 4096, **QLORA),
    _case("gemma3-4b", "v5p-8", "grpo", 16, 4096, held=True, **LORA),
    _case("llama3.1-8b", "v5e-4", "sft", 16, 2048, microBatchSize=4, held=True, **QLORA),
    _case("qwen3-30b-a3b", "v5p-32", "sft", 32, 4096, **LORA),
    _case("qwen3-32b", "v6e-8", "grpo", 32, 2048, microBatchSize=8, held=True, **QLORA),
    _case("llama3.2-3b", "v5p-8", "dpo", 32, 2048, microBatchSize=8, **LORA),
    _case("mistral-7b", "v5e-8", "sft", 8, 4096, parallelism={"fsdp": 4, "tensor": 2}, held=True, **LORA),
    _case("mistral-7b", "v6e-4", "sft", 8, 2048, **QLORA),
    _case("qwen3-8b", "v6e-8", "dpo", 32, 2048, microBatchSize=8, held=True, **LORA),
    _case("mistral-7b", "v6e-8", "dpo", 16, 2048, held=True, **QLORA),
    _case("gpt-oss-20b", "v6e-32", "sft", 32, 4096),
    _case("gpt-oss-20b", "v5e-32", "sft", 32, 4096),
    *(_case("mixtral-8x7b", on, "sft", rows, 4096, remat="full") for on, rows in (("v6e-256", 3072), ("v5p-64", 64))),
    _case("mixtral-8x22b", "v5p-256", "sft", 256, 4096, remat="full"),
    *(_case(model, "v5p-128", "sft", 128, 4096, remat="full") for model in ("llama4-scout", "glm4.5-air")),
    _case("qwen3-next-80b", "v5p-128", "sft", 128, 4096, remat="full"),
    _case("qwen3-235b-a22b", "v5p-256", "sft", 256, 4096, remat="full"),
    _case("mixtral-8x22b", "v6e-256", "sft", 512, 4096, remat="full"),
    _case("mixtral-8x7b", "v6e-32", "sft", 32, 4096, **LORA),
    _case("qwen3-30b-a3b", "v5e-256", "sft", 512, 4096, remat="full", held=True),
    _case("mixtral-8x22b", "v5p-128", "sft", 128, 4096, held=True, **LORA),
    _case("glm4.5", "v5p-512", "sft", 512, 4096, remat="full", held=True),
    _case("gemma4-e2b", "v6e-8", "sft", 8, 2048),
    _case("gemma4-e4b", "v6e-8", "sft", 8, 2048, **QLORA),
    _case("gemma4-26b-a4b-with-images", "v6e-16", "grpo", 16, 2048, remat="full", **LORA),
    *(
        _case(f"{tower}-tower", "v6e-4", "sft", rows, length, remat="full", vision=vision, **how)
        for tower, rows, length in (("gemma3", 32, 1024), ("gemma4", 32, 1024), ("llama4", 8, 4096))
        for vision, how in (("frozen", {}), ("all", {}), ("lora", LORA))
    ),
    _case("gemma3-tower", "v5e-4", "sft", 32, 1024, remat="full", vision="frozen", held=True),
    *(_case("gemma3-tower", "v5e-4", "sft", rows, 1024, remat="full", vision="frozen") for rows in (4, 8)),
    _case("gemma3-tower", "v5e-4", "sft", 16, 1024, remat="full", vision="all", held=True),
    _case("gemma4-tower", "v5e-8", "sft", 32, 1024, remat="full", vision="frozen"),
    _case("gemma4-tower", "v5e-4", "sft", 32, 1024, remat="full", vision="frozen"),
    _case("gemma4-tower", "v5e-4", "sft", 16, 1024, remat="full", vision="all", held=True),
    _case("gemma4-tower", "v5p-8", "sft", 32, 1024, remat="full", vision="frozen", held=True),
    _case("llama4-tower", "v5e-8", "sft", 8, 4096, remat="full", vision="lora", **LORA),
)
CASES = (*CHOSEN, *(Case(**each) for each in (json.loads(DRAWN.read_text()) if DRAWN.exists() else ())))
"""With those that were drawn (`preflight_draws.py`)."""


def subject_of(case: Case) -> Any:
    """The case as preflight sees a job."""
    from ptapi.spec import PostTrainJobSpec
    from pttrainer.models import from_hf
    from pttrainer.preflight.shapes.job_shapes import shapes_of

    body: dict[str, Any] = {
        "model": {"uri": f"random://{case.model}", "images": case.has_images},
        "algorithm": {case.algorithm: case.options},
        "data": {"train": {"uri": "file:///data.jsonl"}},
        "training": case.training,
        "accelerator": {"type": case.accelerator, "slices": case.slices},
        "output": {"uri": "file:///runs"},
    }
    config = from_hf(_raw(case.model), images=True) if case.has_images else None
    return shapes_of(PostTrainJobSpec.model_validate(body), config)


def _raw(model: str) -> dict[str, Any]:
    """`config.json` of a model with images."""
    from pttrainer.models.families.published_shapes import RAW

    if model in TOWERS:
        return dict(TOWERS[model])
    preset = model.removesuffix(WITH_IMAGES)
    around = TOWERS[f"{preset.partition('-')[0]}-tower"]
    both_ways = "use_bidirectional_attention"
    return {**around, "text_config": {**RAW[preset], both_ways: around["text_config"][both_ways]}}


def measured() -> dict[str, Any]:
    """What the compiler said before, by the case's name."""
    kept: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    return kept


def measure(case: Case) -> dict[str, Any]:
    """What the compiler says, GiB per device."""
    from pttrainer.preflight.compiler import compile

    before = time.process_time()
    compiled = compile.train_step(subject_of(case), "fast")
    return {
        "fits": compiled.fits,
        "peak": round(compiled.peak / GIB, 3),
        "arguments": round(compiled.arguments / GIB, 4),
        "cpuSeconds": round(time.process_time() - before, 1),
        "hostGib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def table(measured: dict[str, Any]) -> str:
    """Markdown, a line per case that was measured."""
    from pttrainer.preflight.memory import formula

    lines = [
        "| configuration | compiler | formula | difference | CPU-seconds | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in (case for case in CASES if case.name in measured):
        compiled, memory = measured[case.name], formula.memory(subject_of(case)).program
        computed, peak = memory.peak / GIB, compiled["peak"]
        refused = "" if compiled["fits"] else " (refused)"
        lines.append(
            f"| {case.name} | {peak:.2f}{refused} | {computed:.2f} | {computed / peak - 1:+.1%} | "
            f"{compiled['cpuSeconds']:.0f} | {'held out' if case.held else ''} |"
        )
    return "\n".join(lines)


def with_table(page: str, table: str) -> str:
    """The page with this table between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="compile what is missing")
    parser.add_argument("--case", type=int, help="compile this one and print what the compiler said")
    options = parser.parse_args()
    tpu_topology.prepare_environment()
    if options.case is not None:
        print(json.dumps(measure(CASES[options.case])))
        return
    known = measured()
    for number, case in enumerate(CASES if options.measure else ()):
        if case.name not in known:
            print(case.name, file=sys.stderr, flush=True)
            # A process for each: its host memory is measured, and what the compiler keeps does not add up.
            words = [sys.executable, __file__, "--case", str(number)]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            known[case.name] = json.loads(done.stdout.splitlines()[-1])
            MEASURED.write_text(json.dumps(known, indent=1) + "\n")
    DOCS.write_text(with_table(DOCS.read_text(), table(known)))
    print(table(known))


if __name__ == "__main__":
    main()
