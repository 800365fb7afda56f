"""Gemma 4 beyond its numbers (`test_references`): files as they are released, several devices, what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.builders.peers.inference import forward, load_model, plain
from tests.builders.peers.models import CASES, LENGTH, examples, tensors, write_checkpoint

from ptapi.spec import Training
from pttrainer.__main__ import main
from pttrainer.errors import ConfigError
from pttrainer.models import Model, from_hf, to_hf
from pttrainer.models.shapes import parameters
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step.optimizer import freeze_patterns

SMALL, LARGE = CASES["gemma-4-small"], CASES["gemma-4"]


def released(directory: Path) -> Path:
    """The text part nested, encoders beside it, and keys and values of layers that read another layer's."""
    directory.mkdir()
    config = {
        "model_type": "gemma4", "text_config": SMALL, "vision_config": {"hidden_size": 8}, "image_token_id": 90,
        "audio_config": {"hidden_size": 8}, "audio_token_id": 91, "video_token_id": 92, "boa_token_id": 93,
        "eoa_token_index": 94, "vision_soft_tokens_per_image": 9, "eos_token_id": [1, 2],
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    stored = {name.replace("model.", "model.language_model.", 1): x for name, x in tensors(SMALL).items()}
    unread = np.ones((10, 42), np.float32)
    more = [f"language_model.layers.7.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm")]
    more += ["vision_tower.encoder.layers.0.mlp.up_proj.linear.weight", "embed_vision.embedding_projection.weight"]
    more += ["audio_tower.output_proj.weight", "embed_audio.embedding_projection.weight"]
    save_file(stored | {f"model.{name}": unread for name in more}, directory / "model.safetensors")
    return directory


def test_a_released_file_is_its_text_part(tmp_path: Path) -> None:
    model, params = load_model(released(tmp_path / "released"))
    wanted, weights = load_model(write_checkpoint(tmp_path / "text", SMALL))
    ids = (("audio_token_id", 91), ("video_token_id", 92))
    others = {"image_token_id": 90, "unsupported_token_ids": ids, "eos_ids": (1, 2)}
    assert model.config == dataclasses.replace(wanted.config, **others)
    jax.tree.map(np.testing.assert_array_equal, params, weights)


@pytest.mark.parametrize("verb", ["logits", "generate"])
def test_ids_that_stand_for_sound_are_refused(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ids.json").write_text("[[5, 91, 7]]")
    model = ["--model", f"file://{released(tmp_path / 'released')}", "--tokens", str(tmp_path / "ids.json")]
    assert main([verb, *model, *(["--out", "x.npy"] if verb == "logits" else ["--max-new", "2"])]) != 0
    answer = capsys.readouterr().err
    assert "--tokens: id 91: stands for audio (audio_token_id of config.json), which is not supported" in answer


@pytest.mark.parametrize("number", ["{}", "{:02}"])
def test_heads_of_global_layers_are_read_in_both_spellings(number: str) -> None:
    """As transformers writes them, which fills numbers with zeros from ten layers on."""
    each = {number.format(layer): {"head_dim": 16, "num_key_value_heads": 1} for layer in (2, 5, 6)}
    by_layer = {key: value for key, value in LARGE.items() if "global" not in key} | {"per_layer_config": each}
    assert from_hf(by_layer) == from_hf(LARGE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers: 6: .*so few that a layer of each kind"),
        ({"per_layer_config": {"2": {"head_dim": 16}}}, "per_layer_config: .*the same for layers 2, 5, 6"),
        ({"per_layer_config": {str(n): {"rope": 1} for n in (2, 5, 6)}}, "per_layer_config: .*accepted: head_dim and"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention: 'all': .*accepted: None, vision"),
        ({"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 9}, r"accepted: at least vocab_size \(107\)"),
        ({"num_global_key_value_heads": 4}, "num_attention_heads: 6: .*a multiple of num_key_value_heads"),
    ],
)
def test_what_cannot_be_computed_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parameters.decoder(from_hf(LARGE | changed))


def test_the_last_layer_is_global_whatever_the_file_says() -> None:
    config = from_hf(LARGE | {"layer_types": ["sliding_attention"] * 7})
    assert config.local_layers == (True,) * 6 + (False,)
    assert to_hf(config)["layer_types"][-1] == "full_attention"


def test_no_job_trains_the_numbers_that_multiply_layers() -> None:
    config = from_hf(SMALL)
    frozen = freeze_patterns.fully_frozen(freeze_patterns.patterns_of(Training(), config), config)
    assert frozen == {(group.name, "scalar") for group in config.groups}
    words = freeze_patterns.fully_frozen(("embeddings",), config)
    assert words == {("embedding",), ("layer_embeddings", "table")}


def test_sampling_on_a_cpu_continues_like_the_whole_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes fill the kernels' registers, and rows are longer than the window."""
    sizes = {"head_dim": 16, "global_head_dim": 32, "hidden_size": 48, "hidden_size_per_layer_input": 16}
    directory = write_checkpoint(tmp_path / "model", SMALL | sizes | {"intermediate_size": 64})
    prompts = [example.tolist() for example in examples(SMALL)[1:]]
    (tmp_path / "ids.json").write_text(json.dumps(prompts))
    words = ["--model", f"file://{directory}", "--tokens", str(tmp_path / "ids.json"), "--max-new", "20"]
    assert main(["generate", *words]) == 0
    rows = json.loads(capsys.readouterr().out)
    whole = [np.array([*prompt, *new], np.int32) for prompt, new in zip(prompts, rows, strict=True)]
    logits_BTV = forward(*load_model(directory), [plain(row, LENGTH) for row in whole])
    for prompt, row, logits_TV in zip(prompts, whole, logits_BTV, strict=True):
        likeliest = logits_TV.argmax(-1)[len(prompt) - 1 : len(row) - 1]
        assert row[len(prompt) :].tolist() == likeliest.tolist()


def test_several_devices_compute_what_one_does(tmp_path: Path) -> None:
    """Rows, tokens, heads and weights are split; the keys of a model's one head are not."""
    model, params = load_model(write_checkpoint(tmp_path, SMALL))
    whole, *short = examples(SMALL)
    rows = [plain(example, LENGTH) for example in (whole, *short)]
    wanted_TV = forward(model, params, rows)
    mesh = sharding.make_mesh((1, 2, 2, 2))
    where = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    with jax.set_mesh(mesh):
        got_TV = forward(Model(model.config), jax.device_put(params, where), rows)
    for got, wanted, example in zip(got_TV, wanted_TV, (whole, *short), strict=True):
        np.testing.assert_allclose(got[: len(example)], wanted[: len(example)], atol=5e-5)
