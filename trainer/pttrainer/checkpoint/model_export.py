"""Write the trained model in Hugging Face's layout, or its adapters in PEFT's: for other tools and the next job.

`config.json` (for adapters, `adapter_config.json`) is written last and makes the export complete: a reader that finds
it finds everything. Weights come from the devices one layer at a time.
"""

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
from pttrainer.models.loading.model_spec import SCORE
from pttrainer.models.lora import adapters
from pttrainer.models.weights.hf_names import Stored, in_files, table
from pttrainer.models.weights.save_weights import save, save_adapters
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.io.storage_errors import write_error
from pttrainer.train_step.critic import Critic

CONFIG = "config.json"


@dataclass(frozen=True)
class ExportWriter:
    """The way arrays reach the host that writes. All processes must take part; one writes.

    fetch: from an array on the mesh to one on this host, on every process.
    """

    fetch: Callable[[Any], Any]
    is_writer: bool = True


@dataclass(frozen=True)
class TokenizerFiles:
    """The files that turn text into the model's tokens."""

    tokenizer: Tokenizer
    chat_template: str | None


@dataclass(frozen=True)
class BaseModelRef:
    """The model that adapters are added to, as PEFT names it."""

    uri: str
    commit: str | None = None


def export(
    target: Place,
    model: Model,
    params: Params,
    tokenizer_files: TokenizerFiles,
    writer: ExportWriter,
    score_D: Any = None,
) -> None:
    """Write weights (adapters merged into them), tokenizer, template and config. score_D: a reward model's head."""
    params = model.merged(params)
    names = in_files(model.config)
    config = to_hf(model.config) | _number_format(params)
    if score_D is not None:
        names, params = {**names, ("score",): Stored(SCORE)}, {**params, "score": score_D[None]}
        config |= _one_output(config, tokenizer_files.tokenizer.pad_id)
    _write(
        target,
        CONFIG,
        config,
        tokenizer_files,
        lambda scratch: save(names, params, scratch, writer.fetch),
        writer.is_writer,
    )


def export_adapters(
    target: Place,
    model: Model,
    base: BaseModelRef,
    trained: Params,
    tokenizer_files: TokenizerFiles,
    writer: ExportWriter,
) -> None:
    """Write only the adapters in PEFT's layout, with the model they belong to."""
    assert model.adapters is not None
    adapters.check_peft(model.config, model.adapters, "adapters apart")
    names = adapters.names(model.config, model.adapters)

    def write_weights(scratch: Path | None) -> None:
        save_adapters(names, trained, scratch and scratch / adapters.WEIGHTS_FILE, writer.fetch)

    _write(target, adapters.CONFIG_FILE, adapter_config(model, base), tokenizer_files, write_weights, writer.is_writer)


def export_critic(target: Place, critic: Critic, params: Params, frozen: Params | None, writer: ExportWriter) -> None:
    """Write a critic in Hugging Face's layout: its value head, and a critic model's merged weights and config.

    frozen: the policy's weights that adapters are added to.
    """
    weights = None if critic.model is None else critic.model.merged(critic.whole(params, frozen))

    def write_weights(scratch: Path | None) -> None:
        if critic.model is not None and weights is not None:
            save(table(critic.model.config), weights, scratch, writer.fetch)
        value_head.write(scratch and scratch / value_head.FILE, params["value"], writer.fetch)

    if not writer.is_writer:
        write_weights(None)
        return
    target.remove(CONFIG)
    _write_weights(target, write_weights)
    if critic.model is not None:
        config = to_hf(critic.model.config) | _number_format(weights)
        target.write(CONFIG, json.dumps(config, indent=2).encode())


def adapter_config(model: Model, base: BaseModelRef) -> dict[str, Any]:
    """Return PEFT's `adapter_config.json`."""
    lora = model.adapters
    assert lora is not None
    parameters = adapters.target_parameters(model.config, lora)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.uri.removeprefix("hf://").removeprefix("file://"),
        "revision": base.commit,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "use_rslora": lora.is_rank_stabilised,
        "target_modules": adapters.target_modules(model.config, lora),
        **({"target_parameters": parameters} if parameters else {}),
        **adapters.patterns(model.config, lora),
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
    tokenizer_files: TokenizerFiles,
    write_weights: Callable[[Path | None], None],
    is_writer: bool,
) -> None:
    if not is_writer:
        write_weights(None)
        return
    for name in (CONFIG, adapters.CONFIG_FILE):
        target.remove(name)
    _write_weights(target, write_weights)
    for name, content in tokenizer_files.tokenizer.files.items():
        target.write(name, content)
    if tokenizer_files.chat_template is not None:
        target.write("chat_template.jinja", tokenizer_files.chat_template.encode())
    target.write(config_name, json.dumps(config, indent=2).encode())


def _write_weights(target: Place, writer: Callable[[Path], None]) -> None:
    """Write next to the target on a disk (then rename), in a temporary directory for a bucket."""
    try:
        if isinstance(target, Directory):
            target.path.mkdir(parents=True, exist_ok=True)
            near: Path | None = target.path
        else:
            near = None
        with tempfile.TemporaryDirectory(dir=near, prefix=".export-") as scratch:
            writer(Path(scratch))
            _remove_older(target)
            for file in sorted(Path(scratch).iterdir()):
                if isinstance(target, Directory):
                    shutil.move(file, target.path / file.name)
                else:
                    target.upload(file.name, file)
    except OSError as error:
        raise write_error(target.uri, error) from error


def _one_output(config: dict[str, Any], pad_id: int) -> dict[str, Any]:
    """Return what makes a config that of transformers' sequence classification, which scores the last token."""
    architectures = [name.replace("ForCausalLM", "ForSequenceClassification") for name in config["architectures"]]
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {"architectures": architectures, **labels, "pad_token_id": pad_id}


def _remove_older(target: Place) -> None:
    """Remove weights of an earlier export, whose files may have other names."""
    for name in target.names():
        if name.endswith((".safetensors", ".safetensors.index.json")) and "/" not in name:
            target.remove(name)


def _number_format(params: Any) -> dict[str, str]:
    return {"torch_dtype": str(params["embedding"].dtype)}
