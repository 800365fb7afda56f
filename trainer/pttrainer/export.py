"""The trained model in Hugging Face's layout: what others load, and what the next job starts from.

`config.json` is written last and makes the export complete: a reader that finds it finds everything. Weights
come from the devices one layer at a time.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pttrainer.models import ModelConfig, to_hf
from pttrainer.models.weights import save
from pttrainer.storage import Directory, Place, write_error
from pttrainer.tokenizer import Tokenizer

CONFIG = "config.json"


def export(
    target: Place,
    config: ModelConfig,
    params: Any,
    tokenizer: Tokenizer,
    chat_template: str | None,
    *,
    fetch: Callable[[Any], Any],
    is_writer: bool = True,
) -> None:
    """Writes weights, tokenizer, template and config. All processes must call it; one writes.

    fetch: from an array on the mesh to one on this host, on every process.
    """
    if not is_writer:
        save(config, params, None, fetch)
        return
    target.remove(CONFIG)
    _write_weights(target, config, params, fetch)
    for name, content in tokenizer.files.items():
        target.write(name, content)
    if chat_template is not None:
        target.write("chat_template.jinja", chat_template.encode())
    target.write(CONFIG, json.dumps(to_hf(config) | _number_format(params), indent=2).encode())


def _write_weights(target: Place, config: ModelConfig, params: Any, fetch: Callable[[Any], Any]) -> None:
    """Beside the target on a disk (then renamed), in a temporary directory for a bucket."""
    try:
        if isinstance(target, Directory):
            target.path.mkdir(parents=True, exist_ok=True)
            near: Path | None = target.path
        else:
            near = None
        with tempfile.TemporaryDirectory(dir=near, prefix=".export-") as scratch:
            save(config, params, Path(scratch), fetch)
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
