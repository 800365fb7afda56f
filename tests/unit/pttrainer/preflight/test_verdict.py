"""From a job to its verdict by the formula: what is counted, what is advised, what is printed, exit codes."""

import dataclasses
import importlib.metadata
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from tests.builders.trainer.preflight import job, spec

from ptapi import accelerators
from ptapi.accelerators.table import gpu_families
from ptapi.load import dump_job, load_job
from ptapi.spec import Pathways, Vllm
from pttrainer.__main__ import main
from pttrainer.data import batching
from pttrainer.data.sft_examples import Example
from pttrainer.errors import ConfigError
from pttrainer.preflight.advice import changes
from pttrainer.preflight.check import assumptions, judge
from pttrainer.preflight.compiler import programs, result
from pttrainer.preflight.compiler.abstract_inputs import batch, inputs, program_of
from pttrainer.preflight.memory import formula, resident
from pttrainer.preflight.report import table
from pttrainer.preflight.shapes import passes, rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.device_bytes import total
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.step_time import estimate, step_flops
from pttrainer.rollout import groups
from pttrainer.rollout.disaggregated import placement
from pttrainer.rollout.groups import Group, Sample
from pttrainer.runtime.distributed import sharding

GIB = 2**30


def test_shapes_on_a_mesh_of_no_devices_weigh_what_real_arrays_weigh() -> None:
    of = shapes_of(spec("tiny", "cpu-8", batchSize=16, sequenceLength=64, lora={"rank": 4}))
    mesh = sharding.make_mesh(of.shape)
    made = inputs(of, mesh)
    state = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), made.state)
    real = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    assert total(of.arguments.state) == real
    program = program_of(of)
    assert program.abstract_state(program.layout(mesh)) == made.state


def test_the_breeds_example_fits_its_gpu_as_the_guide_says() -> None:
    """Without its pictures and their tower, 1.1 GiB, which no published shape has."""
    text = (Path(__file__).parents[4] / "manifests" / "examples" / "breeds-rtx-pro-6000.yaml").read_text()
    body = yaml.safe_load(text)
    body["spec"]["model"] = {"uri": "random://gemma3-27b"}
    del body["spec"]["evaluation"]["answers"]
    verdict = judge(load_job(yaml.safe_dump(body)), "formula")
    assert verdict.fits
    assert verdict.peak / GIB == pytest.approx(29.0 - 1.1, abs=0.1)


def test_the_batch_has_the_shapes_of_supervised_training() -> None:
    of = shapes_of(spec("tiny", "cpu-1", batchSize=2, sequenceLength=32))
    row = batching.lay_out([Example(tokens=np.arange(9), learned=np.ones(9, bool))], 32)
    real = batching.to_batch({name: np.stack([x, x]) for name, x in row.items()})
    assert_same_shapes(batch(of, sharding.make_mesh(of.shape)), real)


def test_the_batch_has_the_shapes_of_reinforcement_learning(question: Any) -> None:
    fields = {"options": {"groupSize": 2, "beta": 0.1, "updatesPerBatch": 2}, "batchSize": 2, "sequenceLength": 32}
    of = shapes_of(spec("tiny", "cpu-1", algorithm="grpo", **fields))
    # As long as a row may be: shorter rollouts make narrower batches.
    sample = Sample(tokens=[1] * 29, logps=np.zeros(29, np.float32), ended=True, text="", rewards={}, reward=1.0)
    real = groups.lay_out([Group(question, [sample, sample])], np.zeros((1, 2)), 0, 32)
    made = batch(of, sharding.make_mesh(of.shape))
    assert_same_shapes(made._replace(old_logps_BT=None, ref_logps_BT=None), real)
    assert made.old_logps_BT.shape == made.ref_logps_BT.shape == (2, 32)


def assert_same_shapes(abstract: Any, real: Any) -> None:
    assert [x and (x.shape, str(x.dtype)) for x in abstract] == [
        None if x is None else (x.shape, str(x.dtype)) for x in real
    ]


@pytest.fixture
def question() -> Any:
    from pttrainer.data.prompts import Question

    return Question(tokens=[1, 2, 3], text="", fields={})


