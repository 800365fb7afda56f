"""Command lines that start a trainer: what is started, on how many GPUs, and its words.

`trl`, `python`, `accelerate launch`, `torchrun`, `deepspeed` and `axolotl` are told apart; what else stands before the
program (`uv run`, `nohup`) is passed over.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.command_lines.shell import Command

TRAINERS = ("sft", "dpo", "grpo", "rloo", "kto", "reward", "orpo", "cpo", "gkd", "distillation", "online_dpo", "ppo",
            "bco", "xpo", "nash_md", "gold", "async_grpo", "prm")  # fmt: skip
"""TRL's trainers, in the names of its programs; not all of them have a counterpart."""
_LAUNCHERS = ("accelerate", "torchrun", "deepspeed")
_BEFORE = ("uv", "run", "nohup", "time", "exec", "poetry", "srun", "launch", "-u", "--no-sync")
_PROCESSES = ("num_processes", "nproc_per_node", "num_gpus", "nproc-per-node")
_NODES = ("nnodes", "num_nodes")
_OWN_SCRIPT = re.compile(r"(.*/)?(trl/(scripts|experimental/\w+)|examples/scripts)/\w+\.py")
_NAMED = re.compile(rf"(?:.*[/_-])?({'|'.join(sorted(TRAINERS, key=len, reverse=True))})(?:[_-]\w+)?\.py")


@dataclass
class Launch:
    """A trainer's start. target: `trl sft`, `axolotl`, or a script's path; options: the launcher's own."""

    target: str
    words: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def trainer(self) -> str:
        """Return TRL's trainer by the program's name; empty if the name does not say."""
        match = _NAMED.fullmatch(self.target)
        return match[1] if match else self.target.removeprefix("trl ") if self.target.startswith("trl ") else ""

    @property
    def is_own_script(self) -> bool:
        """Return True for a program that is not TRL's, whose code may do anything."""
        return self.target.endswith(".py") and not _OWN_SCRIPT.fullmatch(self.target)


def launch_of(command: Command) -> Launch | None:
    """Return a command's start of a trainer, or None for any other command."""
    words = list(command.words)
    while words and words[0] in _BEFORE:
        words.pop(0)
    if not words:
        return None
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program == "trl" and rest[:1] and rest[0].replace("-", "_") in TRAINERS:
        return Launch(f"trl {rest[0].replace('-', '_')}", tuple(rest[1:]))
    if program == "axolotl" and rest[:1] == ["train"]:
        return Launch("axolotl", tuple(rest[1:]))
    if program in _LAUNCHERS and (program != "accelerate" or rest[:1] == ["launch"]):
        return _launched(rest[1:] if program == "accelerate" else rest)
    if re.fullmatch(r"python[\d.]*", program):
        launch = _launched(rest)
        return launch if launch is not None and _is_known(launch) else None
    return None


def _is_known(launch: Launch) -> bool:
    """Return True for a program of TRL's or Axolotl's, or one that is named after a trainer and is not MaxText's."""
    is_named = bool(launch.trainer) and "maxtext" not in launch.target.lower()
    return is_named or launch.target == "axolotl" or not launch.is_own_script


def _launched(words: list[str]) -> Launch | None:
    """Return the start behind a launcher's options, or None without a program."""
    options: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        name, sign, value = word.lstrip("-").partition("=")
        if word in ("-m", "--module") and words:
            if words[0] in ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"):
                words.pop(0)
                continue
            return _module(words[0], tuple(words[1:]), options)
        if word.endswith(".py"):
            return Launch(word, tuple(words), options)
        if not word.startswith("-"):
            return None
        takes_next = not sign and words and not words[0].startswith("-") and not words[0].endswith(".py")
        options[name.replace("-", "_")] = words.pop(0) if takes_next else value if sign else "true"
    return None


def _module(module: str, words: tuple[str, ...], options: dict[str, Any]) -> Launch:
    if module in ("axolotl.cli.train", "axolotl.cli.main"):
        return Launch("axolotl", words[1:] if words[:1] == ("train",) else words, options)
    if match := re.fullmatch(r"trl\.(?:scripts|experimental\.\w+)\.(\w+)", module):
        return Launch(f"trl {match[1]}", words, options)
    return Launch(module.replace(".", "/") + ".py", words, options)


def settings(words: tuple[str, ...], where: str) -> tuple[list[str], dict[str, Any]]:
    """Return the words without a flag, and the flags: text, a list of several, or True."""
    plain: list[str] = []
    flags: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            plain.append(word)
            continue
        name, sign, value = word[2:].partition("=")
        values = [value] if sign else []
        while not sign and rest and (not rest[0].startswith("-") or re.fullmatch(r"-[\d.e-]+", rest[0])):
            values.append(rest.pop(0))
        key, one = name.replace("-", "_"), values[0] if len(values) == 1 else values or True
        if key.startswith("no_") and one is True:
            key, one = key[3:], False
        if flags.get(key, one) != one:
            raise InputError(f"{where}: --{name} {one}: contradicts {flags[key]}; accepted: one value")
        flags[key] = one
    return plain, flags


def gpus(options: Mapping[str, Any], environment: Mapping[str, str]) -> int | None:
    """Return how many GPUs a launcher's options name, or None if they leave it to the machine."""
    count = next((options[name] for name in _PROCESSES if options.get(name) is not None), None)
    if count is not None and str(count).isdigit():
        is_per_node = not any(options.get(name) for name in ("num_processes", "num_gpus"))
        nodes = next((options[name] for name in _NODES if options.get(name)), 1) if is_per_node else 1
        return int(count) * int(nodes) if str(nodes).isdigit() else None
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return len(visible.split(",")) if re.fullmatch(r"\d+(,\d+)*", visible) else None
