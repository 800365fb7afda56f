"""What XLA flags do to a train step, by the TPU compiler: memory and estimated seconds, without a TPU.

    .venv-aot/bin/python benchmarks/tpu/tpu_programs.py v5p-16 --rows 32 --length 4096
    .venv-aot/bin/python benchmarks/tpu/tpu_programs.py v6e-16 --rows 48 --length 8192 --flag=--xla_name=value
    .venv-aot/bin/python benchmarks/tpu/tpu_programs.py v5p-16 --maxtext PYTHON --maxtext-setting=NAME=VALUE
    .venv-aot/bin/python benchmarks/tpu/tpu_programs.py --recipe llama3.1-70b-v5p-128 --maxtext PYTHON

Two programs of the same job, in one run: with the flags that programs need and no others, and with those of
`ptapi.accelerators.compiler_flags` (and `--flag`, given last). With MaxText's own Python (`maxtext_program.py`), its
step for the same rows and length is the third: full recomputation, splash, and the settings and `--maxtext-flags`
given. `--recipe` is the comparison: the shape of one of MaxText's own recipes (`maxtext_recipes.py`), or of one like
them, our step with our flags and `remat: auto`, or the policy that the recipe names, and MaxText's as its recipe has
it. `--without-slow`: both without the flag that makes some of them take an hour. They are compiled as training compiles
them, which takes two to five CPU-minutes each and 3 GB. Attention's kernels are counted by our table of their cycles
for both, with as many runs as each program has. How seconds are estimated, and how far to trust them:
`pttrainer.preflight.timing.program_time`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

from maxtext_recipes import FUSED_BACKWARD, RECIPES

from ptapi.accelerators import compiler_flags
from ptapi.spec import PostTrainJobSpec
from pttrainer.models.attention.splash_blocks import Backward
from pttrainer.preflight.memory import recomputation
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.timing.collectives import collectives
from pttrainer.preflight.timing.program_time import ProgramTime, links, row_seconds

GIB = 2**30
KERNELS = "attention's kernels"


def main() -> None:
    options = options_of(sys.argv[1:])
    if options.only is None:
        print("| flags | peak GiB | estimated s | of them attention's kernels | seconds by kind | sent, GiB a device |")
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
        for only in ("required", "ours") if options.recipe is None else ("ours",):
            # A process each, because compilers keep memory.
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", only], check=True)
        if options.maxtext is not None:
            print(maxtext_row(options), flush=True)
        return
    print(row(options), flush=True)


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Return the options of a command line, with those of the recipe it names; end the process if they are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accelerator", nargs="?")
    parser.add_argument("--recipe", choices=RECIPES, help="MaxText's shape, and its settings and flags")
    parser.add_argument("--model", default="llama3.1-8b")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--sequence", type=int, default=1, help="devices that share a row's tokens")
    parser.add_argument("--flag", action="append", default=[], help="one more flag, as --flag=--xla_name=value")
    parser.add_argument("--only", choices=["required", "ours"], help="compile this program here, and no other")
    parser.add_argument("--remat", help="ours (full, of a recipe auto); MaxText's is remat_policy of its settings")
    parser.add_argument("--algorithm", default="sft", choices=["sft", "dpo", "grpo"])
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank, not all weights")
    parser.add_argument(
        "--without-slow", action="store_true", help=f"neither side with {compiler_flags.VMEM}, which compiles for long"
    )
    parser.add_argument("--scoring", action="store_true", help="the pass that scores a rollout, not the train step")
    parser.add_argument("--keep", type=Path, help="folder for the programs' text")
    parser.add_argument("--maxtext", metavar="PYTHON", help="MaxText's Python: compile its step, too")
    parser.add_argument("--maxtext-flags", default="", help="XLA flags of MaxText's step, in one word")
    parser.add_argument("--maxtext-setting", action="append", default=[], help="one of MaxText's own, as NAME=VALUE")
    options = _with_recipe(parser.parse_args(arguments))
    if options.accelerator is None:
        parser.error("name an accelerator, or one of MaxText's recipes with --recipe")
    if options.maxtext is not None and (options.algorithm != "sft" or options.lora or options.scoring):
        parser.error("--maxtext: its step trains all weights by sft; leave --algorithm, --lora and --scoring")
    if options.scoring and options.algorithm != "grpo":
        parser.error(f"--scoring: {options.algorithm} scores no rollout; accepted: --algorithm grpo")
    return options


def row(options: argparse.Namespace) -> str:
    """Compile the job's train step with one set of flags; return its row of the table."""
    tpu_topology.prepare_environment()
    import jax

    from pttrainer.preflight.compiler.compile import chip_peak
    from pttrainer.preflight.compiler.programs import LOWERED
    from pttrainer.preflight.shapes.passes import SCORING, TRAIN_STEP
    from pttrainer.runtime.distributed import sharding

    of, is_ours = shapes(options), options.only == "ours"
    flags = compiler_flags.flags(of.slice.generation, options.flag if is_ours else (), required_only=not is_ours)
    if options.without_slow:
        flags.pop(compiler_flags.VMEM, None)
    mesh = sharding.make_mesh(of.shape, tpu_topology.devices(of.training_slice))
    with jax.set_mesh(mesh):
        compiled = next(LOWERED[SCORING if options.scoring else TRAIN_STEP](of, mesh)).program.compile(
            compiler_options=flags
        )
    text = compiled.as_text()
    if options.keep is not None:
        (options.keep / f"{options.accelerator}-{options.only}.hlo.txt").write_text(text)
    return _row(options.only, text, chip_peak(compiled.memory_analysis()), of, row_seconds(of))


