"""Memory of a train step without the compiler: arguments exactly, temporaries by a formula.

Letters: T tokens per device and pass, L layers, D model, F feed-forward, Q query, key and value widths together,
V vocabulary, t tensor shards, W weights of a layer; of experts, a token's k count for F, with a number of their own
in place of `mlp`, and all for W. G: bytes of the gradients that a device holds. R: of what the backward pass keeps of
every layer.

    loss        R + head · V·D/t + logits · N·V/t
                                              the head gathered, its gradient, and the logits of a chunk of N tokens;
                                              more where it is the embedding, too; logits are fewer there, where the
                                              loss is one of tokens
    layer       R + G + mlp · T·F/t + attention · T·Q/t + routed · T·k·D + gathered · W/t + 4 · s·T·K/t
                                              one layer's backward pass: activations, its weights gathered, and keys and
                                              values (K wide) with their gradients of rows that s devices share
    tower       a layer of the vision tower (`vision_memory`), before the decoder
    accumulate  2·G + 8·V·D/t                 micro-batches of what is trained whole: the sum so far, what is added, and
                                              the embedding's gradient (float32), as made and as summed over devices.
                                              With them, the loss keeps a second sum of a head that is not the embedding

A frozen head is gathered as it is stored, then converted to the compute format, before its logits, while R is there.
Rows of the embedding travel to their tokens; a mesh that splits matrices or tokens gathers it, as the head, before the
first layer: once, if it is both. With micro-batches, both are made once for all of them and stay. A loss of whole rows
gathers the head for each chunk of logits, but for a head of its own with micro-batches.

Experts' matrices are there once more, in another order, where a device's part of the model's axis is no multiple of 8;
without micro-batches, frozen ones of queries, keys and values where it is one of 128.

Temporaries are the largest of these. The numbers were fitted to the compiler at its lowest level (`fitted`). Arguments
come from the shapes and shardings that training uses, so adapters, quantisation, moments and averages are exact.
For GPUs it is the same formula, held against no GPU's compiler yet; arrays are counted without a TPU's tiles.
"""

from dataclasses import dataclass

from pttrainer.models.shapes.parameters import ParamSpec
from pttrainer.models.vision.names import VISION
from pttrainer.preflight.memory import head_memory, layer_memory, resident, vision_memory
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.shapes import device_bytes, tpu_topology
from pttrainer.preflight.shapes.device_bytes import Share
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.verdict import Program
from pttrainer.runtime.tpu_tiles import LANES, SUBLANES

MATRICES = 3
"""Axes of a stack of matrices, one for each layer."""


@dataclass(frozen=True)
class Memory:
    """The formula's answer, bytes per device."""

    program: Program
    outside: list[Buffer]
    parts: list[Buffer]
    peak: int
    available: int

    @property
    def fits(self) -> bool:
        """Return True if everything fits together."""
        return self.peak <= self.available


def memory(of: JobShapes) -> Memory:
    """Return the memory of a job on its chips."""
    held = of.arguments
    is_tpu = of.slice.platform == "tpu"
    arguments, gradients = device_bytes.total(held.all, tiled=is_tpu), _gradients(of)
    phases = [[*phase, *_copied(of), *_turned(of)] for phase in _phases(of, gradients)]
    temporaries = max(sum(part.bytes for part in parts) for parts in phases)
    largest = max(phases, key=lambda parts: sum(part.bytes for part in parts))
    buffers = resident.resident_buffers(of)
    available = tpu_topology.usable_bytes(of.slice)
    peak = arguments + temporaries
    everything = max(
        peak + resident.total(resident.during(buffers, "train")), resident.total(resident.rollout_buffers(of, buffers))
    )
    program = Program(
        "train step", "formula", peak <= available, peak, arguments, temporaries, device_bytes.total(held.state)
    )
    return Memory(program, buffers, [*_state(of), *largest], everything, available)


def _gradients(of: JobShapes) -> int:
    """Return the bytes of gradients. A frozen tower has none; with micro-batches, which add them up, it is counted."""
    still = () if of.frozen is None or of.has_micro_batches else of.frozen
    counted = [(path, share) for path, share in of.arguments.params if path[0] != VISION or path not in still]
    return device_bytes.total(counted)


