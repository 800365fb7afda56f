"""The estimated time of a rollout on a mesh: which of two meshes samples it sooner. No jax.

    rollout = pools · prefill + turns · new tokens · token
    prefill = max(FLOPs, weights) + sums
              with matrices gathered for prompts of each device's own: max(FLOPs, gathers) + ALONE · min(FLOPs, gathers)
    token   = max(weights, matrix unit, FLOPs) + keys and values + elementwise passes + sums

Bytes and FLOPs are those of preflight's least time (`preflight.timing.rollout_time`), which counts them by these
functions. Added are the rates that compiled programs reach, by the TPU compiler's estimates of Llama 3.1 8B
(docs/findings/compilers.md, "Sampling on TPUs"), and sums over `tensor`, two a layer. They hold within 15% for that
table (prefill: 22%); nothing is calibrated on a chip, so the times are good for comparing meshes alone. Left out: rows
that end early, experts that no row has chosen, speculation, which changes all meshes' times alike.
"""

import math
from fractions import Fraction
from typing import NamedTuple

from ptapi.accelerators import Slice
from ptapi.spec import PostTrainJobSpec
from pttrainer.models import ModelConfig, ModelStructure
from pttrainer.models.shapes import flops
from pttrainer.models.shapes.parameters import ITEM_BYTES
from pttrainer.rollout.native import buckets
from pttrainer.runtime.distributed import logical_axes
from pttrainer.runtime.distributed.logical_axes import Shape

PREFILL_SHARE = {"v5e": 0.52, "v5p": 0.62, "v6e": 0.36, "tpu7x": 0.47}
"""Share of the peak that prefill reaches without its sums: the table's last columns, less the sums."""
PREFILL_SHARE_ELSEWHERE = 0.5
GATHERING_SHARE, ALONE = {"v5e": 0.95, "v5p": 0.95, "v6e": 0.79, "tpu7x": 0.82}, 0.25
"""The same of the products of devices that gather matrices; and of gathers and products, the part of the shorter that
does not run beside the other."""
LOADED_BYTES_PER_S = {"v5p": 1.5e12, "v6e": 1.5e12, "tpu7x": 2.3e12}
"""Weights that a device's matrix units take a second, however few rows they multiply: the table's bytes over its
products. On v5e products wait for memory alone, which is slower."""
IN_PARTS_BYTES_PER_S = {"v5p": 2.3e12, "v6e": 1.5e12, "tpu7x": 2.9e12}
"""The same where large matrices are in parts (`models.decoding.cut_matrix`): of models without experts, not
quantised."""
LAYER_SECONDS, NUMBER_SECONDS = 1e-5, 5.4e-11
"""Elementwise passes of a layer, and of each number of a row's hidden state: the table's column "other"."""
HOP_SECONDS, START_SECONDS = 1e-6, 4e-6
"""Least time of a hop between TPUs (jax-ml/scaling-book, sharding.md), of which a sum goes half around twice; and to
start a sum, which is published nowhere: assumed high, so that no model is split for a gain that this may eat."""
NCCL_SECONDS, NCCL_STEP_SECONDS = 1e-5, 1.9e-6
"""A sum between GPUs by NVLink, and each of its steps: NVIDIA/nccl, src/graph/tuning.cc, ring, LL128."""
SUMS_OF_A_LAYER = 2


