"""The zip file that a sandbox runs as a program: our own modules, the user's file if there is one, and the requests.

A sandbox's image has Python and nothing of ours, so what its program needs goes with every request; that is some 30 KB.
It is never read twice, so a program of the model's that changes files of its sandbox changes no later one's.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ptapi
import pttrainer
from pttrainer.sandbox.agent.entry import CODE, TASK

ENTRY = "pttrainer/sandbox/agent/entry.py"

MODULES = (
    "ptapi/__init__.py", "ptapi/failures.py",
    "pttrainer/__init__.py", "pttrainer/errors.py",
    "pttrainer/environments/__init__.py", "pttrainer/environments/python_tool.py", "pttrainer/environments/tool.py",
    "pttrainer/rewards/__init__.py", "pttrainer/rewards/builtin/__init__.py", "pttrainer/rewards/builtin/code.py",
    "pttrainer/runtime/__init__.py", "pttrainer/runtime/io/__init__.py", "pttrainer/runtime/io/json_text.py",
    "pttrainer/runtime/reporting/__init__.py", "pttrainer/runtime/reporting/step_faults.py",
    "pttrainer/sandbox/__init__.py", "pttrainer/sandbox/captured_output.py", "pttrainer/sandbox/child.py",
    "pttrainer/sandbox/confinement.py", "pttrainer/sandbox/handlers.py", "pttrainer/sandbox/pool.py",
    "pttrainer/sandbox/process.py", "pttrainer/sandbox/user_code.py",
)  # fmt: skip
"""All that a handler of `KINDS` imports; each needs the standard library of Python 3.11 and nothing else."""
KINDS = ("code", "tool")
"""Kinds of sources that may run in a sandbox: each request stands alone. Environments keep state between turns."""


class Bundle:
    """Zip files for the requests of one source."""

    def __init__(self, field: str, source: Mapping[str, Any]) -> None:
        self._field = field
        kept = {name: value for name, value in source.items() if name not in ("path", "packages")}
        self._file = Path(source["path"]) if "path" in source else None
        self._source = kept | ({"path": self._file.name} if self._file else {})
        self._base = self._modules()

    def of(self, requests: Sequence[tuple[Any, float]]) -> bytes:
        """Return the zip file for requests: a message and its time limit in seconds each."""
        made = io.BytesIO(self._base)
        with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as archive:
            task = {"field": self._field, "source": self._source, "requests": requests}
            archive.writestr(TASK, json.dumps(task))
        return made.getvalue()

    def _modules(self) -> bytes:
        roots = {"ptapi": Path(ptapi.__path__[0]).parent, "pttrainer": Path(pttrainer.__path__[0]).parent}
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in MODULES:
                archive.writestr(name, (roots[name.partition("/")[0]] / name).read_bytes())
            archive.writestr("__main__.py", (roots["pttrainer"] / ENTRY).read_bytes())
            if self._file is not None:
                archive.writestr(CODE + self._file.name, self._file.read_bytes())
        return made.getvalue()
