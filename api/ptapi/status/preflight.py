"""Whether the job fits its chips: in the status, and as the termination message of preflight's pod."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from ptapi.spec.base import SpecModel
from ptapi.status.field_types import Short


class PreflightProgram(SpecModel):
    """A program of the job, as compiled or computed."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(max_length=128)]
    """The program's name."""
    stage: Annotated[str, Field(max_length=32)]
    """Source of the estimate: `formula`, `fast` or `full` (compile)."""
    peak_gib: float
    """Peak memory per chip, GiB."""


class PreflightChange(SpecModel):
    """A change that makes the job fit, by the formula; each is tried alone."""

    model_config = ConfigDict(extra="ignore")

    change: Annotated[str, Field(max_length=256)]
    """The change."""
    settings: Short = ""
    """The fields of spec, as `training.microBatchSize=8`."""
    peak_gib: float
    """Peak memory per chip with the change, GiB."""
    available_gib: float
    """Memory per chip available to a program with the change, GiB."""


class PreflightStatus(SpecModel):
    """Whether the job fits its chips; also the termination message of preflight's pod.

    Fields of a newer trainer are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    outcome: Literal["Fits", "DoesNotFit", "Undecided"]
    """The verdict."""
    line: Short = ""
    """One line for a person."""
    stage: Annotated[str, Field(max_length=32)] = ""
    """Source of the verdict: `formula`, `fast` or `full` (compile)."""
    peak_gib: float | None = None
    """Peak memory per chip, GiB."""
    available_gib: float | None = None
    """Memory per chip available to a program, GiB."""
    seconds_per_step: float | None = None
    """Lower bound of a step's duration, by the roofline model."""
    tokens_per_second_per_chip: float | None = None
    """Upper bound of the throughput, by the roofline model."""
    chip_hours: float | None = None
    """Lower bound for the whole run."""
    programs: Annotated[list[PreflightProgram], Field(max_length=16)] = []
    """Every program that was checked."""
    largest: Annotated[list[str], Field(max_length=16)] = []
    """The largest buffers, such as `optimizer state 7.5 GiB`."""
    changes: Annotated[list[PreflightChange], Field(max_length=8)] = []
    """The best changes that make the job fit, if it does not."""
    smallest: Annotated[list[str], Field(max_length=8)] = []
    """The smallest slices that fit the unchanged job, if its own does not; the cheapest first."""
    notes: Annotated[list[str], Field(max_length=8)] = []
    """Further notes for the user."""
    versions: Annotated[dict[str, str], Field(max_length=8)] = {}
    """Versions of jax, libtpu and posttrain."""
    key: Annotated[str, Field(max_length=64)] = ""
    """Hash of model, training, chips and versions: the same key has the same verdict."""
    remembered: bool = False
    """Whether the verdict is reused from an earlier job with the same key."""
