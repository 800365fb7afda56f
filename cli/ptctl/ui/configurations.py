"""Named sets of defaults, as gcloud's configurations: one file of the user's, one of them active.

Precedence of a property: the flag, the job's file, `PTCTL_PROPERTY` of the environment, the active configuration, what
the verb does without. `PTCTL_CONFIGURATION` chooses another one for a shell. Reading must be cheap: every verb does it.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ptctl.errors import InputError, MissingError
from ptctl.ui.user_directory import user_directory

DEFAULT = "default"
"""The configuration that `set` makes where there is none."""
ACTIVE_ENV = "PTCTL_CONFIGURATION"
PROPERTIES = {
    "context": "context of the kubeconfig",
    "namespace": "namespace of jobs",
    "accelerator": "accelerator type of a new job that names none",
    "output": "where the results of a new job go that says nothing else",
    "queue": "Kueue LocalQueue of a new job that names none",
    "project": "Google Cloud project, after GOOGLE_CLOUD_PROJECT",
    "location": "region or zone of clusters",
    "zone": "zone of a new cluster",
}
"""What each sets; their forms are checked where `set` is typed."""


@dataclass
class Configurations:
    """All of them, by name, and the active one's name; empty if there is none."""

    active: str = ""
    by_name: dict[str, dict[str, str]] = field(default_factory=dict)

    def named(self, name: str) -> dict[str, str]:
        """Return the properties of one. Raises MissingError with the names that exist."""
        if name not in self.by_name:
            known = ", ".join(self.by_name) or "none"
            raise MissingError(
                f"configuration {name!r} does not exist; there are: {known}", "`ptctl config create NAME` makes one"
            )
        return self.by_name[name]


def variable(name: str) -> str:
    """Return the environment variable of a property."""
    return f"PTCTL_{name.upper()}"


def value(name: str) -> str | None:
    """Return a property in effect, or None."""
    return in_effect(name)[0]


def in_effect(name: str) -> tuple[str | None, str]:
    """Return a property in effect, and where it comes from."""
    if chosen := os.environ.get(variable(name)):
        return chosen, variable(name)
    configurations = read()
    active = active_name(configurations)
    if not active:
        return None, ""
    return configurations.named(active).get(name), f"configuration {active}"


def active_name(configurations: Configurations) -> str:
    """Return the name of the configuration in effect; empty if there is none."""
    return os.environ.get(ACTIVE_ENV) or configurations.active


def read() -> Configurations:
    """Return all configurations. Raises InputError for a file that is not ptctl's."""
    path = _path()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        by_name = {
            str(name): {str(k): str(v) for k, v in one.items()} for name, one in document["configurations"].items()
        }
        return Configurations(str(document["active"]), by_name)
    except FileNotFoundError:
        return Configurations()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not what `ptctl config` writes", f"mend it, or delete it: rm {path}") from error


@contextmanager
def changing() -> Iterator[Configurations]:
    """Yield the configurations and write what they have become, one writer at a time; nothing after an exception."""
    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            configurations = read()
            yield configurations
            part = path.with_suffix(".part")
            document = {"active": configurations.active, "configurations": configurations.by_name}
            part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            part.replace(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}", "PTCTL_HOME names another directory"
        ) from error


def _path() -> Path:
    return user_directory() / "configurations.json"
