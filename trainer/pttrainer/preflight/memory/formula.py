"""Memory of a train step without the compiler: arguments exactly, temporaries by a formula.

Letters: T tokens per device and pass, L layers, D model, F feed-forward, Q query, key and value widths together,
V vocabulary, t tensor shards, W weights of a layer; of experts, a token's k count for F, and all for W. G: bytes of
the gradients that a device holds. R: of what the backward pass keeps of every layer.

    loss        R + head · V·D/t + logits · N·V/t
                                              the head gathered, its gradient, and the logits of a chunk of N tokens;
                                              more where it is the embedding, too; logits are fewer there, where the
                                              loss is one of tokens
    layer       R + G + mlp · T·F/t + attention · T·Q/t + routed · T·k·D + gathered · W/t
                                              one layer's backward pass: activations, its weights gathered
    accumulate  2·G + 8·V·D/t                 micro-batches of what is trained whole: the sum so far, what is added, and
                                              the embedding's gradient (float32), as made and as summed over devices.
                                              With them, the loss keeps a second sum of a head that is not the embedding

Where they are frozen, embedding and head are gathered as they are stored, then converted to the compute format: the
head before its logits, while R is there; one that is the embedding, too, before the first layer. With micro-batches,
both are made once for all of them and stay. A loss of whole rows gathers the head for each chunk of logits.

Experts' matrices are there once more, in another order, where a device's part of the model's axis is no multiple of 8.

Temporaries are the largest of these. The numbers were fitted to the compiler at its lowest level (`Fitted`). Arguments
come from the shapes and shardings that training uses, so adapters, quantisation, moments and averages are exact.
"""

from dataclasses import dataclass

from pttrainer.losses.loss_traits import by_token
from pttrainer.models import ModelConfig
from pttrainer.models.shapes import flops, parameters
from pttrainer.models.shapes.parameters import ITEM_BYTES, ParamSpec
from pttrainer.preflight.memory import resident
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.shapes import device_bytes, tpu_topology
from pttrainer.preflight.shapes.device_bytes import Share
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.verdict import Program


@dataclass(frozen=True)
class Fitted:
    """Bytes per element of each term."""

    tied_head: float = 7.9
    head: float = 7.0
    second_head: float = 4.0
    logits: float = 10.0
    tied_logits: float = 4.0
    mlp: float = 8.0
    attention: float = 4.0
    normed_attention: float = 12.0
    routed: float = 8.0
    gathered: float = 1.5
    gathered_frozen: float = 3.0
    gathered_experts: float = 5.5
    frozen_experts: float = 4.6


FITTED = Fitted()
TILE_ROWS = 8
"""Rows of a TPU's array tile."""


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


def memory(of: JobShapes, fitted: Fitted = FITTED) -> Memory:
    """Return the memory of a job on its chips."""
    held = of.arguments
    is_tpu = not of.slice.is_cpu
    arguments, gradients = device_bytes.total(held.all, tiled=is_tpu), device_bytes.total(held.params)
    phases = [[*phase, *_copied(of)] for phase in _phases(of, gradients, fitted)]
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


def _phases(of: JobShapes, gradients: int, fitted: Fitted) -> list[list[Buffer]]:
    """Return the moments of a step with the highest memory, each with its live buffers."""
    config, tensor, tokens = of.config, of.axis("tensor"), of.tokens_per_device
    inputs = {"full": "inputs", "none": "inputs and products"}.get(of.structure.remat, "inputs and attention")
    stream = f"{inputs} of {config.layers} layers, [{tokens}, {config.d_model}] each"
    kept = Buffer("activations kept for the backward pass", _kept(of), "train", stream)
    if of.critic is not None and of.critic.structure is not None:
        # Both models' passes are in one program, and nothing orders them: what either keeps may be there together.
        kept = Buffer("activations kept for the backward passes of policy and critic", 2 * _kept(of), "train", stream)
    losses, stay = _frozen_head(of, kept, fitted) if of.structure.adapters else ([_loss(of, kept, fitted)], [])
    guidance = [kept, *_guidance(of, fitted)]
    kinds = [group.config for group in config.groups]
    activations = max(tokens * _activations(kind, fitted) / tensor + tokens * _routed(kind, fitted) for kind in kinds)
    gathered = max(_gathered(of, kind, fitted) for kind in kinds)
    layer = [
        kept,
        Buffer("gradients", gradients, "train"),
        Buffer("activations of a layer", int(activations), "train", _widths(of)),
        Buffer("weights of a layer, gathered", int(gathered / tensor), "train"),
    ]
    phases = [*losses, layer, guidance]
    if not _is_split(of):
        return phases
    stay.append(Buffer("gradients so far", gradients, "train"))
    phases = [[*phase, *stay] for phase in phases]
    return phases if of.structure.adapters else [*phases, _accumulated(of, gradients)]


