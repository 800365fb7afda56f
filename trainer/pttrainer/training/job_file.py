"""Read and check the job file. Imports no jax."""

from pathlib import Path

from ptapi import load
from ptapi.errors import SpecError
from ptapi.spec import PostTrainJob
from pttrainer.algorithms import MODULES
from pttrainer.errors import ConfigError


def read_job(path: Path) -> PostTrainJob:
    """Return the checked job in a file; raise ConfigError with every finding."""
    return check_job(_text(path))


def read_any_job(path: Path) -> PostTrainJob:
    """Return the job in a file, whatever runs it; raise ConfigError with every finding."""
    return _job(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def _job(text: str) -> PostTrainJob:
    try:
        return load.load_job(text)
    except SpecError as error:
        raise ConfigError(str(error)) from error


def check_job(text: str) -> PostTrainJob:
    """Return the checked job in a text; raise ConfigError with every finding."""
    job = _job(text)
    if not job.spec.runtime.is_native:
        raise ConfigError("spec.runtime: not native: posttrain's trainer does not run it; hint: start its own command")
    if job.spec.algorithm.kind not in MODULES:
        accepted = ", ".join(MODULES)
        raise ConfigError(f"spec.algorithm: {job.spec.algorithm.kind}: not supported yet; accepted: {accepted}")
    return job
