"""The trained model in Hugging Face's layout, or its adapters in PEFT's: what others load, and what the next job
starts from.

`config.json` (of adapters, `adapter_config.json`) is written last and makes the export complete: a reader that
finds it finds everything. Weights come from the devices one layer at a time.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.models import Model, Params, to_hf
from pttrainer.models.loading import value_head
from pttrainer.models.lora import adapters
from pttrainer.models.weights.hf_names import table
from pttrainer.models.weights.load_save import save, save_adapters
from pttrainer.runtime.io.storage import Directory, Place, write_error
from pttrainer.train_step.critic import Critic

CONFIG = "config.json"


@dataclass(frozen=True)
class Writing:
    """How arrays come to the host that writes. All processes must take part; one writes.

    fetch: from an array on the mesh to one on this host, on every process.
    """

    fetch: Callable[[Any], Any]
    is_writer: bool = True


@dataclass(frozen=True)
class Words:
    """What turns text into the model's tokens."""

    tokenizer: Tokenizer
    chat_template: str | None


@dataclass(frozen=True)
class Base:
    """The model that adapters are put on, as PEFT names it."""

    uri: str
    commit: str | None = None


def export(
    target: Place,
    model: Model,
    params: Params,
    words: Words,
    write: Writing,
) -> None:
    """Writes weights (adapters merged into them), tokenizer, template and config."""
    params = model.merged(params)
    names = table(model.config)
    config = to_hf(model.config) | _number_format(params)
    _write(target, CONFIG, config, words, lambda scratch: save(names, params, scratch, write.fetch), write.is_writer)


def export_adapters(
    target: Place,
    model: Model,
    base: Base,
    trained: Params,
    words: Words,
    write: Writing,
) -> None:
    """As `export`, in PEFT's layout: the adapters alone, and which model they belong to."""
    assert model.adapters is not None
    names = adapters.names(model.config, model.adapters)

    def write_weights(scratch: Path | None) -> None:
        save_adapters(names, trained, scratch and scratch / adapters.WEIGHTS_FILE, write.fetch)

    _write(target, adapters.CONFIG_FILE, adapter_config(model, base), words, write_weights, write.is_writer)


def export_critic(target: Place, critic: Critic, params: Params, frozen: Params | None, write: Writing) -> None:
    """Writes a critic: its value head, and for a critic model its weights (adapters merged into them) and config in
    Hugging Face's layout. frozen: the policy's weights that adapters are on."""
    weights = None if critic.model is None else critic.model.merged(critic.whole(params, frozen))

    def write_weights(scratch: Path | None) -> None:
        if critic.model is not None and weights is not None:
            save(table(critic.model.config), weights, scratch, write.fetch)
        value_head.write(scratch and scratch / value_head.FILE, params["value"], write.fetch)

    if not write.is_writer:
        write_weights(None)
        return
    target.remove(CONFIG)
    _write_weights(target, write_weights)
    if critic.model is not None:
        config = to_hf(critic.model.config) | _number_format(weights)
        target.write(CONFIG, json.dumps(config, indent=2).encode())


def adapter_config(model: Model, base: Base) -> dict[str, Any]:
    """PEFT's `adapter_config.json`."""
    lora = model.adapters
    assert lora is not None
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.uri.removeprefix("hf://").removeprefix("file://"),
        "revision": base.commit,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "use_rslora": lora.is_rank_stabilised,
        "target_modules": adapters.modules(model.config, lora),
        "lora_dropout": lora.dropout,
        **({"ensure_weight_tying": True} if lora.embeddings and model.config.tied_head else {}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def _write(
    target: Place,
    config_name: str,
    config: dict[str, Any],
    words: Words,
    write_weights: Callable[[Path | None], None],
    is_writer: bool,
) -> None:
    if not is_writer:
        write_weights(None)
        return
    for name in (CONFIG, adapters.CONFIG_FILE):
        target.remove(name)
    _write_weights(target, write_weights)
    for name, content in words.tokenizer.files.items():
        target.write(name, content)
    if words.chat_template is not None:
        target.write("chat_template.jinja", words.chat_template.encode())
    target.write(config_name, json.dumps(config, indent=2).encode())


def _write_weights(target: Place, write: Callable[[Path], None]) -> None:
    """Beside the target on a disk (then renamed), in a temporary directory for a bucket."""
    try:
        if isinstance(target, Directory):
            target.path.mkdir(parents=True, exist_ok=True)
            near: Path | None = target.path
        else:
            near = None
        with tempfile.TemporaryDirectory(dir=near, prefix=".export-") as scratch:
            write(Path(scratch))
            _remove_older(target)
            for file in sorted(Path(scratch).iterdir()):
                if isinstance(target, Directory):
                    shutil.move(file, target.path / file.name)
                else:
                    target.upload(file.name, file)
    except OSError as error:
        raise write_error(target.uri, error) from error


def _remove_older(target: Place) -> None:
    """Weights of an earlier export, whose files may have had other names."""
    for name in target.names():
        if name.endswith((".safetensors", ".safetensors.index.json")) and "/" not in name:
            target.remove(name)


def _number_format(params: Any) -> dict[str, str]:
    return {"torch_dtype": str(params["embedding"].dtype)}
