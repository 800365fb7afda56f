"""Preflight with the real TPU compiler, no TPU present: a job that fits, and one that is hopeless, each in a process.

Needs libtpu: `make aot`.
"""

import importlib.util
import json
import math
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.builders.peers import image_models
from tests.builders.scripts import load_script
from tests.builders.trainer.preflight import job, spec

from ptapi.load import dump_job
from ptapi.spec import ModelSpec, Pathways
from pttrainer.errors import ConfigError
from pttrainer.models import from_hf
from pttrainer.models.families.vision_presets import VISION_PRESETS
from pttrainer.preflight.compiler import compile, compiler_process
from pttrainer.preflight.memory import formula, layer_memory, resident
from pttrainer.preflight.shapes import rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.preflight.shapes.passes import CUT, PUT, TRAIN_STEP, TRANSFER

if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed; hint: make aot", allow_module_level=True)

tpu_topology.prepare_environment()
benchmark = load_script("benchmarks/preflight/preflight_formula.py")
AGAIN = [
    case
    for case in benchmark.CASES
    if (case.model, case.accelerator, case.training.get("vision")) == ("gemma3-tower", "v5e-4", "all")
    or (
        case.training.get("lora")
        and (case.model, case.accelerator) in {("gemma3-4b", "v5litepod-4"), ("llama3.1-8b", "v5e-8")}
        and "quantization" not in case.training
    )
]
"""Adapters beside a head that is the embedding, and beside one that is not; a tower. In half a minute each."""
ROWS = {"batchSize": 8, "sequenceLength": 256}
GENERATIONS = ("v5e-4", "v6e-4")
OTHER_TOWERS = sorted({*VISION_PRESETS} - {"tiny-gemma3"})
_TILES = benchmark.TOWERS["llama4-tower"]
SMALL_TILES = {
    **_TILES,
    "vision_config": {
        "model_type": "llama4_vision_model", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 48, "patch_size": 8, "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 64, "projector_output_dim": 64, "vision_output_dim": 64,
    },
}  # fmt: skip
"""Llama 4's: pictures of several tiles, of nine tokens each."""