def test_a_rollout_holds_the_weights_once_more_split_as_its_mesh_is() -> None:
    fields = {"batchSize": 64, "sequenceLength": 4096, "rollout": {"maxNewTokens": 2048}}
    whole = shapes_of(spec("llama3.1-70b", "v5p-128", algorithm="grpo", **fields))
    split = shapes_of(spec("llama3.1-70b", "v5p-128", algorithm="grpo", parallelism={"tensor": 8}, **fields))
    small = shapes_of(spec("llama3.1-8b", "v5p-128", algorithm="grpo", **fields))
    for of, weights, parts in ((whole, 70_553_706_496, 8), (split, 70_553_706_496, 8), (small, 8_030_261_248, 8)):
        buffers = {buffer.name: buffer.bytes for buffer in resident.resident_buffers(of)}
        assert buffers["rollout weights"] == pytest.approx(2 * weights / parts, rel=1e-3)
    # 8 rows for each of 8 x 8 devices: 80 layers · 8 heads / 8 · 128 · 2 (keys and values) · 2 bytes, 2,048 tokens
    # each; and one of the 8 prompts.
    buffers = {buffer.name: buffer.bytes for buffer in resident.resident_buffers(whole)}
    assert buffers["cache of keys and values"] == 8 * 80 * 1 * 128 * 2 * 2 * 2048
    assert buffers["cache of prompts"] == buffers["cache of keys and values"] / 8
    assert formula.memory(whole).fits


def test_with_vllm_nothing_of_the_native_engine_lies_on_the_chips() -> None:
    def names(**vllm: Any) -> dict[str, int]:
        rollout = {"engine": "vllm", "vllm": vllm}
        of = shapes_of(spec("llama3.2-1b", "v6e-8", algorithm="grpo", batchSize=64, rollout=rollout))
        return {buffer.name: buffer.bytes for buffer in resident.resident_buffers(of)}

    assert names(endpoint="http://vllm:8000", weightsDirectory="/shared") == {}
    beside = names(memoryShare=0.25)
    assert beside == {"vLLM": int(0.25 * tpu_topology.usable_bytes(shapes_of(spec("llama3.2-1b", "v6e-8")).slice))}


def test_chips_that_only_sample_hold_every_version_of_the_weights_and_nothing_of_training() -> None:
    fields = {"batchSize": 64, "sequenceLength": 4096}
    apart = {"maxNewTokens": 2048, "placement": "disaggregated"}

    def stale(bound: int) -> JobShapes:
        apart_spec = spec("llama3.1-8b", "v6e-8", algorithm="grpo", **fields, rollout=apart | {"maxStaleness": bound})
        return shapes_of(apart_spec.model_copy(update={"pathways": Pathways(enabled=True)}))

    one, two = stale(1), stale(2)
    assert one.shape == two.shape == (1, 4, 1, 1, 1)
    assert one.sampler == two.sampler == (1, 1, 4, 1, 1)  # soonest
    needed = [placement.for_decoding(one.structure, one.sampling_slice, versions, None) for versions in (1, 2)]
    assert needed == [(4, 1, 1, 1, 1), (2, 1, 2, 1, 1)]  # 16 GB, or twice that, in half of 32 GiB
    for of, tensor in (
        (dataclasses.replace(one, sampler=needed[0]), 1),
        (dataclasses.replace(two, sampler=needed[1]), 2),
    ):
        buffers = {buffer.name: buffer.bytes for buffer in resident.resident_buffers(of)}
        assert buffers["rollout weights"] == pytest.approx(2 * 8_030_261_248, rel=1e-3)  # two halves of two versions
        embedding = 2 * 128_256 * 4096  # larger than a chunk; comes in four parts, which halves have twice
        assert buffers["weights in transfer"] == tensor * embedding / 4 + embedding / tensor
        # 64 rows on 4 copies, or on 2 of two halves: 32 layers · 8 heads · 128 · 2 (keys and values) · 2 bytes, 2,048
        # tokens each; and of the 8 prompts, which their samples share.
        assert buffers["cache of keys and values"] == 16 * 32 * 8 * 128 * 2 * 2 * 2048
        assert buffers["cache of prompts"] == 2 * 32 * 8 * 128 * 2 * 2 * 2048
        assert resident.total(resident.rollout_buffers(of, resident.resident_buffers(of))) == sum(buffers.values())


def with_samplers(**separate: Any) -> JobShapes:
    rollout = {"maxNewTokens": 2048, "placement": "separate", "separate": separate, "maxStaleness": 1}
    return shapes_of(
        spec("llama3.2-1b", "v6e-4", algorithm="grpo", batchSize=64, sequenceLength=4096, steps=10, rollout=rollout)
    )