def _copied(of: JobShapes) -> list[Buffer]:
    """Return the copies of experts' matrices whose part of the model's axis fills no tiles.

    They are stored with that axis outside of tiles, and the loop over layers reads a copy of all of them in which
    it comes first.
    """
    declared, held = of.structure.weights, [*of.arguments.params, *of.arguments.frozen]
    copied = [(path, share) for path, share in held if _fills_no_tiles(declared[path], share)]
    return [Buffer("weights of experts, laid out anew", device_bytes.total(copied), "train")] if copied else []


def _fills_no_tiles(one: ParamSpec, share: Share) -> bool:
    is_matrix = "expert_embed" in one.axes and "mlp" in one.axes
    return is_matrix and share.shape[one.axes.index("expert_embed")] % TILE_ROWS != 0


def _accumulated(of: JobShapes, gradients: int) -> list[Buffer]:
    """Return the buffers at the end of a micro-batch, after its activations, with the embedding's gradient last."""
    whole = 2 * 4 * of.config.vocab_size * of.config.d_model // of.axis("tensor")
    return [
        Buffer("gradients so far, and of a micro-batch", 2 * gradients, "train"),
        Buffer("gradient of the embedding, whole, and as it is summed over devices", whole, "train"),
    ]


def _is_split(of: JobShapes) -> bool:
    return of.spec.training.batch_size != of.micro_rows


def _loss(of: JobShapes, kept: Buffer, fitted: Fitted) -> list[Buffer]:
    """Return the buffers of the loss with a trained head."""
    config = of.config
    each = fitted.tied_head if config.tied_head else fitted.head
    if _is_split(of) and not config.tied_head:
        each += fitted.second_head
    head = each * config.vocab_size * config.d_model / of.axis("tensor")
    # Losses of whole rows (`by_token` false) go another way: a chunk's logits are made again in the backward pass.
    is_lean = config.tied_head and by_token(of.spec.algorithm)
    return [
        kept,
        Buffer("head, gathered, and its gradient", int(head), "train"),
        _logits(of, fitted.tied_logits if is_lean else fitted.logits),
    ]


def _frozen_head(of: JobShapes, kept: Buffer, fitted: Fitted) -> tuple[list[list[Buffer]], list[Buffer]]:
    """Return the gathered embedding and head, the loss, and what stays of them through all micro-batches."""
    config, logits = of.config, _logits(of, fitted.logits)
    numbers = config.vocab_size * config.d_model // of.axis("tensor")
    stored, computed = (numbers * ITEM_BYTES[dtype] for dtype in (of.structure.param_dtype, of.structure.compute_dtype))
    # One after the other, so that there is one at a time in the format that it is stored in.
    gathered = [Buffer("embedding or head, gathered as stored", stored, "train")] if stored != computed else []
    head = Buffer("head, gathered", computed, "train")
    both = Buffer("embedding and head, gathered", computed * (1 if config.tied_head else 2), "train")
    here, stay = ([], [both]) if _is_split(of) else ([head], [])
    if not by_token(of.spec.algorithm):
        slopes = _logits(of, ITEM_BYTES[of.structure.compute_dtype])
        # Of a head that is stored as it is computed with, the compiler makes the gradient, although nothing reads it.
        unread = [] if gathered else [[kept, head, Buffer("gradient of the head", 4 * numbers, "train"), slopes]]
        return [[kept, *gathered, *here, logits], *unread], stay
    is_early = config.tied_head or _is_split(of)
    return [[*([] if is_early else [kept]), *gathered, *here], [kept, *here, logits]], stay


def _logits(of: JobShapes, each: float) -> Buffer:
    tokens, words = of.head_tokens_per_device, of.config.vocab_size // of.axis("tensor")
    return Buffer("logits of a chunk", int(each * tokens * words), "train", f"[{tokens}, {words}]")


def _widths(of: JobShapes) -> str:
    tensor, tokens = of.axis("tensor"), of.tokens_per_device
    return f"MLP [{tokens}, {_feed_forward(of.config) // tensor}], attention [{tokens}, {_width(of.config) // tensor}]"


def _guidance(of: JobShapes, fitted: Fitted) -> list[Buffer]:
    """Return the buffers while predictions are compared.

    Both heads, the student's in its stored and its compute format; if it is trained, its gradient so far and that
    of a chunk, as the devices sum it and as it is added.
    """
    if of.teacher is None:
        return []
    teacher, words = of.teacher.config.d_model, of.config.vocab_size // of.axis("tensor")
    each = (
        ITEM_BYTES[of.structure.param_dtype] * (1 if of.structure.adapters else 4)
        + ITEM_BYTES[of.structure.compute_dtype]
    )
    return [
        Buffer("teacher's hidden states and head", 2 * teacher * (of.tokens_per_device + words), "train"),
        Buffer("student's head, and its gradients", each * of.config.d_model * words, "train"),
        Buffer("logits of a chunk, of both", int(2 * fitted.logits * of.head_tokens_per_device * words), "train"),
    ]


