"""posttrain from Python: write a job, submit it, follow its run, read what it learned; run functions on slices.

The package adds no behaviour to the API: jobs are checked by `ptapi`, and runs are read as `ptctl workload` reads them.
Names are imported when they are first used, so that `import posttrain` itself costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.client import Client
    from posttrain.errors import Error, JobFailed, NotFound, RemoteTraceback, TimedOut
    from posttrain.job import PostTrainJob
    from posttrain.remote_function import Remote, remote
    from posttrain.result import Result
    from posttrain.rows import Rows
    from posttrain.run import Run, Runs
    from ptapi import spec
    from ptapi.errors import SpecError

__all__ = [
    "Client",
    "Error",
    "JobFailed",
    "NotFound",
    "PostTrainJob",
    "Remote",
    "RemoteTraceback",
    "Result",
    "Rows",
    "Run",
    "Runs",
    "SpecError",
    "TimedOut",
    "remote",
    "spec",
]

_MODULES = {
    "Client": "posttrain.client",
    "Error": "posttrain.errors",
    "JobFailed": "posttrain.errors",
    "NotFound": "posttrain.errors",
    "PostTrainJob": "posttrain.job",
    "Remote": "posttrain.remote_function",
    "RemoteTraceback": "posttrain.errors",
    "Result": "posttrain.result",
    "Rows": "posttrain.rows",
    "Run": "posttrain.run",
    "Runs": "posttrain.run",
    "SpecError": "ptapi.errors",
    "TimedOut": "posttrain.errors",
    "remote": "posttrain.remote_function",
}


def __getattr__(name: str) -> Any:
    if name == "spec":
        return import_module("ptapi.spec")
    if name not in _MODULES:
        raise AttributeError(f"module 'posttrain' has no attribute {name!r}; accepted: {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
