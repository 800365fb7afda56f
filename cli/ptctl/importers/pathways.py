"""Pathways' flags, which XPK, gcluster and PathwaysJob name alike."""

from ptctl.importers.draft import Draft
from ptctl.importers.flags import Given

_ARGUMENTS = {
    "pathways.serverArgs": ("--custom-pathways-server-args", "--pathways-server-args"),
    "pathways.proxyArgs": ("--custom-pathways-proxy-server-args", "--pathways-proxy-args"),
    "pathways.workerArgs": ("--custom-pathways-worker-args", "--pathways-worker-args"),
}
_SIDECAR = ("--colocated-python-sidecar-image", "--pathways-colocated-python-sidecar-image")


def put_pathways_flags(draft: Draft, given: Given) -> None:
    """Move Pathways' flags from the others into their fields."""
    for path, flags in _ARGUMENTS.items():
        if value := given.other(*flags):
            draft.put(f"spec.{path}", value.split(), flags[0])
    if image := given.other(*_SIDECAR):
        draft.put("spec.pathways.colocatedPythonImage", image, _SIDECAR[0])
