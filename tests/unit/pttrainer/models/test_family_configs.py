"""`config.json` of every family: read, written and read again; and what is refused, with what is different."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from tests.builders.peers.inference import load_model
from tests.builders.peers.models import CASES, LONGROPE, ORIGINAL, write_checkpoint

from ptapi.spec import Training
from pttrainer.errors import ConfigError
from pttrainer.models import Model, from_hf, to_hf
from pttrainer.models.attention.rope import frequencies
from pttrainer.models.config import YarnScaling
from pttrainer.models.families import FAMILIES
from pttrainer.models.layers import linear
from pttrainer.models.loading.model_spec import auxiliary_structure, open_source, structure_of
from pttrainer.models.shapes import parameters
from pttrainer.models.shapes.parameters import ParamSpec
from pttrainer.models.weights.weight import stored_shapes


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read_as_the_same_model(name: str) -> None:
    config = from_hf(CASES[name])
    assert from_hf(to_hf(config)) == replace(config, prediction_layers=0)


def test_every_family_has_a_case() -> None:
    assert {from_hf(raw).family for raw in CASES.values()} == set(FAMILIES)


def test_the_text_part_of_mistral_3_is_the_model_that_it_nests() -> None:
    whole = {"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}, "spatial_merge_size": 2}
    for name, image_id in (("ministral-3", 10), ("mistral", 7)):
        nested = {**whole, "text_config": CASES[name], **({"image_token_index": 7} if image_id == 7 else {})}
        assert from_hf(nested) == replace(from_hf(CASES[name]), image_token_id=image_id)
    with pytest.raises(ConfigError, match="text_config model_type: 'llama': not supported; accepted: mistral, minis"):
        from_hf({**whole, "text_config": CASES["llama-3.0"]})


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("smollm-3", {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention"] * 4},
         "layer_types: .*accepted: sliding_attention for the layers without rotary embedding"),
        ("smollm-3", {"no_rope_layers": [1, 0]}, r"no_rope_layers: \[1, 0\]: .*at least 4 of them"),
        ("olmo-3", {"rope_theta": 1e6}, "rope_theta: 1000000.0: not supported; accepted: 500000.0"),
        ("phi-4", {"rope_scaling": {"type": "linear"}}, "type: 'linear': .*; accepted: default, longrope, su, yarn$"),
        ("phi-4", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "short_factor: None: .*a list of 3"),
        ("phi-4", {"rope_scaling": LONGROPE}, r"short_factor: \[.*a list of 3 numbers above 0, one for each pair that"),
        ("phi-4-mini", {"rope_scaling": LONGROPE | {"long_mscale": 1.2}}, "rope_scaling long_mscale: 1.2: not support"),
        ("qwen-3.5", {"attn_output_gate": False}, "attn_output_gate: False: not supported; accepted: True"),
        ("glm-5", {"indexer_rope_interleave": False}, "indexer_rope_interleave: False: .*accepted: True"),
        ("glm-5", {"indexer_types": ["shared", "full", "full"]}, "indexer_types: .*3 of full, shared, the first"),
        ("deepseek-v3.2", {"index_topk_freq": 2, "index_skip_topk_offset": 1}, "accepted: 3 of full, the first"),
        ("gemma-2", {"sliding_window_size": 4095}, "sliding_window_size: 4095: not supported"),
        ("qwen-3.5", {"hidden_act": "gelu"}, "hidden_act: 'gelu': not supported; accepted: silu, swish"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise: 0.1: not supported; accepted: 0.0"),
        ("glm-4.5", {"n_group": 3}, "n_group: 3: accepted: a divisor of the 8 experts"),
        ("glm-4.5", {"topk_group": 1}, "num_experts_per_tok: 3: more than the experts of 1 groups; .* at most 2"),
    ],
)  # fmt: skip
def test_what_a_family_cannot_compute_is_refused(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf(CASES[name] | changed)


@pytest.mark.parametrize(
    ("name", "key", "means"),
    [
        ("deepseek-v3", "eos_token_id", {"eos_ids": (1,)}),
        ("deepseek-v3", "bos_token_id", {"bos_id": 0}),
        ("qwen-3-next", "intermediate_size", {"d_ff": 5632}),
        ("qwen-3.5", "intermediate_size", {"d_ff": 12_288}),
    ],
)  # fmt: skip
def test_a_key_that_transformers_leaves_out_has_its_default(name: str, key: str, means: dict[str, Any]) -> None:
    raw = {other: value for other, value in CASES[name].items() if other != key}
    assert from_hf(raw) == replace(from_hf(CASES[name]), **means)


def test_keys_that_transformers_writes_without_need_are_read() -> None:
    assert from_hf(CASES["deepseek-v3"] | {"qk_head_dim": 17}) == from_hf(CASES["deepseek-v3"])
    without_experts = from_hf(CASES["qwen-3-next"] | {"num_experts": 0, "decoder_sparse_step": 99})
    assert without_experts == replace(from_hf(CASES["qwen-3-next"]), experts=None, dense_layers=())


@pytest.mark.parametrize(
    ("name", "released"),
    [
        ("qwen-3.5", {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
                      "mtp_use_dedicated_embeddings": False}),
        ("qwen-3.5-moe", {"attn_output_gate": True, "output_gate_type": "swish", "mtp_num_hidden_layers": 1}),
        ("glm-5", {"indexer_rope_interleave": True, "rope_interleave": True, "index_share_for_mtp_iteration": True}),
        ("gemma-2", {"sliding_window_size": CASES["gemma-2"]["sliding_window"]}),
        ("llama-4", {"no_rope_layers": []}),
    ],
)  # fmt: skip
def test_keys_of_released_files_say_what_the_model_is_anyway(name: str, released: dict[str, Any]) -> None:
    assert from_hf(CASES[name] | released) == from_hf(CASES[name])


def test_a_whole_gemma_3_has_no_soft_cap_on_logits_unlike_its_text_part_alone() -> None:
    text = CASES["gemma-3"] | {"final_logit_softcapping": 5.0}
    assert from_hf(text).final_softcap == 5.0
    assert from_hf({"model_type": "gemma3", "text_config": text, "mm_tokens_per_image": 9}).final_softcap is None


def test_a_yarn_of_one_of_several_kinds_of_layers_is_truncated_whatever_it_says() -> None:
    """transformers looks for `truncate` beside the kinds; elsewhere the file decides, and null is false there."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 24}
    of_kinds = {"full_attention": yarn | {"truncate": False}, "sliding_attention": yarn | {"truncate": False}}
    olmo = from_hf(CASES["olmo-3"] | {"rope_theta": None, "rope_scaling": None, "rope_parameters": of_kinds})
    assert olmo.local_rope is not None
    for rope, is_truncated in (
        (olmo.rope, True),
        (olmo.local_rope, True),
        (from_hf(CASES["qwen-2.5"] | {"rope_scaling": yarn | {"truncate": False}}).rope, False),
        (from_hf(CASES["qwen-2.5"] | {"rope_scaling": yarn | {"truncate": None}}).rope, False),
        (from_hf(CASES["qwen-2.5"] | {"rope_scaling": yarn}).rope, True),
    ):
        assert isinstance(rope.scaling, YarnScaling)
        assert rope.scaling.truncate is is_truncated


