"""What XLA flags do to a train step, by the TPU compiler: memory and estimated seconds, without a TPU.

    .venv-aot/bin/python benchmarks/tpu/tpu_programs.py v5p-16 --rows 32 --length 4096
    .venv-aot/bin/python benchmarks/tpu/tpu_programs.py v6e-16 --rows 48 --length 8192 --flag=--xla_name=value
    .venv-aot/bin/python benchmarks/tpu/tpu_programs.py v5p-16 --maxtext PYTHON --maxtext-setting=NAME=VALUE

Two programs of the same job, in one run: with the flags that programs need and no others, and with those of
`ptapi.accelerators.compiler_flags` (and `--flag`, given last). With MaxText's own Python (`maxtext_program.py`), its
step for the same rows and length is the third: full recomputation, splash, and the settings and `--maxtext-flags`
given. They are compiled as training compiles them, which takes two to five CPU-minutes each and 3 GB. How seconds are
estimated, and how far to trust them: `pttrainer.preflight.timing.program_time`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ptapi import accelerators
from ptapi.accelerators import compiler_flags
from ptapi.spec import PostTrainJobSpec
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.timing.collectives import collectives
from pttrainer.preflight.timing.program_time import ProgramTime, links

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accelerator")
    parser.add_argument("--model", default="llama3.1-8b")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--flag", action="append", default=[], help="one more flag, as --flag=--xla_name=value")
    parser.add_argument("--only", choices=["required", "ours"], help="compile this program here, and no other")
    parser.add_argument("--remat", default="full", help="ours; MaxText's is remat_policy among its settings")
    parser.add_argument("--algorithm", default="sft", choices=["sft", "dpo", "grpo"])
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank, not all weights")
    parser.add_argument("--scoring", action="store_true", help="the pass that scores a rollout, not the train step")
    parser.add_argument("--keep", type=Path, help="folder for the programs' text")
    parser.add_argument("--maxtext", metavar="PYTHON", help="MaxText's Python: compile its step, too")
    parser.add_argument("--maxtext-flags", default="", help="XLA flags of MaxText's step, in one word")
    parser.add_argument("--maxtext-setting", action="append", default=[], help="one of MaxText's own, as NAME=VALUE")
    options = parser.parse_args()
    if options.maxtext is not None and (options.algorithm != "sft" or options.lora or options.scoring):
        parser.error("--maxtext: its step trains all weights by sft; leave --algorithm, --lora and --scoring")
    if options.scoring and options.algorithm != "grpo":
        parser.error(f"--scoring: {options.algorithm} scores no rollout; accepted: --algorithm grpo")
    if options.only is None:
        print("| flags | peak GiB | estimated s, without attention's kernels | seconds by kind | sent, GiB a device |")
        print("| --- | --- | --- | --- | --- |", flush=True)
        for only in ("required", "ours"):  # a process each, because compilers keep memory
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", only], check=True)
        if options.maxtext is not None:
            print(maxtext_row(options), flush=True)
        return
    print(row(options), flush=True)


def row(options: argparse.Namespace) -> str:
    """Compile the job's train step with one set of flags; return its row of the table."""
    tpu_topology.prepare_environment()
    import jax

    from pttrainer.preflight.compiler.programs import LOWERED
    from pttrainer.preflight.shapes.job_shapes import shapes_of
    from pttrainer.preflight.shapes.passes import SCORING, TRAIN_STEP
    from pttrainer.runtime.distributed import sharding

    of, is_ours = shapes_of(_spec(options)), options.only == "ours"
    flags = compiler_flags.flags(of.slice.generation, options.flag if is_ours else (), required_only=not is_ours)
    mesh = sharding.make_mesh(of.shape, tpu_topology.devices(of.training_slice))
    with jax.set_mesh(mesh):
        compiled = next(LOWERED[SCORING if options.scoring else TRAIN_STEP](of, mesh)).program.compile(
            compiler_options=flags
        )
    text = compiled.as_text()
    if options.keep is not None:
        (options.keep / f"{options.accelerator}-{options.only}.hlo.txt").write_text(text)
    return _row(options.only, text, compiled.memory_analysis().peak_memory_in_bytes, of.slice)


def maxtext_row(options: argparse.Namespace) -> str:
    """Compile MaxText's train step of the same shape in its own environment; return its row of the table."""
    slice_ = accelerators.resolve(options.accelerator)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "maxtext"
        shape = (
            f"model_name={options.model}",
            f"per_device_batch_size={options.rows / slice_.total_devices}",
            f"max_target_length={options.length}",
        )
        ours = ("ici_fsdp_parallelism=-1", "remat_policy=full", "attention=flash", "weight_dtype=float32")
        program = Path(__file__).with_name("maxtext_program.py")
        words = [options.maxtext, program, f"--flags={options.maxtext_flags}", options.accelerator, out]
        subprocess.run([*words, "--", *shape, *ours, *options.maxtext_setting], check=True, stdout=subprocess.DEVNULL)
        text, peak = Path(f"{out}.hlo.txt").read_text(), json.loads(Path(f"{out}.json").read_text())["peak"]
    return _row("MaxText", text, peak, slice_)


def _row(name: str, text: str, peak: int, slice_: accelerators.Slice) -> str:
    time = ProgramTime(text, slice_.generation, links(slice_))
    total = time.seconds
    largest = sorted(time.by_kind.items(), key=lambda pair: -pair[1])[:6]
    kinds = "; ".join(f"{kind} {seconds:.2f}" for kind, seconds in largest)
    sent = "; ".join(f"{one.count} {one.kind} {one.bytes / GIB:.1f}" for one in collectives(text, slice_.total_devices))
    return f"| {name} | {peak / GIB:.1f} | {total:.2f} | {kinds} | {sent} |"


def _spec(options: argparse.Namespace) -> PostTrainJobSpec:
    training = {"batchSize": options.rows, "sequenceLength": options.length, "remat": options.remat}
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
