"""What to change if a job does not fit, each change tried with the formula; and the smallest chips that hold it.

One change at a time, in order of cost: first changes that keep the result (smaller micro-batches, recomputation,
another split), then training fewer weights, then more or other chips.
"""

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
from pttrainer.models.shapes.structure import Remat
from pttrainer.preflight.memory import formula, host_memory
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.shapes.local_devices import LocalDevices
from pttrainer.preflight.shapes.tpu_topology import USABLE_GIB
from pttrainer.preflight.verdict import Option
from pttrainer.runtime.distributed.logical_axes import TOKENS_EACH

LARGER = 3
"""Number of larger slices of the same generation to try."""
MOST_CHIPS = 1024
TENSOR = SEQUENCE = (2, 4, 8)
"""Splits of the matrices, and of a row's tokens, to try."""
IN_HOSTS: Remat = "offload-input"
Settings = dict[str, Any]


def options(of: JobShapes, factor: float = 1.0) -> list[Option]:
    """Return every sensible change, those that fit first.

    factor: actual need over the formula's estimate, if known; assumed to be the same for each change.
    """
    tried = [_tried(of, change, settings, factor) for change, settings in _changes(of)]
    return sorted((option for option in tried if option is not None), key=lambda option: not option.fits)


def smallest(
    of: JobShapes, factor: float = 1.0, prices: Mapping[str, float] | None = None, *, all_kinds: bool = False
) -> list[Option]:
    """Return each generation's smallest slice that holds the job as it is, the cheapest first.

    Generations without a price follow, the fewest FLOP/s first (roughly their cost). factor: as in `options`.
    prices: of a chip-hour by generation. all_kinds: TPUs and GPUs; else those of the job's kind, whose image it has.
    """
    known = prices or {}
    ranked = []
    for generation in USABLE_GIB if all_kinds else _of_kind(of.slice):
        fitting = (option for name in usual(generation) for option in _on(of, name, factor) if option.fits)
        option = next(fitting, None)
        if option is not None:
            price = known.get(generation)
            each = accelerators.table()[generation]["peakBf16Tflops"] if price is None else price
            priced = replace(option, hourly=None if price is None else option.chips * price)
            ranked.append(((price is None, option.chips * each), priced))
    return [option for _, option in sorted(ranked, key=lambda pair: pair[0])]


def changed(spec: PostTrainJobSpec, settings: Settings) -> PostTrainJobSpec:
    """Return the spec with these paths set; raise SpecError if the result is invalid."""
    body = spec.model_dump(by_alias=True, exclude_unset=True)
    for path, value in settings.items():
        *parents, last = path.split(".")
        inner = body
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return type(spec).model_validate(body)