def test_long_factors_of_phi_are_read_in_all_spellings_and_written_as_released() -> None:
    released = from_hf(CASES["phi-4-mini"])
    assert to_hf(released)["rope_scaling"] == LONGROPE
    for name in ("su", "yarn"):
        assert from_hf(CASES["phi-4-mini"] | {"rope_scaling": LONGROPE | {"type": name}}) == released
    saved = LONGROPE | {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                        "original_max_position_embeddings": 999, "factor": 4.0}  # fmt: skip
    assert from_hf(CASES["phi-4-mini"] | {"rope_scaling": None, "rope_parameters": saved}) == released


@pytest.mark.parametrize("name", ["glm-4.5", "deepseek-v3", "deepseek-v3.2"])
def test_a_model_whose_layers_are_all_dense_has_no_experts_whatever_its_file_says_of_them(name: str) -> None:
    config = from_hf(CASES[name] | {"first_k_dense_replace": 9, "num_nextn_predict_layers": 0})
    assert (config.experts, config.dense_layers, len(config.groups)) == (None, (), 1)
    assert from_hf(to_hf(config)) == config
    assert from_hf(CASES[name] | {"first_k_dense_replace": 0}).dense_layers == ()


@pytest.mark.parametrize("query_rank", [22, None])
def test_biases_of_latent_attention_are_of_both_latents_and_of_the_result(query_rank: int | None) -> None:
    config = from_hf(CASES["deepseek-v3-dense"] | {"q_lora_rank": query_rank})
    names = {
        name.partition("self_attn.")[2] for name in stored_shapes(config, Model(config).abstract()) if "bias" in name
    }
    assert names == {"kv_a_proj_with_mqa.bias", "o_proj.bias"} | ({"q_a_proj.bias"} if query_rank else set())
    assert from_hf(to_hf(config)) == config


def test_a_soft_cap_of_gemma_3_on_scores_has_no_effect_as_in_transformers() -> None:
    assert from_hf(CASES["gemma-3"] | {"attn_logit_softcapping": 8.0}) == from_hf(CASES["gemma-3"])


