"""The hint at the end of a failed job's message, with the job's own numbers. Pure."""

from collections.abc import Iterator

from ptapi.accelerators import Slice
from ptapi.accelerators.slice import chips_in_words
from ptapi.accelerators.table import chip_count, name_of, table
from ptapi.failures import FailureClass
from ptapi.spec.training import Training
from ptoperator.render import Layout

_HINTS: dict[FailureClass, str] = {
    FailureClass.OUT_OF_MEMORY_HOST: "recreate the job with a higher limit where the host has more, or with an "
    "accelerator of more hosts: data and checkpoints are split over them",
    FailureClass.HANG: "read the stacks in the run directory to see what each process waits for; a step that takes "
    "longer needs runPolicy.hangTimeoutSeconds",
    FailureClass.IMAGE_PULL: "check spec.image and spec.imagePullSecrets",
    FailureClass.STORAGE: "check that output.uri exists, is writable and has space",
    FailureClass.OUTPUT_CONFLICT: "stop what writes there, or recreate the job under another name or output.uri",
    FailureClass.DATA_ERROR: "fix the data and recreate the job, under this or another name",
    FailureClass.CONFIG_ERROR: "fix the job and recreate it",
    FailureClass.USER_CODE: "fix your code (a reward, a tool, an environment or a function) and recreate the job",
    FailureClass.SERVICE_LOST: "check the server that the message names, and its log; the job continues from its "
    "checkpoint",
    FailureClass.NETWORK: "check that the pods reach what the message names (DNS, egress, NetworkPolicy), and that the "
    "service has no outage; then recreate the job",
    FailureClass.UNKNOWN: "read the log of the pod: ptctl workload logs",
}


def hint_for(kind: FailureClass, layout: Layout) -> str:
    """Return the hint for a class; empty if there is nothing to do."""
    if kind is FailureClass.OUT_OF_MEMORY_HBM:
        return "use " + ", ".join(_memory_savings(layout))
    return _HINTS.get(kind, "")


def _memory_savings(layout: Layout) -> Iterator[str]:
    """List the changes, from what only costs time to what costs chips."""
    training = layout.job.spec.training
    micro = training.micro_batch_size or training.batch_size
    if micro > 1:
        yield f"training.microBatchSize: {micro // 2} (it is {micro})"
    yield f"a shorter training.sequenceLength (it is {training.sequence_length})"
    if training.remat != "full":
        yield f"training.remat: full (it is {training.remat})"
    yield from _smaller_state(training)
    yield "more tensor or fsdp parallelism"
    larger = _next_larger(layout.accelerator)
    yield f"or a larger accelerator{f': {larger}' if larger else ''}"


def _smaller_state(training: Training) -> Iterator[str]:
    if training.lora is None:
        yield "training.lora (adapters need no optimizer state for the whole model)"
    elif training.quantization is None:
        yield "training.quantization (frozen weights in 4 or 8 bits)"


def _next_larger(now: Slice) -> str:
    """Return the next size of the same generation: `v6e-32 (32 chips)`."""
    if now.is_cpu:
        return ""
    larger = [shape for shape in table()[now.generation]["topologies"] if chip_count(shape) > now.chips]
    if not larger:
        return ""
    shape = min(larger, key=chip_count)
    return f"{name_of(now.generation, shape)} ({chips_in_words(now.generation, chip_count(shape))})"
