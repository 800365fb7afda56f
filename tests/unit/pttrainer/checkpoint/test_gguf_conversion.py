"""What llama.cpp's convert_hf_to_gguf.py reads of an export: architecture, sizes, tensors, tokenizer.

The names of tensors are looked up in its own table, which the `gguf` package has; the sizes are those that its modules
for these families index without a default.
"""

import json
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.builders.peers.models import CASES, write_checkpoint

from pttrainer.checkpoint.model_export import ExportWriter, TokenizerFiles, export
from pttrainer.data.tokenization import tokenizer
from pttrainer.models import Model, from_hf
from pttrainer.models.weights.load_weights import load
from pttrainer.runtime.io.directory import Directory

GEMMA_2 = ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "head_dim", "num_key_value_heads")
FAMILIES = {
    "llama-3.1": ("LlamaForCausalLM", gguf.MODEL_ARCH.LLAMA, ("vocab_size", "rope_scaling")),
    "mistral": ("MistralForCausalLM", gguf.MODEL_ARCH.LLAMA, ("vocab_size",)),
    "qwen-2.5": ("Qwen2ForCausalLM", gguf.MODEL_ARCH.QWEN2, ()),
    "qwen-3": ("Qwen3ForCausalLM", gguf.MODEL_ARCH.QWEN3, ("head_dim",)),
    "gemma-2": ("Gemma2ForCausalLM", gguf.MODEL_ARCH.GEMMA2, GEMMA_2),
    "gemma-3": ("Gemma3ForCausalLM", gguf.MODEL_ARCH.GEMMA3, ("sliding_window", "head_dim")),
}
SIZES = (
    "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "max_position_embeddings",
    "rms_norm_eps",
)  # fmt: skip


@pytest.mark.parametrize("case", FAMILIES)
def test_an_export_has_what_the_converter_reads(case: str, tmp_path: Path) -> None:
    architecture, kind, more = FAMILIES[case]
    raw = CASES[case]
    source, out = write_checkpoint(tmp_path / "model", raw), tmp_path / "export"
    for name, content in tokenizer.byte_tokenizer().files.items():
        (source / name).write_bytes(content)
    (source / "tokenizer.model").write_bytes(b"sentencepiece")  # Gemma's and Mistral's, which it prefers
    model = Model(from_hf(raw))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = model.abstract()
    params = load(model.config, source, abstract, jax.tree.map(lambda _: here, abstract))
    words = tokenizer.load(Directory(source))
    export(Directory(out), model, params, TokenizerFiles(words, words.template), ExportWriter(np.asarray))
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert [key for key in (*SIZES, *more) if config.get(key) is None] == []
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    types_of_names = {name: names.get_type(name, (".weight", ".bias")) for name in load_file(out / "model.safetensors")}
    assert {name for name, tensor in types_of_names.items() if tensor not in gguf.MODEL_TENSORS[kind]} == set()
    vocabulary = gguf.SpecialVocab(out, load_merges=True)
    assert vocabulary.special_token_ids == {"bos": 256, "eos": 257, "pad": 258}
    assert vocabulary.chat_template == words.template
    assert (out / "tokenizer.model").read_bytes() == b"sentencepiece"
