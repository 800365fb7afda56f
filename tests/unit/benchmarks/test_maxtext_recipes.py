"""The comparison with MaxText's recipes: the shapes, what MaxText is given, and how its program is read.

Neither compiler runs here: MaxText's Python is a script that writes down what it was given, and a small program.
"""

import argparse
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "tpu"))

import tpu_programs
from maxtext_recipes import RECIPES

from ptapi.accelerators import compiler_flags
from pttrainer.preflight.memory import formula
from pttrainer.preflight.timing.program_time import row_seconds

MAXTEXT = """#!{python}
import json, sys
from pathlib import Path
_, flags, accelerator, out, _, *settings = sys.argv[1:]
memory = {{"peak_memory": 9 * 2**30, "host_temp_size": 8 * 2**30, "argument_size": 2**30, "temp_size": 2 * 2**30}}
sizes = {{name + "_in_bytes": size for name, size in {{"output_size": 0, "alias_size": 0, **memory}}.items()}}
Path(out + ".json").write_text(json.dumps(sizes))
Path(out + ".hlo.txt").write_text(Path({program!r}).read_text())
Path({given!r}).write_text(json.dumps([flags, accelerator, dict(each.split("=", 1) for each in settings)]))
"""
PROGRAM = """
ENTRY %main () -> f32[] {
  %splash_mha_fwd.1 = bf16[2,64,8192,128]{3,2,1,0} custom-call(), custom_call_target="tpu_custom_call"
  %splash_mha_dkv.1 = bf16[2,8,8192,128]{3,2,1,0} custom-call(), custom_call_target="tpu_custom_call"
}
"""


def options(*words: str) -> argparse.Namespace:
    return tpu_programs.options_of([*words])


@pytest.mark.parametrize("name", RECIPES)
def test_our_step_of_each_recipe_fits_by_the_formula(name: str) -> None:
    of = tpu_programs.shapes(options("--recipe", name))
    memory = formula.memory(of)
    assert of.spec.training.remat != "auto"
    assert memory.peak <= memory.available
    assert RECIPES[name].rows * RECIPES[name].sequence % of.slice.total_devices == 0  # MaxText counts rows by device


def test_maxtext_gets_the_recipe_and_our_shape(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(PROGRAM)
    maxtext, given = tmp_path / "python", tmp_path / "given"
    maxtext.write_text(MAXTEXT.format(python=sys.executable, program=str(tmp_path / "program"), given=str(given)))
    maxtext.chmod(0o755)
    recipe = options("--recipe", "llama3.1-70b-tpu7x-128", "--maxtext", str(maxtext), "--maxtext-flags=--xla_own=1")
    row = tpu_programs.maxtext_row(recipe)
    flags, accelerator, settings = json.loads(given.read_text())
    assert accelerator == "tpu7x-128"
    assert flags.endswith("--xla_tpu_use_single_sparse_core_for_all_gather_offload=true --xla_own=1")
    assert (settings["per_device_batch_size"], settings["max_target_length"]) == ("2.0", "8192")
    assert (settings["remat_policy"], settings["context"]) == ("custom", "device")  # the recipe's have the last word
    of = tpu_programs.shapes(recipe)
    fused, apart = row_seconds(of, "fused"), row_seconds(of, "apart")
    assert "splash_mha_dq" in apart
    assert "splash_mha_dq" not in fused
    seconds = 2 * (fused["splash_mha_fwd"] + fused["splash_mha_dkv"])
    assert row.startswith(f"| MaxText | 3.0 | {seconds:.2f} | {seconds:.2f} | attention's kernels {seconds:.2f} |")


def test_a_job_of_ones_own_keeps_its_options() -> None:
    own = options("v5p-16", "--rows", "16", "--maxtext-flags=--xla_own=1")
    assert (own.remat, own.rows, own.maxtext_flags, own.maxtext_setting) == ("full", 16, "--xla_own=1", [])
    assert options("--recipe", "llama3.1-8b-v5p-16", "--remat", "full").remat == "full"


@pytest.mark.parametrize(("words", "is_there"), [((), True), (("--without-slow",), False)])
def test_neither_side_has_the_slow_flag_if_asked(words: tuple[str, ...], *, is_there: bool) -> None:
    of = options("--recipe", "llama3.1-8b-v6e-16", *words)
    assert (compiler_flags.VMEM in tpu_programs.maxtext_flags(of)) is is_there
    assert "--xla_enable_async_all_gather=true" in tpu_programs.maxtext_flags(of)
    assert of.without_slow is not is_there