@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_mistral_3_that_says_nothing_of_its_head_is_tied_if_its_files_have_none(
    is_indexed: bool, tmp_path: Path
) -> None:
    raw = {"model_type": "mistral3", "text_config": CASES["mistral"] | {"tie_word_embeddings": True}}
    for head, top, is_tied in ((True, {}, False), (False, {}, True), (True, {"tie_word_embeddings": True}, True)):
        (tmp_path / "config.json").write_text(json.dumps(raw | top))
        names = ["language_model.model.embed_tokens.weight", *(["language_model.lm_head.weight"] if head else [])]
        if is_indexed:  # all that is fetched where no weights are needed
            index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        else:
            save_file({name: np.zeros((1, 1), np.float32) for name in names}, tmp_path / "model.safetensors")
        assert open_source(f"file://{tmp_path}", "spec.model.uri", print).config.tied_head == is_tied


def test_a_head_that_is_not_the_embedding_is_refused_where_the_file_says_that_it_is(tmp_path: Path) -> None:
    raw = CASES["llama-3.2-tied"] | {"num_hidden_layers": 1}
    file = write_checkpoint(tmp_path, raw) / "model.safetensors"
    tensors = load_file(file)
    head = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors | {"lm_head.weight": head}, file)
    load_model(tmp_path)
    save_file(tensors | {"lm_head.weight": 2 * head}, file)
    with pytest.raises(
        ConfigError, match=r"lm_head.weight is not the embedding, although .*hint: false there uses this"
    ):
        load_model(tmp_path)


def test_layers_of_glm_that_share_a_choice_are_listed_or_follow_from_a_pattern_or_a_rule() -> None:
    config = from_hf(CASES["glm-5.1"])
    assert [config.chooser(layer) for layer in range(4)] == [0, 0, 0, 3]
    assert [len(parameters.indexer(group.config)) > 0 for group, _ in config.layer_places] == [True, False, False, True]
    plain = CASES["glm-5.1"] | {"index_topk_pattern": None}
    assert from_hf(plain | {"indexer_types": ["full", "shared", "shared", "full"]}) == config
    assert from_hf(plain | {"index_topk_freq": 3, "index_skip_topk_offset": 1}) == config
    assert from_hf(plain | {"index_topk_freq": 3}).following_layers == (False, False, True, True)
    assert from_hf(plain).following_layers == ()


def test_the_longest_sequence_of_a_job_decides_which_factors_count() -> None:
    config, original = from_hf(CASES["phi-4-mini"]), 5 * ORIGINAL
    plain = 1e4 ** (-np.arange(0, 12, 2) / 12)
    for length, factors, longest in ((original, "short_factor", original), (original + 1, "long_factor", 480)):
        of_job = structure_of(config, Training(sequence_length=length), "cpu").config
        np.testing.assert_allclose(frequencies(of_job.rope, 16), plain / np.array(LONGROPE[factors]), rtol=1e-6)
        assert of_job.longest == longest
        student = structure_of(from_hf(CASES["phi-4"]), Training(sequence_length=length), "cpu")
        assert auxiliary_structure(config, student).config == of_job
    assert to_hf(of_job) == to_hf(config)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"model_type": "qwen9", "layer_types": ["linear_attention", "full_attention"], "mamba_d_state": 64},
         "'qwen9': not supported: has layers of kind linear_attention, state-space layers, which no family here has; "
         "accepted: deepseek_v3, deepseek_v32, gemma2, .*; hint: qwen"),
        ({"model_type": "bert", "text_config": {"layer_norm_eps": 1e-12}}, "has layer norms in place of RMS norms"),
        ({"model_type": "yi"}, "'yi': not supported; accepted: deepseek_v3, .*; hint: docs/guides/add-a-model.md"),
    ],
)  # fmt: skip
def test_an_unknown_family_is_refused_with_what_is_different_and_those_there_are(
    raw: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf(raw)


def test_layers_that_predict_further_tokens_are_left_in_the_file(tmp_path: Path) -> None:
    """As released: GLM 4.5's one layer behind the last. A second one is none that config.json knows."""
    directory = write_checkpoint(tmp_path, CASES["glm-4.5"])
    tensors, further = load_file(directory / "model.safetensors"), np.zeros((4, 4), np.float32)
    save_file(tensors | {"model.layers.3.eh_proj.weight": further}, directory / "model.safetensors", {"format": "pt"})
    _, params = load_model(directory)
    np.testing.assert_array_equal(params["embedding"], tensors["model.embed_tokens.weight"])
    save_file(tensors | {"model.layers.4.eh_proj.weight": further}, directory / "model.safetensors")
    with pytest.raises(ConfigError, match=r"extra model\.layers\.4\.eh_proj\.weight"):
        load_model(directory)


def test_random_weights_are_those_of_the_keys_that_flax_draws() -> None:
    spec, ours, flax = ParamSpec((3, 2), ("a", "b")), nnx.Rngs(5), nnx.Rngs(5)
    for _ in range(3):
        wanted = jax.random.truncated_normal(flax.params(), -3.0, 3.0, (3, 2))
        np.testing.assert_array_equal(linear.weight(ours, spec, 1.0)[...], wanted)
