"""Flags of XPK and gcluster, parsed as those tools parse them: nothing is guessed, nothing is dropped."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.command_lines.shell import as_text, unknown
from ptctl.importers.draft import Draft
from ptctl.importers.secrets import is_secret, without_secrets
from ptctl.jobs.definition.from_flags import apply_flags
from ptctl.ui.command_line.xpk_flags import CREATE

_UNKNOWN = "unknown to ptctl: see the help of that tool, and set the field of the same meaning with --set"
_OF_PATHWAYS = {
    "JAX_PLATFORMS": ("proxy",),
    "JAX_BACKEND_TARGET": ("grpc://127.0.0.1:29000", "grpc://localhost:29000", "grpc://$(PATHWAYS_HEAD):29000"),
    "ENABLE_PATHWAYS_PERSISTENCE": ("1",),
    "XCLOUD_ENVIRONMENT": ("GCP",),
}
"""Variables that the operator sets, with the values that mean the same."""
_PATHWAYS_ARGUMENTS = {
    "pathways.serverArgs": ("--custom-pathways-server-args", "--pathways-server-args"),
    "pathways.proxyArgs": ("--custom-pathways-proxy-server-args", "--pathways-proxy-args"),
    "pathways.workerArgs": ("--custom-pathways-worker-args", "--pathways-worker-args"),
}
_PATHWAYS_SIDECAR = ("--colocated-python-sidecar-image", "--pathways-colocated-python-sidecar-image")
_NUMBERS = ("num_slices", "max_restarts", "elastic_slices")
_SECONDS = ("ttl_seconds_after_finished", "termination_grace_period_seconds")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Tool:
    """A tool's submit command: its name, its flags by their name in `ptctl workload create`, and its switches."""

    name: str
    flags: Mapping[str, str]
    switches: Mapping[str, str] = field(default_factory=dict)
    other_switches: frozenset[str] = frozenset()
    advice: Mapping[str, str] = field(default_factory=dict)

    def advice_for(self, flag: str) -> str:
        """Return what to do about a flag without a counterpart."""
        return self.advice.get(flag) or CREATE.get(flag) or _UNKNOWN


@dataclass
class ParsedFlags:
    """The flags of one command: those of `ptctl workload create`, and the others with their values."""

    known: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    others: list[tuple[str, str]] = field(default_factory=list)

    def other(self, *flags: str) -> str | None:
        """Take the value of another flag out of the list."""
        for pair in self.others:
            if pair[0] in flags:
                self.others.remove(pair)
                return pair[1]
        return None


def read_flags(words: tuple[str, ...], tool: Tool) -> ParsedFlags:
    """Return the flags of a command. Raises InputError for a flag without its value, and for two that contradict."""
    parsed, rest = ParsedFlags(), list(words)
    while rest:
        flag, sign, value = rest.pop(0).partition("=")
        if not flag.startswith("-"):
            parsed.others.append((flag + sign + value, ""))
        elif flag in tool.switches or flag in tool.other_switches:
            _switch(parsed, tool, flag, value if sign else "true")
        elif sign or (rest and (flag in tool.flags or not rest[0].startswith("-"))):
            _value(parsed, tool, flag, value if sign else rest.pop(0))
        elif flag in tool.flags:
            raise InputError(f"{tool.name}: {flag}: not set; accepted: a value")
        else:
            parsed.others.append((flag, ""))
    return parsed


def _switch(parsed: ParsedFlags, tool: Tool, flag: str, value: str) -> None:
    if flag in tool.switches:
        parsed.known[tool.switches[flag]] = value.lower() != "false"
    else:
        parsed.others.append((flag, "" if value == "true" else value))


def _value(parsed: ParsedFlags, tool: Tool, flag: str, value: str) -> None:
    key = tool.flags.get(flag)
    if key is None:
        parsed.others.append((flag, value))
    elif key == "env":
        name, sign, text = value.partition("=")
        if not sign:
            raise InputError(f"{tool.name}: {flag} {as_text(value)!r}; accepted: NAME=VALUE")
        parsed.env[name] = text
    elif key == "docker_image_pull_secret":
        parsed.known[key] = (*parsed.known.get(key, ()), value)
    else:
        converted = _converted(key, value, f"{tool.name}: {flag}")
        if parsed.known.get(key, converted) != converted:
            raise InputError(f"{tool.name}: {flag} {value}: contradicts {parsed.known[key]}; accepted: one value")
        parsed.known[key] = converted


def _converted(key: str, value: str, where: str) -> Any:
    if unknown(value) or key not in (*_NUMBERS, *_SECONDS):
        return value
    match = re.fullmatch(r"(\d+)([smhd]?)", value)
    if match is None or (match[2] and key in _NUMBERS):
        accepted = "a whole number" if key in _NUMBERS else "seconds, or a duration such as 90s, 15m, 1h"
        raise InputError(f"{where} {value!r}; accepted: {accepted}")
    return int(match[1]) * _UNITS[match[2]]


def put_pathways_flags(draft: Draft, parsed: ParsedFlags) -> None:
    """Move Pathways' flags from the others into their fields."""
    for path, flags in _PATHWAYS_ARGUMENTS.items():
        if value := parsed.other(*flags):
            draft.put(f"spec.{path}", value.split(), flags[0])
    if image := parsed.other(*_PATHWAYS_SIDECAR):
        draft.put("spec.pathways.colocatedPythonImage", image, _PATHWAYS_SIDECAR[0])


def put_flags(draft: Draft, parsed: ParsedFlags, tool: Tool) -> None:
    """Write the flags into a draft; every other one becomes a note."""
    apply_flags(draft.job, {key: value for key, value in parsed.known.items() if key != "command"})
    put_environment(draft, parsed.env)
    for flag, value in parsed.others:
        shown = "(not shown)" if is_secret(flag) and value else without_secrets(as_text(value))[0]
        draft.note(f"{flag} {shown}".strip(), tool.advice_for(flag))


def put_environment(draft: Draft, variables: Mapping[str, str]) -> None:
    """Write environment variables, the secret ones as references."""
    for name, value in variables.items():
        references = [one for one in unknown(value) if is_secret(one)]
        if draft.get("spec.pathways.enabled") and value in _OF_PATHWAYS.get(name, ()):
            draft.note(f"{name}={as_text(value)}", "the operator sets it for every Pathways job")
        elif is_secret(name) and not value:
            draft.note(f"{name}=''", "the secret is empty and is left out")
        elif is_secret(name) or references or without_secrets(value)[1]:
            draft.secret(name)
        elif unknown(value):
            raise InputError(f"{name}={as_text(value)}: accepted: a value that is known before the command runs")
        else:
            draft.variable(name, value)
