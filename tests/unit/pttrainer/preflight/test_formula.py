"""The formula against what the TPU compiler said of the same steps, and by hand."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.builders.scripts import load_script
from tests.builders.trainer.preflight import spec

from ptapi.spec import ModelSpec
from pttrainer.errors import ConfigError
from pttrainer.models.shapes.structure import Remat
from pttrainer.preflight.memory import formula, host_memory, layer_memory
from pttrainer.preflight.shapes import device_bytes
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of

benchmark = load_script("benchmarks/preflight/preflight_formula.py")
MEASURED: dict[str, Any] = json.loads(benchmark.MEASURED.read_text())
CASES = [case for case in benchmark.CASES if case.name in MEASURED]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_formula_is_within_a_tenth_of_the_compiler(case: Any) -> None:
    program = formula.memory(benchmark.subject_of(case)).program
    assert program.peak / 2**30 == pytest.approx(MEASURED[case.name]["peak"], rel=0.10)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_arguments_are_exact(case: Any) -> None:
    """Tiles that small arrays do not fill included."""
    program = formula.memory(benchmark.subject_of(case)).program
    if MEASURED[case.name]["fits"]:
        assert program.arguments / 2**30 == pytest.approx(MEASURED[case.name]["arguments"], rel=0.002)


def test_the_table_of_the_docs_is_that_of_the_formula() -> None:
    page = benchmark.DOCS.read_text()
    assert benchmark.with_table(page, benchmark.table(MEASURED)) == page


def test_a_third_of_the_cases_at_least_was_held_out() -> None:
    assert sum(case.held for case in CASES) * 3 >= len(CASES)


@pytest.mark.parametrize(("params", "each"), [("auto", 2), ("float32", 4)])
def test_full_training_holds_twelve_bytes_a_weight_and_adapters_what_is_read_and_twelve_of_their_own(
    params: str, each: int
) -> None:
    full, lora = (
        formula.memory(shapes_of(spec("llama3.1-8b", "v6e-16", batchSize=16, **more))).program.arguments
        for more in ({}, {"lora": {"rank": 16}, "precision": {"params": params}})
    )
    weights = 8_030_261_248
    assert full * 16 == pytest.approx(12 * weights, rel=1e-3)
    adapters = 41_943_040  # 16 · Σ (inputs + outputs) of seven matrices of 32 layers
    # Each adapter is split along one of its sides only, so a device holds more than its share of them.
    assert each * weights / 16 + 12 * adapters / 16 < lora < each * weights / 16 + 12 * adapters


def test_smaller_micro_batches_and_more_chips_need_less_and_longer_rows_more() -> None:
    def peak(**fields: Any) -> int:
        wanted = {"accelerator": "v5p-16", "batchSize": 64, "sequenceLength": 4096} | fields
        return formula.memory(shapes_of(spec("llama3.1-8b", **wanted))).peak

    assert peak(microBatchSize=8) < peak(microBatchSize=32) < peak()
    assert peak(accelerator="v5p-32") < peak()
    assert peak(sequenceLength=8192) > peak()
    assert peak(remat="none") > peak()


def test_without_recomputation_a_matrix_and_its_adapter_keep_a_product_each() -> None:
    def kept(**more: Any) -> int:
        fields = {"batchSize": 4, "sequenceLength": 1024, "remat": "none", **more}
        parts = formula.memory(shapes_of(spec("qwen3-4b", "v4-8", **fields))).parts
        return next(part.bytes for part in parts if part.name == "activations kept for the backward pass")

    stream = 2560 + 4096  # and attention's output
    products = 4096 + 2 * 1024 + 2560 + 2 * 9728  # q, k and v, o, gate and up; nothing reads down's again
    assert kept() == 2 * 36 * 1024 * (stream + products)
    assert kept(lora={"rank": 16}) == 2 * 36 * 1024 * (stream + 2 * products + 7 * 16)
    of_attention = 4096 + 2 * 1024 + 2560 + 4 * 16
    assert kept(lora={"rank": 16, "targets": "attention"}) == 2 * 36 * 1024 * (stream + products + of_attention)


def test_each_policy_keeps_what_its_name_says() -> None:
    def kept(remat: str, model: str = "qwen3-4b", layers: int = 36) -> int:
        of = shapes_of(spec(model, "v4-8", batchSize=4, sequenceLength=1024, remat=remat))
        parts = formula.memory(of).parts
        sizes = (part.bytes for part in parts if part.name == "activations kept for the backward pass")
        return next(sizes) // (2 * layers * 1024)

    assert kept("full") == 2560
    assert kept("save-context") == 2560 + 4096
    assert kept("save-qkv-context") == 2560 + 4096 + (4096 + 2 * 1024)
    assert kept("offload-qkv") == kept("save-context")
    assert kept("offload-qkv-context") == kept("full")
    assert kept("offload-input") == kept("offload-input-context") == 0
    assert kept("save-context", "llama3.2-1b", 16) == 2048 + 32 * 128  # heads of 64 fill a TPU's 128 lanes


def test_what_waits_in_host_memory_is_counted_for_all_chips_of_a_host() -> None:
    def of(remat: str, rows: int = 4, accelerator: str = "v4-8") -> JobShapes:
        return shapes_of(spec("qwen3-4b", accelerator, batchSize=rows, sequenceLength=1024, remat=remat))

    stream, qkv, context = 2560, 4096 + 2 * 1024, 4096
    sent = {remat: layer_memory.on_host(of(remat)) for remat in get_args(Remat)}
    each = 2 * 36
    assert sent.pop("offload-qkv") == 1024 * each * qkv
    assert sent.pop("offload-qkv-context") == 1024 * each * (qkv + context)
    assert sent.pop("offload-input") == 1024 * each * stream
    assert sent.pop("offload-input-context") == 1024 * each * (stream + context)
    assert set(sent.values()) == {0}
    host = "v6e-4"  # four chips and 720 GB
    host_memory.check(of("offload-qkv", 1024, host))
    held = 256 * 1024 * each * (qkv + context) * 4 + 4 * device_bytes.total(
        of("full", accelerator=host).arguments.state
    )
    says = f"offload-qkv-context: with a checkpoint's copy, {held / 2**30:.0f} GiB in each host's memory, where"
    with pytest.raises(ConfigError, match=says):
        host_memory.check(of("offload-qkv-context", 1024, host))
    assert host_memory.note(of("save-qkv-context")) is None
    assert "GiB on each host, which has 671 GiB" in (host_memory.note(of("offload-qkv", 1024, host)) or "")


def test_at_the_end_of_a_micro_batch_its_activations_are_gone() -> None:
    def peak(**fields: Any) -> int:
        of = shapes_of(spec("qwen3-1.7b", "v6e-4", batchSize=16, microBatchSize=4, **fields))
        return formula.memory(of).program.temporaries

    gradients, embedding = 4 * 1_720_574_976 // 4, 151_936 * 2048
    assert peak(sequenceLength=512) == pytest.approx(2 * gradients + 8 * embedding, rel=1e-3)
    assert peak(sequenceLength=1024) == peak(sequenceLength=512)


def test_experts_whose_part_of_the_models_axis_fills_no_tiles_are_there_twice() -> None:
    def copied(accelerator: str) -> int:
        parts = formula.memory(shapes_of(spec("gpt-oss-20b", accelerator, batchSize=64, sequenceLength=1024))).parts
        return sum(part.bytes for part in parts if part.name == "weights of experts, laid out anew")

    matrices = 24 * 32 * 3 * 2880 * 2880
    assert copied("v5p-128") == 4 * matrices // 64  # 45 rows of the model's 2,880, and 32 experts for 64 chips
    assert copied("v6e-32") == 0  # 90 would fill no tiles, so each chip has a whole expert
    assert copied("v6e-8") == 0  # 360


def test_a_teacher_costs_both_heads_the_students_gradients_and_the_logits_of_both() -> None:
    fields = {"algorithm": "distill", "options": {"teacher": {"uri": "random://qwen3-8b"}}, "batchSize": 32}

    def beside(**more: Any) -> int:
        of = shapes_of(spec("qwen3-4b", "v4-16", sequenceLength=1024, **fields, **more))
        computed = formula.memory(of)
        kept = 2 * 36 * 4096 * 2560
        return computed.program.temporaries - kept - 20 * of.head_tokens_per_device * 151_936

    teacher = 2 * 4096 * (4096 + 151_936)  # hidden states of 4,096 tokens, and its head
    assert beside() == teacher + 18 * 151_936 * 2560
    assert beside(precision={"params": "bfloat16"}) == teacher + 10 * 151_936 * 2560


def test_a_frozen_head_that_is_the_embedding_is_gathered_after_the_layers_unless_the_mesh_splits_matrices() -> None:
    """Rows of the embedding travel; where matrices are split, the look-up gathers it before the first layer."""

    def temporaries(**more: Any) -> int:
        fields = {"batchSize": 4, "sequenceLength": 4096, "remat": "full", "lora": {"rank": 16}, **more}
        fields["precision"] = {"params": "float32"}
        return formula.memory(shapes_of(spec("gemma3-12b", "v5p-8", **fields))).program.temporaries

    head, kept = 6 * 262_208 * 3840, 2 * 48 * 4096 * 3840  # as stored and as computed with; one row
    assert temporaries() == kept + head
    assert temporaries(batchSize=2, parallelism={"fsdp": 2, "tensor": 2}) == head // 2


def test_frozen_matrices_of_attention_are_there_twice_where_a_devices_part_fills_lanes() -> None:
    def copied(model: str, accelerator: str, length: int, **more: Any) -> int:
        fields = {"batchSize": 32, "sequenceLength": length, "remat": "full", "lora": {"rank": 16}, **more}
        parts = formula.memory(shapes_of(spec(model, accelerator, **fields))).parts
        return sum(part.bytes for part in parts if part.name == "matrices, laid out anew")

    numbers = 34 * 640 * (2048 + 1024 + 1024)
    assert copied("gemma3-4b", "v5p-8", 2048) == 2 * numbers
    assert copied("gemma3-4b", "v5p-8", 4096, precision={"params": "float32"}) == 4 * numbers
    assert copied("gemma3-12b", "v6e-32", 4096) == 0  # 120 of 128 lanes
    assert copied("gemma3-4b", "v5p-8", 4096, quantization={"weights": "nf4"}) == 0
    assert copied("gemma3-4b", "v5p-8", 2048, parallelism={"fsdp": 2, "tensor": 2}) == 0


def test_scores_of_a_tower_are_of_as_many_queries_as_their_number_can_be_halved_to() -> None:
    """Limit 2^26. 2,520 patches become blocks of 315, which is odd; a tile's 577 stay whole. Lanes are filled up.

    Gemma 3's 4,096, none of which is padding, are computed in a kernel that keeps none.
    """
    scores = {
        model: next(
            part.bytes
            for part in formula.memory(benchmark.subject_of(case)).parts
            if part.name == "attention scores of the vision tower"
        )
        for case in benchmark.CASES
        for model in [case.model]
        if model in benchmark.TOWERS and case.accelerator == "v6e-4" and case.training["vision"] == "frozen"
    }
    assert scores == {
        "gemma3-tower": 0,
        "gemma4-tower": 2 * 4 * (8 * 16 * 315 * 2560),  # as made and as masked
        "llama4-tower": 4 * (2 * 17 * 16 * 577 * 640),
    }


def test_one_image_of_a_device_is_scored_without_a_kernel_and_a_frozen_tower_has_no_gradients() -> None:
    """As the compiler has it: two images take less than one, whose 1,024 of 4,096 queries have 2^26 scores."""

    def parts(rows: int, **more: Any) -> dict[str, int]:
        fields = {"sequenceLength": 1024, "remat": "full", "vision": "frozen", **more}
        case = benchmark.Case("gemma3-tower", "v5e-4", "sft", {"batchSize": rows, **fields})
        return {part.name: part.bytes for part in formula.memory(benchmark.subject_of(case)).parts}

    scores, stream = "attention scores of the vision tower", "activations of a layer of the vision tower"
    one, two = parts(4), parts(8)
    assert (one[scores], two[scores]) == (4 * 2**26, 0)
    assert one[stream] == 2 * 5 * 4096 * 1152
    assert two[stream] == 2 * 2 * 4096 * (1152 + 4 * 16 * 128)
    assert "gradients" not in one
    assert parts(4, vision="all")["gradients"] > 4 * 400_000_000 // 4


@pytest.mark.parametrize(
    ("training", "compiled_gib"),
    [({"vision": "frozen"}, 1.05), ({"vision": "all"}, 5.16), ({"vision": "lora", "lora": {"rank": 16}}, 4.10)],
)
def test_a_vision_towers_activations_are_counted_as_the_compiler_has_them(
    tmp_path: Path, training: dict[str, Any], compiled_gib: float
) -> None:
    """SigLIP's tower of Gemma 3 and a decoder too small to matter: 8 pictures a device, on v6e-4."""
    decoder = {
        "model_type": "gemma3_text", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2000, "sliding_window": 1024,
        "query_pre_attn_scalar": 64,
    }  # fmt: skip
    tower = {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
    }  # fmt: skip
    ids = {"boi_token_index": 1001, "eoi_token_index": 1002, "image_token_index": 1003}
    raw = {"model_type": "gemma3", "mm_tokens_per_image": 256, **ids, "text_config": decoder, "vision_config": tower}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    wanted = spec("tiny", "v6e-4", batchSize=32, sequenceLength=1024, **training, remat="full")
    of = shapes_of(wanted.model_copy(update={"model": ModelSpec(uri=f"file://{tmp_path}", images=True)}))
    assert formula.memory(of).program.peak / 2**30 == pytest.approx(compiled_gib, rel=0.05)