def _phases(of: JobShapes, gradients: int) -> list[list[Buffer]]:
    """Return the moments of a step with the highest memory, each with its live buffers."""
    kept = layer_memory.kept(of)
    losses, stay = head_memory.frozen_head(of, kept) if of.structure.adapters else ([head_memory.loss(of, kept)], [])
    layer = [kept, Buffer("gradients", gradients, "train"), *layer_memory.one_layer(of)]
    guidance = [kept, *head_memory.guidance(of)]
    of_tower = vision_memory.kept(of)
    phases = [*([*phase, *of_tower] for phase in (*losses, layer, guidance)), _tower(of, gradients)]
    if not of.has_micro_batches:
        return phases
    stay.append(Buffer("gradients so far", gradients, "train"))
    phases = [[*phase, *stay] for phase in phases]
    return phases if of.structure.adapters else [*phases, _accumulated(of, gradients)]


def _tower(of: JobShapes, gradients: int) -> list[Buffer]:
    """Return the buffers of a layer of the vision tower, after the decoder's gradients where it is trained."""
    made = [Buffer("gradients", gradients, "train")] if vision_memory.is_trained(of) else []
    return [*vision_memory.kept(of), *made, *vision_memory.one_layer(of)]


def _copied(of: JobShapes) -> list[Buffer]:
    """Return the copies of experts' matrices whose part of the model's axis fills no tiles.

    They are stored with that axis outside of tiles, and the loop over layers reads a copy of all of them in which
    it comes first.
    """
    declared, held = of.structure.weights, [*of.arguments.params, *of.arguments.frozen]
    copied = [(path, share) for path, share in held if _fills_no_tiles(declared[path], share)]
    return [Buffer("weights of experts, laid out anew", device_bytes.total(copied), "train")] if copied else []


def _turned(of: JobShapes) -> list[Buffer]:
    """Return the copies of frozen matrices, all layers', that have a device's part of the model's axis in lanes.

    The loop over layers gathers queries', keys' and values' in this order. A part that does not fill its lanes is not
    copied. Micro-batches, whose other terms are high enough, were not measured with it.
    """
    if not of.has_explicit_collectives or of.has_micro_batches:
        return []
    declared = of.structure.weights
    turned = [
        (path, share)
        for path, share in of.arguments.frozen
        if path[0] != VISION and path[-1] in ("q", "k", "v") and _is_matrix_in_lanes(declared[path], share)
    ]
    return [Buffer("matrices, laid out anew", device_bytes.total(turned), "train")] if turned else []


def _is_matrix_in_lanes(one: ParamSpec, share: Share) -> bool:
    is_stored_plainly = share.dtype in ("float32", "bfloat16") and "embed" in one.axes and len(one.shape) == MATRICES
    return is_stored_plainly and share.shape[one.axes.index("embed")] % LANES == 0


def _fills_no_tiles(one: ParamSpec, share: Share) -> bool:
    is_matrix = "expert_embed" in one.axes and "mlp" in one.axes
    return is_matrix and share.shape[one.axes.index("expert_embed")] % SUBLANES != 0


def _accumulated(of: JobShapes, gradients: int) -> list[Buffer]:
    """Return the buffers at the end of a micro-batch, after its activations, with the embedding's gradient last."""
    whole = 2 * 4 * of.config.vocab_size * of.config.d_model // of.axis("tensor")
    return [
        Buffer("gradients so far, and of a micro-batch", 2 * gradients, "train"),
        Buffer("gradient of the embedding, whole, and as it is summed over devices", whole, "train"),
    ]


def _state(of: JobShapes) -> list[Buffer]:
    """Return the buffers that stay between steps."""
    held = of.arguments
    named = {
        "trained weights": held.params,
        "optimizer state": held.optimizer,
        "critic and its optimizer state": [*held.critic, *held.of_critic],
        "head that proposes tokens, and its optimizer state": held.block,
        "reference that follows": held.reference,
        "frozen weights": held.frozen,
        "teacher": held.teacher,
        "batch": held.batch,
    }
    sizes = {name: device_bytes.total(part) for name, part in named.items()}
    return [Buffer(name, size, "always") for name, size in sizes.items() if size]
