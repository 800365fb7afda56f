"""Beginning with adapters in PEFT's layout: the same numbers, and one error for all that does not fit."""

import dataclasses
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from tests.builders.peers.image_models import RAW

from pttrainer.checkpoint.model_export import BaseModelRef, ExportWriter, TokenizerFiles, export_adapters
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, from_hf, preset
from pttrainer.models.loading.peft_adapters import differences, open_initial_adapters
from pttrainer.models.lora import adapters
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.weights.safetensors_file import read_header, write_header
from pttrainer.runtime.io.directory import Directory

MODEL = Model(preset("tiny"), adapters=Adapters(4, 8.0, adapters.ATTENTION + adapters.MLP))
THEIRS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": False, "bias": "none",
          "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}  # fmt: skip


@lru_cache
def trained() -> Any:
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: random.standard_normal(x.shape).astype(x.dtype), MODEL.trained(MODEL.abstract()))


def exported(directory: Path) -> Path:
    words, write = TokenizerFiles(byte_tokenizer(), None), ExportWriter(jax.device_get)
    export_adapters(Directory(directory), MODEL, BaseModelRef("hf://org/name"), trained(), words, write)
    return directory


def opened(directory: Path, model: Model = MODEL) -> Any:
    device = SingleDeviceSharding(jax.devices()[0])
    initial_adapters = open_initial_adapters(f"file://{directory}", model, lambda line: None)
    return initial_adapters.params(model, jax.tree.map(lambda _: device, model.trained(model.abstract())))


def rewritten(directory: Path, change: Any) -> None:
    """The tensors of an export, changed by name."""
    file = directory / adapters.WEIGHTS_FILE
    tensors = change({name: tensor.rows(0, tensor.shape[0]) for name, tensor in read_header(file).items()})
    with file.open("wb") as out:
        write_header(out, ((name, x.dtype, x.shape) for name, x in tensors.items()))
        for x in tensors.values():
            out.write(np.ascontiguousarray(x).tobytes())


def test_an_export_is_read_back_to_the_bit(tmp_path: Path) -> None:
    jax.tree.map(np.testing.assert_array_equal, opened(exported(tmp_path)), trained())


def test_adapters_in_half_precision_become_float32(tmp_path: Path) -> None:
    rewritten(exported(tmp_path), lambda tensors: {name: x.astype(ml_dtypes.bfloat16) for name, x in tensors.items()})
    tensors = opened(tmp_path)
    jax.tree.map(lambda got, x: np.testing.assert_allclose(got, x, rtol=2**-8), tensors, trained())
    assert {x.dtype for x in jax.tree.leaves(tensors)} == {np.dtype(np.float32)}


def test_what_fits_has_no_differences_also_by_whole_names() -> None:
    assert differences(THEIRS, MODEL) == []
    whole = [f"model.layers.{i}.self_attn.{name}" for i in range(2) for name in THEIRS["target_modules"]]
    assert differences({**THEIRS, "target_modules": whole, "use_dora": False, "rank_pattern": {}}, MODEL) == []


def test_all_that_differs_is_one_error_with_both_values(tmp_path: Path) -> None:
    exported(tmp_path)
    chosen = Adapters(8, 4.0, adapters.ATTENTION, True)
    with pytest.raises(ConfigError) as raised:
        opened(tmp_path, dataclasses.replace(MODEL, adapters=chosen))
    message = str(raised.value)
    assert message.startswith(f"spec.training.lora.from: file://{tmp_path}: adapter_config.json does not fit the job: ")
    for part in (
        "r is 4 there and 8 by spec.training.lora.rank",
        "lora_alpha is 8 there and 4.0 by spec.training.lora.alpha",
        "use_rslora is False there and True by spec.training.lora.rsLora",
        "target_modules are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj there and k_proj, o_proj, "
        "q_proj, v_proj by spec.training.lora.targets",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("field", "value"),
    [("use_dora", True), ("peft_type", "LOHA"), ("bias", "all"),
     ("modules_to_save", ["lm_head"]), ("rank_pattern", {"q_proj": 8})],
)  # fmt: skip
def test_what_peft_would_compute_otherwise_is_refused(field: str, value: Any) -> None:
    (problem,) = differences({**THEIRS, field: value}, MODEL)
    assert problem.startswith(f"{field} is {value!r} there, which is not supported; accepted: ")


def test_missing_extra_and_misshapen_tensors_are_one_error(tmp_path: Path) -> None:
    start = "base_model.model.model.layers.1."

    def change(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        missing = {name: x for name, x in tensors.items() if name != f"{start}mlp.up_proj.lora_A.weight"}
        small = tensors[f"{start}self_attn.q_proj.lora_B.weight"][:-1]
        return {**missing, f"{start}self_attn.q_proj.lora_B.weight": small, f"{start}mlp.router.lora_A.weight": small}

    rewritten(exported(tmp_path), change)
    with pytest.raises(ConfigError) as raised:
        opened(tmp_path)
    message = str(raised.value)
    assert f"missing {start}mlp.up_proj.lora_A.weight (our layers.mlp.up_lora.a[1])" in message
    assert f"extra {start}mlp.router.lora_A.weight" in message
    assert f"{start}self_attn.q_proj.lora_B.weight (our layers.attention.q_lora.b[1]) is [" in message


@pytest.mark.parametrize("absent", [adapters.CONFIG_FILE, adapters.WEIGHTS_FILE])
def test_a_directory_without_adapters_says_what_it_lacks(absent: str, tmp_path: Path) -> None:
    (exported(tmp_path) / absent).unlink()
    with pytest.raises(ConfigError, match=f"no {absent}; accepted: PEFT's layout"):
        opened(tmp_path)


def test_a_config_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (exported(tmp_path) / adapters.CONFIG_FILE).write_text(json.dumps(THEIRS)[:-4])
    with pytest.raises(ConfigError, match="is not valid JSON"):
        opened(tmp_path)


def test_adapters_of_a_model_with_images_are_on_its_decoder_alone() -> None:
    config = from_hf(RAW, images=True)
    chosen = Adapters(4, 8.0, adapters.matrices(config, "all-linear"))
    assert all(".model.language_model.layers." in stored.name for stored in adapters.names(config, chosen).values())
    pattern = adapters.target_modules(config, chosen)
    assert isinstance(pattern, str)
    assert re.fullmatch(pattern, "model.language_model.layers.3.self_attn.q_proj")
    assert not re.fullmatch(pattern, "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj")
    with pytest.raises(ConfigError, match=r"here: PEFT ties no adapters of embedding and head in a model with images"):
        adapters.check_peft(config, dataclasses.replace(chosen, embeddings=True), "here")
