"""What to change when a job does not fit, each change tried with the formula; and the smallest chips that hold it.

One change at a time, in the order of what it costs: first what leaves the result as it is (smaller micro-batches,
recomputation, another split), then what trains less of the model, then more or other chips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ptapi import accelerators
from ptapi.accelerators import Slice
from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.spec import PostTrainJob, PostTrainJobSpec
from pttrainer.errors import ConfigError
from pttrainer.models import ModelConfig
from pttrainer.preflight.memory import formula
from pttrainer.preflight.shapes.job_shapes import Subject, subject
from pttrainer.preflight.shapes.local_devices import Here
from pttrainer.preflight.shapes.tpu_topology import USABLE_GIB
from pttrainer.preflight.verdict import Option

LARGER = 3
"""Larger slices of the same generation that are tried."""
MOST_CHIPS = 1024
TENSOR = (2, 4, 8)
"""Ways to split matrices that are tried."""
Settings = dict[str, Any]


def options(of: Subject, factor: float = 1.0) -> list[Option]:
    """Every change that makes sense here, those that fit first.

    factor: by how much more the job needs than the formula says, where that is known; of each change it is taken to be
    the same."""
    tried = [_tried(of, change, settings, factor) for change, settings in _changes(of)]
    return sorted((option for option in tried if option is not None), key=lambda option: not option.fits)


def smallest(of: Subject, factor: float = 1.0, prices: Mapping[str, float] | None = None) -> list[Option]:
    """Of each generation the smallest slice that holds the job as it is, the cheapest first; after those that have a
    price the ones with the fewest FLOP/s (about what they cost).

    factor: as of `options`. prices: of a chip-hour by generation."""
    known = prices or {}
    found = []
    for generation in USABLE_GIB:
        fitting = (option for name in usual(generation) for option in _on(of, name, factor) if option.fits)
        option = next(fitting, None)
        if option is not None:
            price = known.get(generation)
            each = accelerators.table()[generation]["peakBf16Tflops"] if price is None else price
            priced = replace(option, hourly=None if price is None else option.chips * price)
            found.append(((price is None, option.chips * each), priced))
    return [option for _, option in sorted(found, key=lambda pair: pair[0])]


def changed(spec: PostTrainJobSpec, settings: Settings) -> PostTrainJobSpec:
    """The spec with these paths set; raises SpecError where the result is no job."""
    body = spec.model_dump(by_alias=True, exclude_unset=True)
    for path, value in settings.items():
        *parents, last = path.split(".")
        inner = body
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return type(spec).model_validate(body)


def changed_subject(job: PostTrainJob, config: ModelConfig, settings: Settings) -> Subject:
    """The changed job's shapes; raises ConfigError, SpecError or ValueError where it is no job that is accepted."""
    spec = changed(job.spec, settings)
    body = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    parse_job({**body, "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)})
    return subject(spec, config)


def _changes(of: Subject) -> Iterator[tuple[str, Settings]]:
    training, slice_ = of.spec.training, of.slice
    for micro in micro_batches(of.micro_rows // 2, training.batch_size, of.row_shards):
        yield f"micro-batches of {micro} rows", {"training.microBatchSize": micro}
    if of.form.remat == "none":
        yield "recompute activations", {"training.remat": "full"}
    for tensor in TENSOR:
        if of.axis("tensor") < tensor and of.config.heads % tensor == 0 and slice_.devices % tensor == 0:
            yield f"split matrices over {tensor} devices", _split(of, tensor=tensor)
    if of.axis("data") > 1:
        yield "split weights over all slices", {"training.parallelism": {"fsdp": slice_.total_devices}}
    length = training.sequence_length // 2
    yield f"rows of {length} tokens", {"training.sequenceLength": length}
    if training.lora is None:
        yield "train adapters (LoRA)", {"training.lora": {}}
    if training.quantization is None:
        lora = {} if training.lora is None else {"rank": training.lora.rank}
        yield "adapters on 4-bit weights (QLoRA)", {"training.lora": lora, "training.quantization": {"weights": "nf4"}}
    yield from other_chips(of)


def micro_batches(most: int, batch: int, shards: int) -> list[int]:
    """Sizes that divide the batch and that devices share evenly, the largest first."""
    return [micro for micro in range(most - most % shards, 0, -shards) if batch % micro == 0]


def _split(of: Subject, tensor: int) -> Settings:
    left = of.slice.devices // tensor
    return {"training.parallelism": {"data": of.slice.slices, "fsdp": left, "tensor": tensor}}


def other_chips(of: Subject) -> Iterator[tuple[str, Settings]]:
    slice_ = of.slice
    if isinstance(slice_, Here):
        return
    sizes = [name for name in usual(slice_.generation) if _slice(name).chips > slice_.chips]
    others = [
        name
        for generation in USABLE_GIB
        if generation != slice_.generation
        for name in usual(generation)
        if _slice(name).chips == slice_.chips
    ]
    for name in (*sizes[:LARGER], *others):
        yield _slice(name).describe(), _chips_settings(of, name, of.axis("tensor"))


def _chips_settings(of: Subject, name: str, tensor: int) -> Settings:
    """On other chips the batch must divide over them: it grows where it does not."""
    settings: Settings = {"accelerator": {"type": name, "slices": of.spec.accelerator.slices}}
    settings["training.parallelism"] = {"tensor": tensor, "sequence": of.axis("sequence")}
    devices = _slice(name).devices * of.spec.accelerator.slices
    shards = max(devices // tensor // of.axis("sequence"), 1)
    batch = of.spec.training.batch_size
    if batch % shards:
        settings["training.batchSize"] = -(-batch // shards) * shards
    if of.micro_rows % shards or settings.get("training.batchSize", batch) % of.micro_rows:
        settings["training.microBatchSize"] = shards
    return settings


def _on(of: Subject, name: str, factor: float) -> Iterator[Option]:
    """The job on this slice, with its matrices split as they are, or more."""
    for tensor in sorted({of.axis("tensor"), *TENSOR}):
        if tensor >= of.axis("tensor") and of.config.heads % tensor == 0 and _slice(name).devices % tensor == 0:
            option = _tried(of, _slice(name).describe(), _chips_settings(of, name, tensor), factor)
            if option is not None:
                yield option


def usual(generation: str) -> Iterator[str]:
    """Slices whose chips are a power of two: others split few models evenly."""
    for name in accelerators.names(generation):
        chips = _slice(name).chips
        if chips & (chips - 1) == 0 and chips <= MOST_CHIPS:
            yield name


def _tried(of: Subject, change: str, settings: Settings, factor: float) -> Option | None:
    """None where the change makes no job."""
    here = of.slice if isinstance(of.slice, Here) and "accelerator" not in settings else None
    try:
        found = subject(changed(of.spec, settings), of.config, here)
    except (ConfigError, SpecError, ValueError):
        return None
    memory = formula.memory(found)
    slice_, peak = found.slice, int(factor * memory.peak)
    fits = peak <= memory.available
    return Option(change, settings, peak, memory.available, fits, slice_.total_chips, slice_.jax_devices_per_chip)


def _slice(name: str) -> Slice:
    return accelerators.resolve(name)
