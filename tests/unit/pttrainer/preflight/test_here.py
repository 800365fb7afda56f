"""The devices of this machine in place of the job's chips: what their compiler says of memory, on CPU devices here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.builders.trainer.preflight import job

from ptapi.load import dump_job
from pttrainer.__main__ import main
from pttrainer.preflight.check import judge
from pttrainer.preflight.compiler import compile, compiler_process, result
from pttrainer.preflight.memory import formula
from pttrainer.preflight.report import table
from pttrainer.preflight.shapes import device_bytes, local_devices
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.preflight.shapes.passes import TRAIN_STEP

JOB = job("tiny", "v6e-8", batchSize=8, sequenceLength=64)


@pytest.fixture(scope="module")
def compiled() -> result.Answer:
    """The step, compiled in this process for its eight devices."""
    return compile.compiled(shapes_of(JOB.spec, slice_=local_devices.detect()), TRAIN_STEP, "full")


def of_a_device(monkeypatch: pytest.MonkeyPatch, compiled: result.Answer, memory: int) -> Any:
    monkeypatch.setattr(compiler_process, "compile_in_child", lambda of, name, level, limit_s: compiled)
    return judge(JOB, here=replace(local_devices.detect(), memory=memory))


def test_what_is_visible_is_judged_by_its_own_compiler_and_memory(
    monkeypatch: pytest.MonkeyPatch, compiled: result.Answer
) -> None:
    one = compiled[TRAIN_STEP]
    of = shapes_of(JOB.spec, slice_=local_devices.detect())
    assert (of.devices, one.fits) == (len(jax.devices()), True)
    assert one.arguments == pytest.approx(device_bytes.total(of.arguments.all), rel=0.01)
    assert one.peak >= one.arguments + one.temporaries  # what is returned lies where the state lay
    roomy = of_a_device(monkeypatch, compiled, one.peak)
    assert (roomy.fits, roomy.stage, roomy.peak, roomy.available) == (True, "full", one.peak, one.peak)
    assert (roomy.devices, roomy.estimate) == (len(jax.devices()), None)
    assert "these devices stand in for those that the job names" in table.text(roomy)


def test_by_a_hair_too_little_memory_is_too_little(monkeypatch: pytest.MonkeyPatch, compiled: result.Answer) -> None:
    short = of_a_device(monkeypatch, compiled, compiled[TRAIN_STEP].peak - 1)
    assert (short.fits, short.stage, short.peak_during) == (False, "full", TRAIN_STEP)
    # Changes of the job are tried on these devices, and no other chips beside them.
    assert {option.available for option in short.options} == {short.available}
    assert short.options


def test_where_nothing_may_be_compiled_the_formula_answers_for_what_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(dump_job(JOB))
    assert main(["preflight", str(file), "--here", "--quick"]) == 0
    of = shapes_of(JOB.spec, slice_=local_devices.detect())
    assert f"{formula.memory(of).peak / 2**30:.2f}" in capsys.readouterr().out