def test_samplers_with_pods_of_their_own_are_counted_on_their_chips_and_the_trainer_on_its_own() -> None:
    of, colocated = with_samplers(replicas=2), spec("llama3.2-1b", "v6e-4", algorithm="grpo", batchSize=64)
    assert (of.shape, of.sampler) == ((1, 4, 1, 1, 1), (1, 1, 4, 1, 1))  # of one of them
    assert passes.others(of) == ["rollout"]
    beside = resident.resident_buffers(of)
    assert "training state" not in {each.name for each in resident.rollout_buffers(of, beside)}
    assert "training state" in {
        each.name
        for each in resident.rollout_buffers(shapes_of(colocated), resident.resident_buffers(shapes_of(colocated)))
    }
    assert rollout_shapes.plan_of(rollout_shapes.sampler(of)).completions == 64 // 2
    one, two = (estimate(with_samplers(replicas=count), None) for count in (1, 2))
    assert one.update_seconds == two.update_seconds
    assert two.chip_hours == pytest.approx(two.seconds * 10 * 12 / 3600)


def test_hosts_that_gather_weights_for_samplers_hold_a_chunk_of_them() -> None:
    def gathered(chips: str, samplers: str = "v6e-4", **more: Any) -> list[int]:
        rollout = {"maxNewTokens": 64, "placement": "separate", "separate": {"accelerator": {"type": samplers}}}
        of = shapes_of(spec("llama3.2-1b", chips, algorithm="grpo", batchSize=64, rollout=rollout))
        changed = of.spec.model_copy(update={"rollout": of.spec.rollout.model_copy(update=more)})
        of = dataclasses.replace(of, spec=changed)
        return [buffer.bytes for buffer in resident.resident_buffers(of) if buffer.name == resident.GATHERED]

    assert gathered("v6e-4") == []
    assert gathered("v6e-16") == [128256 * 2048 * 2], "the table of tokens is larger than 256 MiB"
    with_vllm = {"engine": "vllm", "vllm": Vllm()}
    assert gathered("v6e-16", "h100-1", **with_vllm) == [128256 * 2048 * 4], "one array, as it is trained"


def test_the_number_of_samplers_that_wastes_least_is_named_until_the_job_has_it() -> None:
    def notes(count: int) -> list[str]:
        rollout = {"maxNewTokens": 2048, "placement": "separate", "separate": {"replicas": count}, "maxStaleness": 1}
        fields = {"batchSize": 512, "sequenceLength": 4096, "steps": 10, "rollout": rollout}
        made = judge(job("llama3.2-1b", "v6e-4", algorithm="grpo", **fields), "formula")
        return [note for note in made.notes if "wastes least" in note]

    (of_one,), (of_many,) = notes(1), notes(64)
    assert "replicas: 1 " not in of_one, "more samplers pay for themselves: the rows do not fit one at once"
    best = int(of_many.partition("replicas: ")[2].partition(" ")[0])
    assert best < 64
    assert notes(best) == []


def test_samplers_of_other_chips_are_not_checked_and_it_is_written() -> None:
    of = with_samplers(replicas=2, accelerator={"type": "v5p-8"})
    assert of.sampler is None
    assert passes.others(of) == []
    assert resident.resident_buffers(of) == []
    rollout = {"maxNewTokens": 64, "placement": "separate", "separate": {"accelerator": {"type": "v5p-8"}}}
    made = judge(job("llama3.2-1b", "v6e-4", algorithm="grpo", batchSize=64, rollout=rollout), "formula")
    assert any("of the samplers, v5p-8 (4 chips), are not checked" in line for line in made.assumptions)


def test_samplers_that_are_vllm_read_files_and_it_is_written() -> None:
    of = with_samplers(replicas=2, accelerator={"type": "v5p-8"})
    rollout = of.spec.rollout.model_copy(update={"engine": "vllm", "vllm": Vllm()})
    of = dataclasses.replace(of, spec=of.spec.model_copy(update={"rollout": rollout}))
    lines = assumptions(of, [], None)
    assert "the samplers read all weights from files after every update; that time is not counted" in lines
    assert not any("hosts' network" in line for line in lines)
    assert resident.resident_buffers(of) == [], "vLLM's memory is not the trainer's"