def preflight(folder: Path, *words: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    file = folder / "job.yaml"
    file.write_text(dump_job(job(**fields)))
    done = subprocess.run(
        [sys.executable, "-m", "pttrainer", "preflight", str(file), "-o", "json", *words],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=900,
    )
    assert done.stderr == ""  # not even libtpu's complaints that there is no TPU
    return done.returncode, json.loads(done.stdout)


def test_a_job_that_fits_with_room_is_accepted_by_the_fast_compile(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"batchSize": 8, "sequenceLength": 2048, "steps": 10}
    code, verdict = preflight(tmp_path, model="qwen3-0.6b", accelerator="v5e-4", **fields)
    assert code == 0
    assert (verdict["fits"], verdict["stage"]) == (True, "fast")
    computed, compiled = verdict["programs"]
    assert computed["peak"] == pytest.approx(compiled["peak"], rel=0.10)
    assert computed["arguments"] == pytest.approx(compiled["arguments"], rel=0.01)
    assert compiled["temporaries"] > 0
    assert verdict["collectives"][0]["bytes"] > 0
    assert verdict["estimate"]["iciSeconds"] > 0
    assert verdict["estimate"]["chipHours"] > 0
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 3 * 2**20  # kilobytes


def test_a_hopeless_job_is_refused_with_what_it_needs_and_what_there_is(tmp_path: Path) -> None:
    code, verdict = preflight(tmp_path, model="llama3.1-8b", accelerator="v5e-4", batchSize=8, sequenceLength=2048)
    assert code == 70
    assert not verdict["fits"]
    refused = verdict["programs"][-1]
    assert (refused["stage"], refused["fits"]) == ("fast", False)
    assert refused["peak"] > verdict["available"] == int(15.75 * 2**30)
    assert refused["compileSeconds"] < 120
    assert any(option["fits"] for option in verdict["options"])
    assert verdict["smallest"]


def test_weights_on_their_way_to_other_devices_take_what_is_counted_for_them() -> None:
    fields = {"batchSize": 32, "sequenceLength": 2048, "rollout": {"maxNewTokens": 1024, "placement": "disaggregated"}}
    shared = spec("qwen3-0.6b", "v5e-8", algorithm="grpo", **fields)
    of = shapes_of(shared.model_copy(update={"pathways": Pathways(enabled=True)}))
    programs = compile.compiled(of, TRANSFER, "fast")
    counted = next(buffer.bytes for buffer in resident.resident_buffers(of) if buffer.name == resident.UNDER_WAY)
    embedding, tensor = 2 * 151_936 * 1024, rollout_shapes.sampler(of).axis("tensor")
    assert tensor == 2
    assert programs[CUT].output == pytest.approx(embedding / 4, rel=0.01)
    assert programs[PUT].output == pytest.approx(embedding / tensor, rel=0.01)
    assert programs[PUT].peak - programs[PUT].output == pytest.approx(counted, rel=0.02)


def test_what_waits_in_host_memory_is_no_memory_of_the_chip() -> None:
    """The compiler's own peak is of arguments and the larger of temporaries on the chip and in its host's memory."""
    rows = {"batchSize": 64, "sequenceLength": 2048, "remat": "offload-qkv-context"}
    of = shapes_of(spec("qwen3-0.6b", "v6e-4", **rows))
    program = compile.train_step(of, "fast")
    by_compiler = program.arguments + layer_memory.on_host(of)
    assert formula.memory(of).program.peak < program.peak < 0.7 * by_compiler


def test_a_step_compiles_for_tpu7x_whose_compiler_ends_itself_without_our_flags() -> None:
    of = shapes_of(spec("tiny", "tpu7x-8", batchSize=8, sequenceLength=256))
    assert compile.compiled(of, TRAIN_STEP, "fast")[TRAIN_STEP].fits


@pytest.mark.parametrize("accelerator", GENERATIONS)
def test_a_step_with_images_compiles_with_a_picture_for_each_row(tmp_path: Path, accelerator: str) -> None:
    text = spec("tiny", accelerator, batchSize=8, sequenceLength=256)
    uri = f"file://{image_models.write_trainable(tmp_path / 'model')}"
    with_images, without = (
        compile.compiled(
            shapes_of(text.model_copy(update={"model": ModelSpec(uri=uri, images=images)})), TRAIN_STEP, "fast"
        )[TRAIN_STEP]
        for images in (True, False)
    )
    assert with_images.fits
    pixels_of_a_device = 2 * image_models.SIDE**2 * 3 * 4
    assert with_images.arguments - without.arguments > pixels_of_a_device


@pytest.mark.parametrize("accelerator", GENERATIONS)
@pytest.mark.parametrize("name", [*OTHER_TOWERS, "llama4"])
def test_so_does_one_whose_pictures_have_many_sizes_or_tiles(name: str, accelerator: str) -> None:
    raw = SMALL_TILES if name == "llama4" else VISION_PRESETS[name].config
    config = from_hf(raw, images=True)
    step = compile.compiled(shapes_of(spec(name, accelerator, **ROWS, vision="all"), config), TRAIN_STEP, "fast")
    of_text = formula.memory(shapes_of(spec(name, accelerator, **ROWS), from_hf(raw)))
    assert step[TRAIN_STEP].fits
    assert config.vision is not None
    pixels_of_a_device = 2 * math.prod(config.vision.pixels_shape(ROWS["sequenceLength"])) * 4
    assert step[TRAIN_STEP].arguments - of_text.program.arguments > pixels_of_a_device


@pytest.mark.parametrize("case", AGAIN, ids=lambda case: case.name)
def test_the_compiler_still_says_what_the_table_of_the_formula_keeps(case: Any) -> None:
    """Programs change, and a figure of an earlier one would go on to vouch for the formula."""
    kept = json.loads(benchmark.MEASURED.read_text())[case.name]
    assert benchmark.measure(case)["peak"] == pytest.approx(kept["peak"], rel=0.02)


def test_a_step_compiled_as_training_does_has_an_estimated_time_and_one_without_optimisation_none() -> None:
    of = shapes_of(spec("tiny", "v6e-4", batchSize=8, sequenceLength=256))
    full, fast = (compile.compiled(of, TRAIN_STEP, level)[TRAIN_STEP] for level in ("full", "fast"))  # type: ignore[arg-type]
    assert full.step_seconds is not None
    assert 1e-5 < full.step_seconds < 1e-2
    assert fast.step_seconds is None


@pytest.mark.parametrize("flag", ["--xla_tpu_no_such_flag=1", "--xla_tpu_enable_latency_hiding_scheduler=perhaps"])
def test_a_flag_that_the_compiler_does_not_take_is_the_jobs_mistake(flag: str) -> None:
    of = shapes_of(spec("tiny", "v5e-4", batchSize=8, sequenceLength=256))
    accelerator = of.spec.accelerator.model_copy(update={"xla_flags": [flag]})
    wrong = replace(of, spec=of.spec.model_copy(update={"accelerator": accelerator}))
    with pytest.raises(ConfigError, match=f"spec.accelerator.xlaFlags: {flag}: the compiler refuses it"):
        compiler_process.compile_in_child(wrong, TRAIN_STEP, "fast")
