"""Compile MaxText's own train step for a slice that is not here, and write down what the TPU compiler says.

    MAXTEXT_PYTHON benchmarks/tpu/maxtext_program.py --flags='--xla_name=value …' v6e-16 OUT -- model_name=llama3.1-8b …

Runs in MaxText's environment, not ours: `pip install --no-deps maxtext==0.2.2` beside the JAX and libtpu of ours, or
the compilers differ. All arguments behind `--` are MaxText's own. OUT.hlo.txt is the program, OUT.json its memory by
kind.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

SETTINGS = ("base_output_directory=/tmp/maxtext", "run_name=compiled", "enable_checkpointing=false",
    "dataset_type=synthetic", "skip_jax_distributed_system=true", "compile_topology_num_slices=1")  # fmt: skip
"""What MaxText asks of every run, and no program depends on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accelerator")
    parser.add_argument("out")
    parser.add_argument("--flags", default="")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    os.environ |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TPU_STDERR_LOG_LEVEL": "3"}
    import maxtext
    from maxtext.trainers.pre_train import train_compile

    compile_step = train_compile.jit_and_compile

    def kept(*args: Any, **named: Any) -> Any:
        compiled = compile_step(*args, **named)
        Path(f"{options.out}.hlo.txt").write_text(compiled.as_text())
        memory = compiled.memory_analysis()
        sizes = {name: getattr(memory, name) for name in dir(memory) if name.endswith("_in_bytes")}
        Path(f"{options.out}.json").write_text(json.dumps(sizes))
        return compiled

    train_compile.jit_and_compile = kept
    base = str(Path(maxtext.__file__).parent / "configs" / "base.yml")
    flags = [f"compile_xla_flags={options.flags}"] if options.flags else []
    train_compile.main(
        ["train_compile", base, f"compile_topology={options.accelerator}", *SETTINGS, *flags, *options.settings]
    )


if __name__ == "__main__":
    main()