def test_a_reference_model_is_one_more_copy_of_what_is_trained() -> None:
    def reference(**fields: Any) -> int:
        of = shapes_of(spec("llama3.2-1b", "v6e-8", algorithm="grpo", options={"beta": 0.05}, batchSize=64, **fields))
        return next(buffer.bytes for buffer in resident.resident_buffers(of) if buffer.name == "reference weights")

    assert reference() * 8 == pytest.approx(4 * 1_235_814_400, rel=1e-3)
    assert reference(lora={}) < 4 * 11_272_192  # the adapters


def test_what_does_not_fit_gets_changes_that_do_when_they_are_made() -> None:
    of = shapes_of(spec("llama3.1-8b", "v5e-8", batchSize=8, sequenceLength=4096))
    tried = changes.options(of)
    by_change = {option.change: option for option in tried}
    assert by_change["adapters on 4-bit weights (QLoRA)"].fits
    assert not by_change["rows of 2048 tokens"].fits
    assert [option.fits for option in tried] == sorted((option.fits for option in tried), reverse=True)
    for option in tried:
        again = formula.memory(shapes_of(changes.changed(of.spec, option.settings)))
        assert (again.peak, again.fits) == (option.peak, option.fits)


def test_the_smallest_slice_of_each_generation_holds_the_job_and_the_next_smaller_does_not() -> None:
    of = shapes_of(spec("llama3.1-8b", "v5e-8", batchSize=8, sequenceLength=4096))
    options = {option.change.split("-")[0]: option for option in changes.smallest(of)}
    assert options["v5litepod"].chips == 16
    assert options["v5p"].chips == 4
    assert all(option.fits for option in options.values())


def test_the_cheapest_slice_is_that_of_the_users_prices() -> None:
    base = job("llama3.1-8b", "v5e-8", batchSize=8, sequenceLength=4096)
    chips_needed = {"v5e": 16, "v5p": 4, "v6e": 8}
    for prices, first in (({"v5e": 1.0, "v5p": 4.1, "v6e": 3.0}, "v5litepod-16"), ({"v6e": 0.5, "v5p": 9.0}, "v6e-8")):
        priced = judge(base, "formula", prices=prices)
        costs = [option.hourly for option in priced.smallest]
        assert priced.smallest[0].change.startswith(f"{first} ")
        known = [cost for cost in costs if cost is not None]
        assert known == sorted(prices[name] * chips_needed[name] for name in prices)
        assert costs[len(known) :] == [None] * (len(costs) - len(known))
        assert f"{known[0]:,.2f} an hour" in table.text(priced)


def test_the_compilers_refusal_is_read() -> None:
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.46G) exceeds "
        "available HBM (15.75G)"
    )
    assert result.out_of_memory(message) == (int(18.46 * GIB), int(15.75 * GIB))
    assert result.out_of_memory("INTERNAL: something else (18.46G)") is None


@pytest.mark.parametrize(
    ("type", "name", "options"),
    [
        ("v5p-128", "v5p:4x4x4", {"wrap": (True, True, True)}),
        ("v5p-64", "v5p:2x4x4", {}),
        ("v6e-128", "v6e:8x16", {"wrap": (False, True, False)}),
        ("v5e-256", "v5e:16x16", {"wrap": (True, True, False)}),
        ("v5e-16", "v5e:4x4", {}),
        ("v6e-1", "v6e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
        ("v4-8", "v4:2x2x1", {"chip_config_name": "megacore"}),
        ("ironwood-128", "tpu7x:4x4x4", {"wrap": (True, True, True)}),
    ],
)
def test_chips_are_called_as_the_compiler_calls_them(type: str, name: str, options: dict[str, Any]) -> None:
    slice_ = accelerators.resolve(type)
    assert (tpu_topology.topology_name(slice_), tpu_topology.topology_options(slice_)) == (name, options)


def test_slices_are_told_to_the_compiler() -> None:
    assert tpu_topology.topology_options(accelerators.resolve("v6e-16", None, 2)) == {"num_slices": 2}


def test_without_the_compiler_or_with_another_one_the_formula_answers_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"jax": "0.10.2"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    small = job("llama3.2-1b", "v5e-4", batchSize=8)
    absent = judge(small)
    assert (absent.stage, absent.fits) == ("formula", True)
    assert "libtpu, the TPU compiler, is not installed" in absent.notes[0]
    versions["libtpu"] = "0.0.51"
    assert "libtpu 0.0.51 does not match jax 0.10.2; accepted: libtpu 0.0.42.x" in judge(small).notes[0]


def test_a_compiler_that_ends_abruptly_leaves_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_topology, "why_no_compiler", lambda *of: None)
    monkeypatch.setattr(tpu_topology, "prepare_environment", partial(os._exit, 1))
    answer = judge(job("llama3.2-1b", "v5e-4", batchSize=8))
    assert (answer.stage, answer.collectives) == ("formula", None)
    assert "ended abruptly" in answer.notes[0]