class Rollout(NamedTuple):
    """What is sampled, over all devices of a mesh. rows: most at once, if the job says so."""

    completions: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    rows: int | None = None

    @property
    def prompts(self) -> int:
        """Return the number of prompts."""
        return -(-self.completions // self.samples)


def rollout_of(spec: PostTrainJobSpec, samplers: int = 1, share: Fraction = Fraction(1)) -> Rollout | None:
    """Return the job's rollout on one of so many samplers: prompts fill what completions leave of a row.

    Of a job that only evaluates, the held-out prompts that are sampled at once. share: of the job's slices that there
    are; no device has more rows than on all. None with a draft model, whose key heads may be fewer than the model's.
    """
    if spec.rollout.speculative is not None and spec.rollout.speculative.draft is not None:
        return None
    samples, new_tokens = spec.algorithm.samples_per_prompt, spec.rollout.max_new_tokens
    completions = completions_of(spec, samplers)
    if not spec.algorithm.is_on_policy:
        samples, completions = 1, spec.evaluation.batch_size
        new_tokens = spec.evaluation.max_new_tokens or new_tokens
    prompt_tokens = max(spec.training.sequence_length - new_tokens, 1)
    return Rollout(math.ceil(completions * share), samples, prompt_tokens, new_tokens, spec.rollout.slots)


def completions_of(spec: PostTrainJobSpec, samplers: int) -> int:
    """Return the completions of a step that one of so many samplers samples: of whole prompts."""
    samples = spec.algorithm.samples_per_prompt
    return samples * -(-spec.training.batch_size // samples // samplers)


def rollout_seconds(model: ModelStructure, shape: Shape, chips: Slice, of: Rollout) -> float | None:
    """Return the estimated seconds of a rollout, sampled on a mesh of this shape; None if no rates are published."""
    chip = chips.chip
    if chip is None or chip.ici_gbytes_per_s is None:
        return None
    shards, memory = row_shards(shape), int(buckets.CACHE_SHARE * chip.hbm_gib * 2**30 / chips.jax_devices_per_chip)
    each = buckets.token_bytes(model, filled=chips.platform == "tpu") * (of.prompt_tokens + of.new_tokens)
    most = of.rows or buckets.rows_within(each + buckets.state_bytes(model), math.prod(shape), memory)
    tensor = shape[logical_axes.MESH_AXES.index("tensor")]
    rows, pool = buckets.rows_and_prompts(model, of.completions, of.samples, most, shards, tensor)
    turns, pools = -(-of.completions // rows), -(-of.prompts // pool)
    device = DeviceTime(model, shape, chips)
    context = of.prompt_tokens + of.new_tokens // 2
    token = device.token(here(rows, shards), context)
    return pools * device.prefill(here(pool, shards), of.prompt_tokens, pool) + turns * of.new_tokens * token


class DeviceTime:
    """The seconds of one device of a mesh, which waits for nothing but sums."""

    def __init__(self, model: ModelStructure, shape: Shape, chips: Slice) -> None:
        assert chips.chip is not None
        self._model, self._chips, self._tensor = model, chips, shape[logical_axes.MESH_AXES.index("tensor")]
        each = chips.jax_devices_per_chip
        self._hbm = chips.chip.hbm_gbytes_per_s * 1e9 / each
        share = PREFILL_SHARE.get(chips.generation, PREFILL_SHARE_ELSEWHERE)
        peak = chips.chip.peak_bf16_tflops * 1e12 / each
        self._flops = share * peak
        self._gathering_flops = peak * GATHERING_SHARE.get(chips.generation, share)
        self._shards = row_shards(shape)
        self._weights = weights_bytes(model, shape)
        is_cut = model.config.experts is None and model.quantization is None
        rates = IN_PARTS_BYTES_PER_S if is_cut else LOADED_BYTES_PER_S
        self._loaded = min(self._hbm, rates.get(chips.generation, self._hbm))

    def token(self, rows: int, context: int) -> float:
        """Return the seconds of one token of so many rows, behind a context of this length."""
        return self.products(rows) + self.keys(rows, context) + self.passes(rows) + self.sums(rows)

    def prefill(self, prompts: int, tokens: int, pool: int) -> float:
        """Return the seconds of so many prompts of a pool."""
        slots, total = buckets.slots_for(tokens), prefill_flops(self._model.config, prompts, tokens)
        gathered = self._gathered(pool, slots)
        if gathered:
            computed, gathers = total / self._tensor / self._gathering_flops, pool // gathered * self._gather()
            return max(computed, gathers) + ALONE * min(computed, gathers)
        pieces = slots // buckets.prefill_piece(pool, slots)
        computed = self._computed(total)
        return max(computed, pieces * self._weights / self._hbm) + self.sums(prompts * tokens)

    def products(self, rows: int) -> float:
        """Return the seconds of the products with weights."""
        return max(self._weights / self._loaded, self._computed(rows * token_flops(self._model.config, 0)))

    def keys(self, rows: int, context: int) -> float:
        """Return the seconds in which keys and values, and states, are read."""
        filled = self._chips.platform == "tpu"
        of_token = buckets.token_bytes(self._model, filled=filled, tensor=self._tensor, spread=True)
        return rows * (of_token * context + 2 * buckets.state_bytes(self._model)) / self._hbm

    def passes(self, rows: int) -> float:
        """Return the seconds of all elementwise passes."""
        config = self._model.config
        return config.layers * (LAYER_SECONDS + NUMBER_SECONDS * rows * config.d_model)

    def sums(self, tokens: int) -> float:
        """Return the seconds of all sums of so many hidden states over `tensor`."""
        config, n = self._model.config, self._tensor
        if n == 1:
            return 0.0
        number = ITEM_BYTES[self._model.compute_dtype]
        sent = 2 * (n - 1) / n * tokens * config.d_model * number
        return SUMS_OF_A_LAYER * config.layers * (sent / sum_rate(self._chips) + sum_latency(self._chips, n))

    def _gathered(self, pool: int, slots: int) -> int:
        """Return how many prompts of a pool are computed at once with gathered matrices, or 0."""
        if self._chips.platform != "tpu" or self._model.config.vision is not None:
            return 0
        return buckets.gathered_prompts(self._model, pool, slots, self._shards, self._tensor)

    def _gather(self) -> float:
        """Return the seconds in which all matrices come from the other devices of `tensor`, once."""
        number = ITEM_BYTES[self._model.compute_dtype]
        whole = number * flops.stack_weights(self._model.config)
        return (self._tensor - 1) / self._tensor * whole / sum_rate(self._chips)

    def _computed(self, total: float) -> float:
        return total / self._tensor / self._flops


def row_shards(shape: Shape) -> int:
    """Return the number of devices that split the rows of a batch."""
    return math.prod(shape[logical_axes.MESH_AXES.index(name)] for name in logical_axes.BATCH_AXES)


def here(rows: int, shards: int) -> int:
    """Return the rows of one device: all of them if they do not divide."""
    return rows if rows % shards else rows // shards


def weights_bytes(model: ModelStructure, shape: Shape) -> int:
    """Return bytes of a model's weights in the sampler, on a device of a mesh of this shape."""
    mesh = dict(zip(logical_axes.MESH_AXES, shape, strict=True))
    total = 0
    for count, part in [*model.decoding_layers, (1, model.decoding_tables)]:
        for one in part.values():
            split = logical_axes.weight_split(mesh, one.axes, one.shape, "")  # the same on every platform
            total += count * one.bytes // math.prod(logical_axes.pieces(mesh, axes) for axes in split)
    return total


def prefill_flops(config: ModelConfig, prompts: int, tokens: int) -> float:
    """Return the FLOPs of so many prompts of this length."""
    pairs = tokens * (tokens + 1) / 2
    of_weights = 2.0 * tokens * (flops.stack_weights(config) + flops.state_numbers(config))
    return prompts * (of_weights + 2.0 * flops.score_numbers(config) * pairs)


def token_flops(config: ModelConfig, context: float) -> float:
    """Return the FLOPs of a row's next token behind a context of this length, of scores and of all matrices."""
    weighed = flops.stack_weights(config) + flops.state_numbers(config) + config.vocab_size * config.d_model
    return 2.0 * weighed + 2.0 * flops.score_numbers(config) * context


def link_rate(chips: Slice) -> float | None:
    """Return bytes per second that a link carries one way: of a GPU, all of its links; None: not published."""
    if chips.chip is None or chips.chip.ici_gbytes_per_s is None:
        return None
    one_way = chips.chip.ici_gbytes_per_s * 1e9 / 2
    return one_way / (2 * len(chips.topology.split("x"))) if chips.topology else one_way


def sum_rate(chips: Slice) -> float:
    """Return bytes per second of a device's sums: one way along each side of a slice, which its devices share."""
    rate = link_rate(chips)
    assert rate is not None
    sides = sum(int(side) > 1 for side in chips.topology.split("x")) if chips.topology else 1
    return rate * max(1, sides) / chips.jax_devices_per_chip


def sum_latency(chips: Slice, devices: int) -> float:
    """Return the least seconds of a sum over so many devices."""
    if chips.is_gpu:
        return NCCL_SECONDS + 2 * (devices - 1) * NCCL_STEP_SECONDS
    return START_SECONDS + devices * HOP_SECONDS
