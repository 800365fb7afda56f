"""What the supervisor tells the rest of the world, in one small JSON file that is replaced as a whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from ptlocal.paths import Layout

Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


@dataclass(frozen=True)
class Component:
    """A child process (or the controllers, which live in the supervisor itself)."""

    name: str
    pid: int | None
    restarts: int = 0
    detail: str = ""


@dataclass(frozen=True)
class State:
    """`message`: what is being started or stopped, or why it failed; `server`: the API server's address."""

    phase: Phase
    message: str = ""
    server: str = ""
    components: list[Component] = field(default_factory=list)


def write_state(layout: Layout, state: State) -> None:
    scratch = layout.state_file.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(state), indent=1))
    scratch.replace(layout.state_file)


def read_state(layout: Layout) -> State | None:
    try:
        found = json.loads(layout.state_file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return State(**{**found, "components": [Component(**c) for c in found["components"]]})