def changed_shapes(job: PostTrainJob, config: ModelConfig, settings: Settings) -> JobShapes:
    """Return the changed job's shapes; raise ConfigError, SpecError or ValueError if the job is invalid."""
    spec = changed(job.spec, settings)
    body = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    parse_job({**body, "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)})
    return shapes_of(spec, config)


def _changes(of: JobShapes) -> Iterator[tuple[str, Settings]]:
    training, slice_ = of.spec.training, of.slice
    for micro in micro_batches(of.micro_rows // 2, training.batch_size, of.row_shards):
        yield f"micro-batches of {micro} rows", {"training.microBatchSize": micro}
    if of.structure.remat != "full":
        yield "recompute activations", {"training.remat": "full"}
    if slice_.platform == "tpu" and not isinstance(slice_, LocalDevices) and of.structure.remat != IN_HOSTS:
        yield "keep layers' inputs in host memory", {"training.remat": IN_HOSTS}
    for tensor in TENSOR:
        if of.axis("tensor") < tensor and of.config.heads % tensor == 0 and slice_.devices % tensor == 0:
            yield f"split matrices over {tensor} devices", _split(of, tensor, of.axis("sequence"))
    for sequence in sequences(of) if of.micro_rows <= of.row_shards else ():
        micro = of.micro_rows * of.axis("sequence") // sequence
        if slice_.devices % (of.axis("tensor") * sequence) == 0 and micro:
            settings = {**_split(of, of.axis("tensor"), sequence), "training.microBatchSize": micro}
            yield f"share a row's tokens between {sequence} devices", settings
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
    """Return sizes that divide the batch and that devices share evenly, the largest first."""
    return [micro for micro in range(most - most % shards, 0, -shards) if batch % micro == 0]


def sequences(of: JobShapes) -> list[int]:
    """Return larger numbers of devices that may share a row's tokens: on TPUs, as only their kernel knows such rows.

    It takes less memory where devices have a row each; where they have more, smaller micro-batches do as much.
    """
    has_tiles = [n for n in SEQUENCE if of.spec.training.sequence_length % (n * TOKENS_EACH) == 0]
    return [n for n in has_tiles if n > of.axis("sequence") and of.slice.platform == "tpu"]


def _split(of: JobShapes, tensor: int, sequence: int) -> Settings:
    left = of.slice.devices // (tensor * sequence)
    mesh = {"data": of.slice.slices, "fsdp": left, "tensor": tensor}
    return {"training.parallelism": mesh if sequence == 1 else {**mesh, "sequence": sequence}}


def other_chips(of: JobShapes) -> Iterator[tuple[str, Settings]]:
    """Yield the same job on larger slices of its generation, and on other generations."""
    slice_ = of.slice
    if isinstance(slice_, LocalDevices):
        return
    sizes = [name for name in usual(slice_.generation) if _slice(name).chips > slice_.chips]
    others = [
        name
        for generation in _of_kind(slice_)
        if generation != slice_.generation
        for name in usual(generation)
        if _slice(name).chips == slice_.chips
    ]
    for name in (*sizes[:LARGER], *others):
        yield _slice(name).describe(), _chips_settings(of, name, of.axis("tensor"), of.axis("sequence"))


def _chips_settings(of: JobShapes, name: str, tensor: int, sequence: int) -> Settings:
    """Return settings for other chips; the batch grows if it does not divide over them.

    Where more devices share a row than before, each has the tokens of one.
    """
    settings: Settings = {"accelerator": {"type": name, "slices": of.spec.accelerator.slices}}
    settings["training.parallelism"] = {"tensor": tensor, "sequence": sequence}
    devices = _slice(name).devices * of.spec.accelerator.slices
    shards = max(devices // tensor // sequence, 1)
    batch = of.spec.training.batch_size
    if batch % shards:
        settings["training.batchSize"] = -(-batch // shards) * shards
    is_uneven = of.micro_rows % shards or settings.get("training.batchSize", batch) % of.micro_rows
    if is_uneven or sequence > of.axis("sequence"):
        settings["training.microBatchSize"] = shards
    return settings


def _on(of: JobShapes, name: str, factor: float) -> Iterator[Option]:
    """Yield the job on this slice, with its matrices or its rows split as they are, or more."""
    shards = _slice(name).devices * of.spec.accelerator.slices // (of.axis("tensor") * of.axis("sequence"))
    longer = sequences(of) if of.micro_rows <= shards else []
    splits = [(of.axis("tensor"), n) for n in (of.axis("sequence"), *longer)]
    splits += [(n, of.axis("sequence")) for n in TENSOR if n > of.axis("tensor") and of.config.heads % n == 0]
    for tensor, sequence in splits:
        if _slice(name).devices % (tensor * sequence) == 0:
            option = _tried(of, _slice(name).describe(), _chips_settings(of, name, tensor, sequence), factor)
            if option is not None:
                yield option


def usual(generation: str) -> Iterator[str]:
    """Yield slices whose chip count is a power of two: others split few models evenly."""
    for name in accelerators.names(generation):
        chips = _slice(name).chips
        if chips & (chips - 1) == 0 and chips <= MOST_CHIPS:
            yield name


def _tried(of: JobShapes, change: str, settings: Settings, factor: float) -> Option | None:
    """Return the option, or None if the change makes the job invalid."""
    here = of.slice if isinstance(of.slice, LocalDevices) and "accelerator" not in settings else None
    try:
        shapes = shapes_of(changed(of.spec, settings), of.config, here)
        host_memory.check(shapes)
    except (ConfigError, SpecError, ValueError):
        return None
    memory = formula.memory(shapes)
    slice_, peak = shapes.slice, int(factor * memory.peak)
    fits = peak <= memory.available
    return Option(change, settings, peak, memory.available, fits, slice_.total_chips, slice_.jax_devices_per_chip)


def _of_kind(slice_: Slice) -> list[str]:
    """Return the generations of GPUs for a job on GPUs, else of TPUs."""
    kind = "gpu" if slice_.is_gpu else "tpu"
    return [name for name in USABLE_GIB if accelerators.table()[name]["kind"] == kind]


def _slice(name: str) -> Slice:
    return accelerators.resolve(name)
