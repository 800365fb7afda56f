"""Write a model as MaxText's checkpoint, by Orbax: `load_parameters_path=DIR/0/items`, the tokenizer's files in DIR.

The checkpoint appears whole: Orbax writes it under another name first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from pttrainer.checkpoint import maxtext_layout
from pttrainer.checkpoint.model_export import TokenizerFiles
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params

ITEMS = "0/items"
"""Step and item of MaxText's checkpoints of weights alone."""


def export(
    target: Path,
    model: Model,
    params: Params,
    tokenizer_files: TokenizerFiles,
    fetch: Callable[[Any], Any],
    *,
    scan: bool,
) -> None:
    """Write the weights, adapters merged into them. Raises ConfigError."""
    if (target / ITEMS).exists():
        raise ConfigError(f"--out: {target}: holds a checkpoint in {ITEMS}; accepted: a directory without one")
    maxtext_layout.check(model.config)
    tree = maxtext_layout.nested(maxtext_layout.weights(model.config, model.merged(params), fetch, scan=scan))
    target.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer_files.tokenizer.files.items():
        (target / name).write_bytes(content)
    if tokenizer_files.chat_template is not None:
        (target / "chat_template.jinja").write_text(tokenizer_files.chat_template, encoding="utf-8")
    with ocp.PyTreeCheckpointer(use_ocdbt=True, use_zarr3=True) as checkpointer:
        checkpointer.save(target / ITEMS, {"params": {"params": tree}, "step": 0, "opt_state": {}})
