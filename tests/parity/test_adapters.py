"""Adapters against `peft`, live: our unmerged logits, the PEFT export and the merged export are one model."""

from pathlib import Path

import jax
import numpy as np
import peft
import pytest
from safetensors.numpy import load_file
from tests.builders.peers import transformers_reference as reference
from tests.builders.peers.adapters import CASES, EMBEDDED, adapted, export_both
from tests.builders.peers.inference import forward, greedy, load_model, plain
from tests.builders.peers.models import CASES as MODELS
from tests.builders.peers.models import LENGTH, examples, write_checkpoint

from pttrainer.models.loading.peft_adapters import open_initial_adapters

TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is above 1. Not to be loosened."""

# PEFT stores what transformers fuses: gate and up of all experts as one. It reads ours, one by one, as well.
APART = [name for name in CASES if name not in ("qwen-3-moe", "mixtral")]
# One adapter of ours for each matrix in a module of Phi's, in blocks: its rank is not PEFT's.
ALL_LINEAR = [
    name for name, (targets, _) in CASES.items() if targets == "all-linear" and name in APART and name != "phi-4"
]


WITH_TABLES = [(name, False) for name in CASES] + [(name, True) for name in EMBEDDED]


@pytest.mark.parametrize(("name", "embeddings"), WITH_TABLES)
def test_both_exports_have_the_logits_of_our_adapters_there(name: str, embeddings: bool, tmp_path: Path) -> None:
    raw = MODELS[name]
    base = write_checkpoint(tmp_path / "base", raw)
    plain_model, weights = load_model(base)
    model, params = adapted(plain_model, weights, name, embeddings=embeddings)
    whole, *short = examples(raw)
    (ours_TV,) = forward(model, params, [plain(whole, LENGTH)])
    (without_TV,) = forward(plain_model, weights, [plain(whole, LENGTH)])
    assert np.abs(ours_TV - without_TV).max() > 0.5  # the adapters do something
    apart, merged = export_both(model, params, base, tmp_path)
    theirs = peft.PeftModel.from_pretrained(reference.load_reference(base), apart).eval()
    assert np.abs(ours_TV - reference.logits(theirs, whole)).max() <= TOLERANCE
    assert np.abs(ours_TV - reference.logits(reference.load_reference(merged), whole)).max() <= TOLERANCE
    (continued,) = greedy(model, params, short[:1], 32)
    np.testing.assert_array_equal(continued, reference.greedy(theirs, short[0], 32))


@pytest.mark.parametrize("name", APART)
def test_every_stored_adapter_is_one_that_peft_would_store(name: str, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", MODELS[name])
    model, params = adapted(*load_model(base), name)
    apart, _ = export_both(model, params, base, tmp_path)
    theirs = peft.get_peft_model(reference.load_reference(base), peft.LoraConfig.from_pretrained(apart))
    theirs.save_pretrained(tmp_path / "theirs")
    assert _shapes(apart) == _shapes(tmp_path / "theirs")


@pytest.mark.parametrize("name", EMBEDDED)
def test_adapters_that_peft_made_on_embedding_and_head_are_read_as_it_reads_them(name: str, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", MODELS[name])
    model, params = adapted(*load_model(base), name, embeddings=True)
    apart, _ = export_both(model, params, base, tmp_path)
    theirs = peft.PeftModel.from_pretrained(reference.load_reference(base), apart)
    theirs.save_pretrained(tmp_path / "theirs")
    initial_adapters = open_initial_adapters(f"file://{tmp_path / 'theirs'}", model, lambda line: None)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    loaded = initial_adapters.params(model, jax.tree.map(lambda _: device, model.trained(model.abstract())))
    jax.tree.map(np.testing.assert_array_equal, loaded, model.trained(params))


@pytest.mark.parametrize("name", ALL_LINEAR)
def test_all_linear_means_what_it_means_in_peft(name: str, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", MODELS[name])
    model, params = adapted(*load_model(base), name)
    apart, _ = export_both(model, params, base, tmp_path)
    config = peft.LoraConfig(r=5, target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(reference.load_reference(base), config).save_pretrained(tmp_path / "theirs")
    assert _shapes(apart) == _shapes(tmp_path / "theirs")


def test_all_linear_of_a_mixture_has_the_router_and_every_expert_as_in_peft(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", MODELS["qwen-3-moe"])
    model, params = adapted(*load_model(base), "qwen-3-moe")
    config = peft.LoraConfig(r=5, target_modules="all-linear", task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(reference.load_reference(base), config)
    of_layer = {name for name, _ in theirs.named_parameters() if "layers.0" in name and "lora_A" in name}
    assert {name.split("layers.0.")[1].split(".lora_A")[0] for name in of_layer} == {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate", "mlp.experts",
        "mlp.experts.base_layer",
    }  # fmt: skip
    ours = model.trained(params)["layers"]["mlp"]
    assert {name: ours[name]["a"].shape[1:] for name in ours} == {
        "router_lora": (42, 5), "gate_lora": (7, 42, 5), "up_lora": (7, 42, 5), "down_lora": (7, 19, 5),
    }  # fmt: skip


def _shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in load_file(directory / "adapter_model.safetensors").items()}
