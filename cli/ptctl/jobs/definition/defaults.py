"""What a new job takes from the user's configuration where neither flags nor its file say it."""

from ptctl.jobs.definition.from_flags import local_uri
from ptctl.ui import configurations
from ptctl.ui.console import Console
from ptkube.resources import Manifest

_FIELDS = {"accelerator": ("accelerator", "type"), "output": ("output", "uri"), "queue": ("queue",)}
"""By property: its field below spec."""


def put_defaults(job: Manifest, console: Console) -> None:
    """Write into `job`, in place, what it lacks, and say so: a job must not surprise whoever pays for it."""
    spec = job.get("spec")
    if not isinstance(spec, dict):
        return
    for name, path in _FIELDS.items():
        parent = spec.setdefault(path[0], {}) if len(path) == 2 else spec
        if not isinstance(parent, dict) or parent.get(path[-1]) is not None:
            continue
        value, origin = configurations.in_effect(name)
        if value is not None:
            parent[path[-1]] = local_uri(value) if name == "output" else value
            console.say(f"{'.'.join(path)}: {value} ({origin})")
        elif len(path) == 2 and not parent:
            del spec[path[0]]
