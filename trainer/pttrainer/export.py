"""The trained model in Hugging Face's layout: what others load, and what the next job starts from.

`config.json` is written last and makes the export complete: a reader that finds it finds everything.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ptapi import rundir
from pttrainer.models import ModelConfig, to_hf
from pttrainer.models.weights import save
from pttrainer.storage import Directory, Place, write_error
from pttrainer.tokenizer import Tokenizer


def export(place: Place, config: ModelConfig, params: Any, tokenizer: Tokenizer, chat_template: str | None) -> str:
    """Writes weights (host arrays), tokenizer, template and config below the run directory; returns the URI."""
    config_file = f"{rundir.EXPORT}/config.json"
    place.remove(config_file)
    _write_weights(place, config, params)
    for name, content in tokenizer.files.items():
        place.write(f"{rundir.EXPORT}/{name}", content)
    if chat_template is not None:
        place.write(f"{rundir.EXPORT}/chat_template.jinja", chat_template.encode())
    place.write(config_file, json.dumps(to_hf(config), indent=2).encode())
    return f"{place.uri}/{rundir.EXPORT}"


def _write_weights(place: Place, config: ModelConfig, params: Any) -> None:
    """Beside the target on a disk (then renamed), in a temporary directory for anything else."""
    near = place.path if isinstance(place, Directory) else None
    try:
        with tempfile.TemporaryDirectory(dir=near, prefix=".export-") as scratch:
            save(config, params, Path(scratch))
            for file in sorted(Path(scratch).iterdir()):
                if near is None:
                    place.write(f"{rundir.EXPORT}/{file.name}", file.read_bytes())
                else:
                    (near / rundir.EXPORT).mkdir(exist_ok=True)
                    shutil.move(file, near / rundir.EXPORT / file.name)
    except OSError as error:
        raise write_error(f"{place.uri}/{rundir.EXPORT}", error) from error
