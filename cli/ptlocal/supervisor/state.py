"""The supervisor's state for other processes, in one small JSON file that is replaced atomically."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from ptlocal.paths import Layout

Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


@dataclass(frozen=True)
class Component:
    """A child process, or the controllers, which run in the supervisor itself."""

    name: str
    pid: int | None
    restarts: int = 0
    detail: str = ""


@dataclass(frozen=True)
class State:
    """`message`: what is starting or stopping, or why it failed; `server`: the API server's address."""

    phase: Phase
    message: str = ""
    server: str = ""
    components: list[Component] = field(default_factory=list)


def write_state(layout: Layout, state: State) -> None:
    """Replace the state file."""
    scratch = layout.state_file.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(state), indent=1))
    scratch.replace(layout.state_file)


def read_state(layout: Layout) -> State | None:
    """Return the state in the file, or None if there is none."""
    try:
        state = json.loads(layout.state_file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return State(**{**state, "components": [Component(**c) for c in state["components"]]})