def maxtext_row(options: argparse.Namespace) -> str:
    """Compile MaxText's train step of the same shape in its own environment; return its row of the table."""
    from pttrainer.preflight.compiler.compile import chip_peak

    of = shapes(options)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "maxtext"
        shape = (
            f"model_name={options.model}",
            f"per_device_batch_size={options.rows / of.slice.total_devices}",
            f"max_target_length={options.length}",
        )
        ours = ("ici_fsdp_parallelism=-1", "remat_policy=full", "attention=flash", "weight_dtype=float32")
        program = Path(__file__).with_name("maxtext_program.py")
        words = [options.maxtext, program, f"--flags={maxtext_flags(options)}", options.accelerator, out]
        subprocess.run([*words, "--", *shape, *ours, *options.maxtext_setting], check=True, stdout=subprocess.DEVNULL)
        text, memory = Path(f"{out}.hlo.txt").read_text(), json.loads(Path(f"{out}.json").read_text())
    if options.keep is not None:
        (options.keep / f"{options.accelerator}-maxtext.hlo.txt").write_text(text)
    return _row(
        "MaxText", text, chip_peak(SimpleNamespace(**memory)), of, row_seconds(of, backward_of(options.maxtext_setting))
    )


def maxtext_flags(options: argparse.Namespace) -> str:
    """Return the XLA flags of MaxText's step, in one word."""
    words = options.maxtext_flags.split()
    return " ".join(word for word in words if not (options.without_slow and compiler_flags.VMEM in word))


def backward_of(settings: Iterable[str]) -> Backward:
    """Return how the kernels of MaxText's attention divide the backward pass with these settings."""
    return "fused" if FUSED_BACKWARD in settings else "apart"


def shapes(options: argparse.Namespace) -> JobShapes:
    """Return the job's shapes, with the policy that `remat: auto` takes."""
    return recomputation.settled(shapes_of(_spec(options)))


def _with_recipe(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options with those of the recipe, if one is named; settings and flags given have the last word."""
    if options.recipe is None:
        return argparse.Namespace(**vars(options) | {"remat": options.remat or "full"})
    recipe = RECIPES[options.recipe]
    given = {
        "remat": options.remat or recipe.remat,
        "maxtext_flags": " ".join([*recipe.flags, options.maxtext_flags]),
        "maxtext_setting": [*recipe.settings, *options.maxtext_setting],
    }
    shape = {name: getattr(recipe, name) for name in ("accelerator", "model", "rows", "length", "sequence")}
    return argparse.Namespace(**vars(options) | shape | given)


def _row(name: str, text: str, peak: int, of: JobShapes, kernels: Mapping[str, float]) -> str:
    slice_ = of.slice
    time = ProgramTime(text, slice_.generation, links(slice_), kernels)
    total = time.seconds
    largest = sorted(time.by_kind.items(), key=lambda pair: -pair[1])[:6]
    kinds = "; ".join(f"{kind} {seconds:.2f}" for kind, seconds in largest)
    sent = "; ".join(f"{one.count} {one.kind} {one.bytes / GIB:.1f}" for one in collectives(text, slice_.total_devices))
    return f"| {name} | {peak / GIB:.1f} | {total:.2f} | {time.by_kind[KERNELS]:.2f} | {kinds} | {sent} |"


def _spec(options: argparse.Namespace) -> PostTrainJobSpec:
    training = {"batchSize": options.rows, "sequenceLength": options.length, "remat": options.remat}
    training["parallelism"] = {"sequence": options.sequence}
    job = {
        "model": {"uri": f"random://{options.model}"},
        "algorithm": {options.algorithm: {}},
        "data": {"train": {"uri": "file:///data.jsonl"}},
        "training": training if options.lora is None else {**training, "lora": {"rank": options.lora}},
        "accelerator": {"type": options.accelerator},
        "output": {"uri": "file:///runs"},
    }
    if options.algorithm == "grpo":
        job["rewards"] = [{"builtin": "exact"}]
    return PostTrainJobSpec.model_validate(job)


if __name__ == "__main__":
    main()