def test_time_is_the_slowest_of_arithmetic_memory_and_network() -> None:
    of = shapes_of(spec("llama3.1-8b", "v5e-16", batchSize=16, sequenceLength=4096, steps=1000))
    free = estimate(of, [], price=1.5)
    assert free.seconds == pytest.approx(step_flops(of) * 4 / 3 / (197e12 * 16))
    assert free.bound == "arithmetic"
    assert free.chip_hours == pytest.approx(free.seconds * 1000 * 16 / 3600)
    assert free.cost == pytest.approx(1.5 * (free.chip_hours or 0.0))
    assert free.tokens_per_second_per_chip == pytest.approx(4096 / free.seconds)
    # 400 GB/s are both directions of a chip's links.
    busy = estimate(of, [Traffic("all-reduce", 1, int(1e12))])
    assert (busy.bound, busy.seconds) == ("network", pytest.approx(5.0))
    assert estimate(of, None).ici_seconds is None


def test_preferences_are_judged_and_what_a_teacher_said_in_the_data() -> None:
    assert judge(job("llama3.2-1b", "v6e-8", algorithm="dpo", batchSize=16), "formula").fits
    offline = {"algorithm": "distill", "batchSize": 2, "sequenceLength": 32, "options": {"mode": "offline"}}
    answer = judge(job("tiny", "v6e-1", **offline), "formula")
    assert answer.fits
    assert "the data hold 64 of the teacher's tokens for each of the student's" in answer.assumptions
    of = shapes_of(spec("tiny", "v6e-1", **offline))
    mesh = sharding.make_mesh(of.shape, jax.devices()[:1])
    with jax.set_mesh(mesh):
        text = next(programs.LOWERED[passes.TRAIN_STEP](of, mesh)).program.as_text()
    assert "tensor<2x32x64xi32>" in text  # the step reads them, and no teacher


def test_a_teacher_behind_a_service_has_no_weights_on_the_chips_and_columns_in_the_batch() -> None:
    taught = {"algorithm": "distill", "batchSize": 2, "sequenceLength": 32, "rollout": {"maxNewTokens": 8}}
    service = {"options": {"teacher": {"service": "tutor"}, "topK": 20}}
    of = shapes_of(spec("tiny", "v6e-1", **taught, **service))
    assert of.teacher is None
    assert batch(of, sharding.make_mesh(of.shape, jax.devices()[:1])).teacher_ids_BTK.shape == (2, 32, 20)
    served = judge(job("tiny", "v6e-1", **taught, **service), "formula")
    beside = {"options": {"teacher": {"uri": "random://tiny"}, "topK": 20}}
    assert served.peak < judge(job("tiny", "v6e-1", **taught, **beside), "formula").peak
    words = "a service finds 20 of the teacher's tokens for each of the student's; its chips and the time that it takes"
    assert any(words in line for line in served.assumptions)


def test_labelled_answers_are_scored_every_step_and_self_training_samples() -> None:
    fields: dict[str, Any] = {"batchSize": 16, "sequenceLength": 1024}
    for algorithm, wanted in (("kto", [passes.SCORING]), ("raft", [passes.ROLLOUT])):
        assert judge(job("llama3.2-1b", "v6e-8", algorithm=algorithm, **fields), "formula").fits
        assert passes.others(shapes_of(spec("llama3.2-1b", "v6e-8", algorithm=algorithm, **fields))) == wanted


