"""Start a run from adapters in PEFT's layout: another run's export, or anyone's.

Their config must match the job's rank, alpha, rsLoRA and targets, and use nothing of PEFT that we do not support. All
differences are one error with both values; so are missing, extra or misshapen tensors. Number formats may differ:
adapters are float32 here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params
from pttrainer.models.lora import adapters
from pttrainer.models.weights.load_weights import load_adapters
from pttrainer.runtime.io import json_text, model_files
from pttrainer.runtime.io.model_files import Note

FIELD = "spec.training.lora.from"

PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "fan_in_fan_out": (False,),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, []),
}
"""Required values of other fields of an adapter_config.json, if present: otherwise PEFT computes something else."""


@dataclass(frozen=True)
class InitialAdapters:
    """Local adapters that fit a model; their commit, if they have one (hf://)."""

    uri: str
    directory: Path
    commit: str | None

    def params(self, model: Model, shardings: Params) -> Params:
        """Return the adapters, on their shardings; raise ConfigError if tensors do not fit."""
        assert model.adapters is not None
        names = adapters.names(model.config, model.adapters)
        abstract = model.trained(model.abstract())
        loaded: Params = load_adapters(
            names,
            self.directory / adapters.WEIGHTS_FILE,
            abstract,
            shardings,
            display_name=f"{FIELD}: {self.uri}",
            unread=adapters.repeated(model.config, model.adapters),
        )
        return loaded


def open_initial_adapters(uri: str, model: Model, note: Note, pinned: str | None = None) -> InitialAdapters:
    """Fetch what the URI names and compare its config with the job's; raise ConfigError with all differences.

    pinned: the commit that an earlier attempt of this run began with.
    """
    display_name = f"{FIELD}: {uri}"
    files = model_files.fetch_adapters(uri, FIELD, note, revision=pinned)
    problems = differences(_read_config(files.directory, display_name), model)
    if problems:
        raise ConfigError(f"{display_name}: {adapters.CONFIG_FILE} does not fit the job: {'; '.join(problems)}")
    return InitialAdapters(uri, files.directory, files.commit)


def differences(config: dict[str, Any], model: Model) -> list[str]:
    """Return each field of an adapter_config.json that differs from the job's, with both values."""
    lora = model.adapters
    assert lora is not None
    problems = [
        f"{name} is {config.get(name, default)!r} there and {ours!r} by spec.training.lora.{field}"
        for name, default, field, ours in (
            ("r", 8, "rank", lora.rank),
            ("lora_alpha", 8, "alpha", lora.alpha),
            ("use_rslora", False, "rsLora", lora.is_rank_stabilised),
        )
        if config.get(name, default) != ours
    ]
    targets, ours = config.get("target_modules"), adapters.modules(model.config, lora)
    if isinstance(targets, list) and (theirs := sorted({str(name).rpartition(".")[2] for name in targets})) != ours:
        problems.append(
            f"target_modules are {', '.join(theirs)} there and {', '.join(ours)} by spec.training.lora.targets"
        )
    own = adapters.patterns(model.config, lora)
    problems += [
        f"{name} is {config[name]!r} there, which is not supported; accepted: {own.get(name, {})!r}"
        for name in ("rank_pattern", "alpha_pattern")
        if name in config and config[name] != own.get(name, {})
    ]
    parameters = adapters.target_parameters(model.config, lora)
    problems += [
        f"{name} is {config[name]!r} there, which is not supported; accepted: {accepted[0]!r}"
        for name, accepted in {**PLAIN, "target_parameters": (parameters,) if parameters else (None, [])}.items()
        if name in config and config[name] not in accepted
    ]
    return problems


def _read_config(directory: Path, display_name: str) -> dict[str, Any]:
    file = directory / adapters.CONFIG_FILE
    try:
        config = json_text.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{display_name}: no {adapters.CONFIG_FILE}; accepted: PEFT's layout, such as export/ of a run with "
            "export.format: peft"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; accepted: what PEFT writes") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: is not an object; accepted: what PEFT writes")
    return config
