"""YAML of Axolotl and of TRL."""

import re
from pathlib import Path
from typing import Any

from ptapi.errors import SpecError
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptctl.importers.draft import Draft
from ptctl.importers.huggingface import axolotl

_SETTINGS = re.compile(r"(?m)^(base_model|model_name_or_path)\s*:")
_OTHERS = {"finetuning_type": "LLaMA-Factory", "stage": "LLaMA-Factory"}


def is_settings(text: str) -> bool:
    """Return True for YAML with Axolotl's or TRL's name of the model at its top."""
    return _SETTINGS.search(text) is not None and not re.search(r"(?m)^(apiVersion|kind)\s*:", text)


def draft_of(text: str, where: str) -> Draft:
    """Return the job of a file alone. Raises InputError for TRL's, which does not say which trainer reads it."""
    values = read(text, where)
    if "base_model" in values:
        return axolotl.draft_of(values, f"Axolotl's {Path(where).name}", None, {})
    for word, tool in _OTHERS.items():
        if word in values:
            raise InputError(f"{where}: {word}: {values[word]}: settings of {tool}; accepted: TRL's and Axolotl's")
    raise InputError(
        f"{where}: TRL's settings without a trainer; accepted: the command that reads them",
        f"ptctl import --command 'trl sft --config {where}', or dpo, grpo, rloo in the place of sft",
    )


def read_file(folder: Path, name: str, where: str) -> dict[str, Any]:
    """Return the settings of a file that a command names."""
    try:
        return read((folder / name).read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}: {name}: cannot be read: {reason}; accepted: a file beside the script") from error


def read(text: str, where: str) -> dict[str, Any]:
    """Return the settings of YAML."""
    try:
        values = kubectl_yaml.read(text)
    except SpecError as error:
        raise InputError("\n  ".join(f"{where}: {finding}" for finding in error.findings)) from error
    if not isinstance(values, dict):
        raise InputError(f"{where}: no settings; accepted: YAML with one setting a line")
    return {str(name): value for name, value in values.items()}