def test_a_teacher_lies_beside_its_student_in_the_format_it_computes_in() -> None:
    fields: dict[str, Any] = {"batchSize": 8, "sequenceLength": 2048}
    alone = shapes_of(spec("qwen3-0.6b", "v6e-8", **fields))
    options = {"mode": "online", "teacher": {"uri": "random://qwen3-1.7b"}}
    taught = shapes_of(spec("qwen3-0.6b", "v6e-8", algorithm="distill", options=options, **fields))
    more = formula.memory(taught).program.arguments - formula.memory(alone).program.arguments
    assert more * 8 == pytest.approx(2 * 1_720_574_976, rel=1e-3)  # bfloat16, over eight chips
    assert step_flops(taught) > step_flops(alone) + 2 * 8 * 2048 * 1.4e9
    assert resident.resident_buffers(taught) == []
    on_policy = options | {"mode": "on-policy"}
    sampled = shapes_of(spec("qwen3-0.6b", "v6e-8", algorithm="distill", options=on_policy, **fields))
    assert {buffer.name for buffer in resident.resident_buffers(sampled)} >= {
        "rollout weights",
        "cache of keys and values",
    }


def test_chips_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="preflight knows TPUs and GPUs only"):
        judge(job("tiny", "cpu-8", batchSize=8))


def test_exit_codes_and_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fits, too_large = tmp_path / "fits.yaml", tmp_path / "large.yaml"
    fits.write_text(dump_job(job("llama3.2-1b", "v6e-8", batchSize=8, sequenceLength=2048)))
    too_large.write_text(dump_job(job("llama3.1-70b", "v5e-8", batchSize=8, sequenceLength=2048)))
    assert main(["preflight", str(fits), "--quick", "--write", str(tmp_path / "preflight.json")]) == 0
    assert "asked: fits: peak" in capsys.readouterr().out
    written = json.loads((tmp_path / "preflight.json").read_text())
    assert written["fits"]
    assert written["programs"][0]["stage"] == "formula"
    assert main(["preflight", str(too_large), "--quick", "-o", "json"]) == 70
    document = json.loads(capsys.readouterr().out)
    assert not document["fits"]
    assert document["devicesPerChip"] == 1
    assert document["smallest"][0]["fits"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(fits.read_text().replace("v6e-8", "v6e-9"))
    assert main(["preflight", str(wrong), "--quick"]) == 64


def test_the_rows_of_each_phase_add_up_to_its_peak_and_the_highest_is_the_verdict() -> None:
    answer = judge(job("llama3.1-70b", "tpu7x-128", algorithm="grpo", batchSize=256, sequenceLength=4096), "formula")
    rows = [line.split() for line in table.text(answer).splitlines() if " = " in line]
    peaks = {row[0]: float(row[row.index("=") - 1]) for row in rows}
    for row in rows:
        parts = " ".join(row[row.index("=") + 1 :]).split(" + ")
        assert sum(float(part.rpartition(" ")[2]) for part in parts) == pytest.approx(
            peaks[row[0]], abs=0.005 * len(parts)
        )
    assert list(peaks) == ["train", "rollout"]
    assert f"peak {max(peaks.values()):.1f} of 189.5 GiB per chip" in answer.line()


def test_the_table_shows_what_is_largest_and_what_to_change() -> None:
    lines = table.text(judge(job("llama3.1-8b", "v5e-8", batchSize=8, sequenceLength=4096), "formula"))
    assert "does not fit: peak" in lines.splitlines()[0]
    assert "optimizer state 7.48" in lines
    # 32·4096·14336·4/8: three matrices, each with two moments
    assert (
        "largest arrays: layers.mlp.down 0.88; layers.mlp.gate 0.88; layers.mlp.up 0.88; optimizer.mu.layers" in lines
    )
    assert "activations kept for the backward pass (inputs of 32 layers, [4096, 4096] each) 1.00" in lines
    assert "smallest slices that hold it, fewest FLOP/s first:\n" in lines
    assert "training.steps is unset" in lines


def test_gpus_are_judged_by_the_formula_alone_and_get_advice_for_gpus() -> None:
    verdict = judge(job("llama3.1-8b", "rtx-pro-6000-1", batchSize=8, microBatchSize=1, sequenceLength=2048))
    assert (verdict.fits, verdict.stage, verdict.remat) == (False, "formula", "full")
    assert verdict.available == int(86.03 * 2**30)
    assert any("no compiler for GPUs works without one" in note for note in verdict.notes)
    assert {option.settings["accelerator"]["type"].rpartition("-")[0] for option in verdict.smallest} <= set(
        gpu_families()
    )
    adapters = {"lora": {"rank": 16}, "quantization": {"weights": "nf4"}, "remat": "full"}
    assert judge(job("llama3.1-8b", "rtx-pro-6000-1", batchSize=8, sequenceLength=2048, **adapters)).fits
