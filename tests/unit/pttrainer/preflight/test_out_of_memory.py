"""Chip memory that ran out while a job ran: one line that says who took it and what would fit."""

from pathlib import Path

import pytest
import yaml

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.commands.run import run_job
from pttrainer.preflight.advice import out_of_memory
from pttrainer.preflight.advice.out_of_memory import GIB
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting.termination import Attempt
from pttrainer.training import loop

COMPILE = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 63.80G \
of 30.75G hbm. Exceeded hbm capacity by 33.05G.

Total hbm usage >= 65.05G:
    reserved          1.25G
    program          63.80G
    arguments            0B

  Largest program allocations in hbm:

  1. Size: 6.00G
     Operator: op_name="jit(train_step)/jit(main)/jvp(Decoder)/while/body/head/dot_general[dimension_numbers=(((2,), \
(0,)))]" source_file="/app/head.py" source_line=59
     Shape: f32[8,4096,49152]{2,1,0:T(8,128)}
     Unpadded size: 6.00G
     XLA label: fusion.1265.remat3 = fusion(custom-call.224), kind=kOutput
     Allocation type: HLO temp
     ==========================

  2. Size: 4.00G
     Operator: op_name="jit(train_step)/transpose(jvp(Decoder))/layers/mlp/dot_general"
     Shape: bf16[32,8,4096,14336]{3,2,1,0}
     Unpadded size: 4.00G
     Allocation type: HLO temp
     ==========================

  3. Size: 4.00G
     Operator: op_name="jit(train_step)/transpose(jvp(Decoder))/layers/mlp/dot_general"
     Shape: bf16[32,8,4096,14336]{3,2,1,0}
     Unpadded size: 4.00G
     Allocation type: HLO temp
     ==========================
"""
RUNTIME = (
    "RESOURCE_EXHAUSTED: Attempting to reserve 3.95G at the bottom of memory. That was not possible. There are 1.92G "
    "free, 0B reserved, and 1.92G reservable."
)
GPU = """RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.
BufferAssignment OOM Debugging.
Peak buffers:
\tBuffer 1:
\t\tSize: 1.50GiB
\t\tEntry Parameter Subshape: f32[4096,98304]
\t\t==========================

\tBuffer 2:
\t\tSize: 512.00MiB
\t\tOperator: op_name="jit(f)/concatenate[dimension=0]"
\t\tXLA Label: concatenate
\t\tShape: f32[4096,32768]
\t\t==========================
"""


def test_a_compile_that_does_not_fit_names_its_largest_buffers_and_counts_equal_ones() -> None:
    failure = out_of_memory.read(COMPILE)
    assert (failure.needs, failure.has) == (int(63.80 * GIB), int(30.75 * GIB))
    assert failure.largest == (
        "2 x 4 GiB bf16[32,8,4096,14336] (layers/mlp/dot_general)",
        "6 GiB f32[8,4096,49152] (head/dot_general)",
    )


def test_a_buffer_that_finds_no_room_says_what_was_free() -> None:
    failure = out_of_memory.read(RUNTIME)
    assert (failure.requested, failure.free, failure.largest) == (int(3.95 * GIB), int(1.92 * GIB), ())


def test_gpus_name_arguments_and_buffers() -> None:
    failure = out_of_memory.read(GPU)
    assert failure.requested == 4770354232
    assert failure.largest == ("1.5 GiB f32[4096,98304] (an argument)", "0.5 GiB f32[4096,32768] (concatenate)")


def job(directory: Path, accelerator: str, **training: object) -> Path:
    spec = {
        "model": {"uri": "random://llama3.2-1b"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": "file:///nowhere.jsonl"}},
        "training": {"batchSize": 32, "sequenceLength": 4096, "steps": 1, **training},
        "accelerator": {"type": accelerator},
        "output": {"uri": f"file://{directory}/runs"},
    }
    path = directory / "job.yaml"
    document = {
        "apiVersion": "posttrain.dev/v1alpha1",
        "kind": "PostTrainJob",
        "metadata": {"name": "big"},
        "spec": spec,
    }
    path.write_text(yaml.safe_dump(document))
    return path


def fail_with(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def train(job: object, place: Place, attempt: Attempt, stop: object, remat: object) -> None:
        attempt.place = place  # as once the lease is held
        raise RuntimeError(text)

    monkeypatch.setattr(loop, "train", train)


def termination(directory: Path) -> run_directory.Termination:
    return run_directory.Termination.model_validate_json(
        (directory / "runs" / "big" / run_directory.TERMINATION).read_text()
    )


def test_the_last_words_name_a_change_and_the_cheapest_chips_with_which_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, COMPILE.replace("63.80G", "33.00G"))
    assert run_job(job(tmp_path, "v6e-4")) == ExitCode.OUT_OF_MEMORY_HBM
    end = termination(tmp_path)
    assert (end.exit_code, end.failure_class) == (ExitCode.OUT_OF_MEMORY_HBM, "OutOfMemoryHBM")
    assert end.message.startswith("the chip's memory ran out: the program needs 33 of 30.75 GiB; largest: 2 x 4 GiB")
    assert "; by the formula it fits with training.microBatchSize=" in end.message
    assert end.message.endswith("chips), the cheapest that holds it")
    assert len(end.message) < 600


def test_what_the_formula_does_not_know_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, RUNTIME)
    assert run_job(job(tmp_path, "cpu-1")) == ExitCode.OUT_OF_MEMORY_HBM
    message = termination(tmp_path).message
    assert message.startswith(
        "the chip's memory ran out: 3.95 GiB were asked for, 1.92 GiB were free; RESOURCE_EXHAUSTED"
    )
    assert "formula" not in message
    assert "what would fit is not known" in capsys.readouterr().out