def _kept(of: JobShapes) -> int:
    """Return the bytes of the stream between layers, and of what is not computed again."""
    each = 2 if of.structure.compute_dtype == "bfloat16" else 4
    kept = sum(group.config.layers * _kept_of_layer(of, group.config) for group in of.config.groups)
    return each * of.tokens_per_device * kept


def _kept_of_layer(of: JobShapes, config: ModelConfig) -> int:
    """Return numbers per token."""
    tensor, remat = of.axis("tensor"), of.structure.remat
    width = of.config.d_model + (_products(of, config) if remat == "none" else 0)
    if remat == "save-qkv-context":
        width += _width(config) // tensor
    # Without remat, a kernel's result stays, and no other's: it costs less to compute the plain one again.
    if remat in ("save-context", "save-qkv-context") or (remat == "none" and not of.slice.is_cpu):
        width += config.heads * config.head_dim // tensor
    return width


def _products(of: JobShapes, config: ModelConfig) -> int:
    """Return numbers per token that products of a layer's weights make and its backward pass reads.

    Those of `down` only if a norm follows, and none of experts, whose grouped products are recomputed. An adapter's
    addition is a product of its own, so both are kept instead of their sum.
    """
    tensor, adapters = of.axis("tensor"), of.structure.adapters
    widths = {
        name: one.shape[-1] // (tensor if one.axes[-1] in ("heads", "kv_heads") else 1)
        for name, one in parameters.attention(config).items()
        if len(one.shape) == 3
    }
    if config.experts is None:
        inner = config.d_ff // tensor
        widths |= {"gate": inner, "up": inner, "down": config.d_model if config.post_norms else 0}
    else:
        widths["router"] = config.experts.count
        if config.experts.shared_d_ff:
            inner = config.experts.shared_d_ff // tensor
            of_down = config.d_model if config.post_norms else 0
            widths |= {"shared_gate": inner, "shared_up": inner, "shared_down": of_down}
    if adapters is None:
        return sum(widths.values())
    return sum(widths.values()) + sum(widths[name] + adapters.rank for name in widths if name in adapters.matrices)


def _activations(config: ModelConfig, fitted: Fitted) -> float:
    """Return bytes per token of one layer, both passes."""
    attention = fitted.normed_attention if config.qk_norm else fitted.attention
    return fitted.mlp * _feed_forward(config) + attention * _width(config)


def _routed(config: ModelConfig, fitted: Fitted) -> float:
    """Return bytes per token of its copies, one for each expert that it goes to."""
    return 0.0 if config.experts is None else fitted.routed * config.experts.per_token * config.d_model


def _width(config: ModelConfig) -> int:
    if config.delta is not None:  # each of them twice, in float32
        return 4 * config.delta.channels
    return (config.heads + config.kv_heads) * config.head_dim + config.kv_heads * config.value_dim


def _feed_forward(config: ModelConfig) -> int:
    experts = config.experts
    return config.d_ff if experts is None else experts.per_token * experts.d_ff + experts.shared_d_ff


def _gathered(of: JobShapes, config: ModelConfig, fitted: Fitted) -> float:
    """Return the bytes of a layer's weights while they are gathered.

    Those of dense layers pass by in pieces; all experts of a device are gathered at once, and so are their
    gradients.
    """
    attention = sum(inputs * outputs for inputs, outputs in flops.attention_matrices(config).values())
    dense = fitted.gathered if of.structure.adapters is None else fitted.gathered_frozen
    if config.experts is None:
        return dense * (attention + 3 * config.d_model * config.d_ff)
    experts = config.experts.count * 3 * config.d_model * config.experts.d_ff / of.axis("expert")
    each = fitted.gathered_experts if of.structure.adapters is None else fitted.frozen_experts
    return dense * (attention + 3 * config.d_model * config.experts.shared_d_ff) + each * experts


def _state(of: JobShapes) -> list[Buffer]:
    """Return the buffers that stay between steps."""
    held = of.arguments
    named = {
        "trained weights": held.params,
        "optimizer state": held.optimizer,
        "critic and its optimizer state": [*held.critic, *held.of_critic],
        "frozen weights": held.frozen,
        "teacher": held.teacher,
        "batch": held.batch,
    }
    sizes = {name: device_bytes.total(part) for name, part in named.items()}
    return [Buffer(name, size, "always") for name, size in sizes.items() if size]
