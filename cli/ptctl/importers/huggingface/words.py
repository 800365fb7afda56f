"""The settings of a run by TRL's names, as the source has them, with the defaults of its tool.

Each setting that becomes a field is taken by a method here; `rest` is what no one took, so that nothing is dropped.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.secrets import is_secret, without_secrets

_SPECIAL_TOKENS = ("eos_token", "pad_token", "bos_token", "unk_token")
_TRUE, _FALSE = ("true", "1", "yes", "y", "on"), ("false", "0", "no", "n", "off")


@dataclass
class Words:
    """Settings by name. names: the source's own name of each, where it is another; used: those that were taken."""

    values: dict[str, Any]
    defaults: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def is_given(self, name: str) -> bool:
        """Return True if the source sets it."""
        return self.values.get(name) is not None

    def take(self, name: str) -> Any:
        """Return a setting, or its tool's default."""
        self.used.add(name)
        return self.values[name] if self.is_given(name) else self.defaults.get(name)

    def text(self, name: str) -> str:
        """Return a setting as text; empty if it is not set."""
        value = self.take(name)
        return "" if value is None else str(value).strip()

    def number(self, name: str) -> float:
        """Return a number. Raises InputError for anything else."""
        return as_number(self.take(name), self.shown(name))

    def whole(self, name: str) -> int:
        """Return a whole number. Raises InputError for anything else."""
        value = self.number(name)
        if value != int(value):
            raise InputError(f"{self.shown(name)}: accepted: a whole number")
        return int(value)

    def is_on(self, name: str) -> bool:
        """Return a switch. Raises InputError for anything that is none."""
        text = self.text(name).lower() or "false"
        if text not in (*_TRUE, *_FALSE):
            raise InputError(f"{self.shown(name)}: accepted: true or false")
        return text in _TRUE

    def several(self, name: str) -> list[str]:
        """Return a list; one value is a list of one."""
        value = self.take(name)
        if value is None or value == "":
            return []
        return [str(one) for one in value] if isinstance(value, list) else [str(value)]

    def numbers(self, name: str) -> list[float]:
        """Return a list of numbers. Raises InputError for anything else."""
        return [as_number(one, self.shown(name)) for one in self.several(name)]

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a map, which a command line writes as JSON. Raises InputError for anything else."""
        value = self.take(name)
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except ValueError as error:
                raise InputError(f"{self.shown(name)}: accepted: a map, or JSON of one") from error
        if value and not isinstance(value, dict):
            raise InputError(f"{self.shown(name)}: accepted: a map")
        return dict(value or {})

    def maps(self, name: str) -> list[dict[str, Any]]:
        """Return a list of maps, of which one with `path` alone may be text. Raises InputError for anything else."""
        value = self.take(name) or []
        entries = value if isinstance(value, list) else [value]
        if not all(isinstance(one, (dict, str)) for one in entries):
            raise InputError(f"{self.shown(name)}: accepted: a list of maps with `path`")
        return [one if isinstance(one, dict) else {"path": one} for one in entries]

    def shown(self, name: str) -> str:
        """Return a setting as a note shows it, without a secret."""
        value = self.values.get(name)
        if value is None:
            return f"{self.names.get(name, name)}: unset, {self.defaults.get(name)}"
        shown = "(not shown)" if self.is_secret(name) else without_secrets(str(value))[0]
        return f"{self.names.get(name, name)}: {shown}"

    def is_secret(self, name: str) -> bool:
        """Return True for a setting whose value is a secret."""
        value = self.values.get(name)
        return is_secret(name) and name not in _SPECIAL_TOKENS and isinstance(value, str) and bool(value)

    def rest(self) -> list[str]:
        """Return the settings that nobody took, in the order of the source."""
        return [name for name in self.values if name not in self.used and self.is_given(name)]


def as_number(value: Any, shown: str) -> float:
    """Return a number. Raises InputError for anything else; shown: the setting in the message."""
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (TypeError, ValueError) as error:
        raise InputError(f"{shown}: accepted: a number") from error
