"""Memory of the layers in a train step: what the backward pass keeps of all, and what one takes meanwhile."""

from pttrainer.models import ModelConfig
from pttrainer.models.shapes import flops, parameters
from pttrainer.models.shapes.structure import KEPT, Part
from pttrainer.preflight.memory import fitted
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.runtime.tpu_tiles import filled_up


def kept(of: JobShapes) -> Buffer:
    """Return the stream between layers, and what is not computed again."""
    each = 2 if of.structure.compute_dtype == "bfloat16" else 4
    numbers = sum(group.config.layers * _kept_of_layer(of, group.config) for group in of.config.groups) + _lent(of)
    size = of.tokens_per_device * (each * numbers + _chosen(of))
    remat = of.structure.remat
    on_device = "inputs and attention" if remat != "none" and KEPT[remat].device else "inputs"
    inputs = "inputs and products" if remat == "none" else on_device
    stream = f"{inputs} of {of.config.layers} layers, [{of.tokens_per_device}, {of.config.d_model}] each"
    if of.critic is not None and of.critic.structure is not None:
        # Both models' passes are in one program, and nothing orders them: what either keeps may be there together.
        return Buffer("activations kept for the backward passes of policy and critic", 2 * size, "train", stream)
    return Buffer("activations kept for the backward pass", size, "train", stream)


def on_host(of: JobShapes) -> int:
    """Return the bytes that wait for the backward pass in host memory, of each device."""
    parts = () if of.structure.remat == "none" else KEPT[of.structure.remat].host
    each = 2 if of.structure.compute_dtype == "bfloat16" else 4
    models = 1 + (of.critic is not None and of.critic.structure is not None)
    numbers = sum(one.config.layers * _part(of, one.config, part) for one in of.config.groups for part in parts)
    return models * of.tokens_per_device * each * numbers


def one_layer(of: JobShapes) -> list[Buffer]:
    """Return the largest layer's activations and gathered weights."""
    config, tensor, tokens = of.config, of.axis("tensor"), of.tokens_per_device
    kinds = _kinds(config)
    activations = max(tokens * _activations(of, kind) / tensor + tokens * _routed(of, kind) for kind in kinds)
    gathered = max(_gathered(of, kind) for kind in kinds)
    widths = f"MLP [{tokens}, {_feed_forward(config) // tensor}], attention [{tokens}, {_width(config) // tensor}]"
    whole = max(_keys_and_values(of, kind) for kind in kinds)
    buffers = [
        Buffer("activations of a layer", int(activations), "train", widths),
        Buffer("weights of a layer, gathered", int(gathered / tensor), "train"),
        Buffer("keys and values of whole rows, and their gradients", whole, "train"),
    ]
    return [buffer for buffer in buffers if buffer.bytes]


def _keys_and_values(of: JobShapes, config: ModelConfig) -> int:
    """Return the bytes of keys, values and both gradients of all tokens of a device's rows, where it has not all."""
    pieces = of.axis("sequence")
    if pieces == 1 or config.delta is not None:
        return 0
    heads = config.kv_heads if config.latent is None else config.heads
    each = 2 if of.structure.compute_dtype == "bfloat16" else 4
    return 2 * each * pieces * of.tokens_per_device * heads * (config.head_dim + config.value_dim) // of.axis("tensor")


def _lent(of: JobShapes) -> int:
    """Return numbers per token of keys and values that later layers read."""
    if not any(of.config.borrowing_layers):
        return 0
    sizes = {kind.is_local(0): kind.kv_heads * (kind.head_dim + kind.value_dim) for kind in _kinds(of.config)}
    return sum(sizes.values()) // of.axis("tensor")


def _chosen(of: JobShapes) -> int:
    """Return bytes per token of what indexers chose for later layers, too: a flag for each token of the row."""
    choices = of.config.layers - sum(of.config.following_layers)
    return of.spec.training.sequence_length * choices if any(of.config.following_layers) else 0


def _kinds(config: ModelConfig) -> list[ModelConfig]:
    return [group.config for group in config.groups]


def _kept_of_layer(of: JobShapes, config: ModelConfig) -> int:
    """Return numbers per token."""
    remat = of.structure.remat
    is_here = remat == "none" or "input" not in KEPT[remat].host
    width = is_here * of.config.d_model + (_products(of, config) if remat == "none" else 0) + _own_embedding(config)
    # Without remat, a kernel's result stays, and no other's: it costs less to compute the plain one again.
    of_none: tuple[Part, ...] = () if of.slice.is_cpu else ("context",)
    parts = of_none if remat == "none" else KEPT[remat].device
    return width + sum(_part(of, config, part) for part in parts)


def _part(of: JobShapes, config: ModelConfig, part: Part) -> int:
    """Return numbers per token of a part that a policy keeps; TPUs keep heads as their kernels have them, filled up."""
    if part == "input":
        return config.d_model
    numbers = (_width(config) if part == "qkv" else config.heads * config.head_dim) // of.axis("tensor")
    if of.slice.platform != "tpu" or config.latent is not None:
        return numbers
    return numbers * filled_up(config.head_dim) // config.head_dim


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
    if config.layer_embeddings is not None:
        widths |= {"input_gate": config.layer_embeddings.size, "input_out": config.d_model}
    if adapters is None:
        return sum(widths.values())
    return sum(widths.values()) + sum(widths[name] + adapters.rank for name in widths if name in adapters.matrices)


def _activations(of: JobShapes, config: ModelConfig) -> float:
    """Return bytes per token of one layer, both passes."""
    attention = (fitted.NORMED_ATTENTION if config.qk_norm else fitted.ATTENTION) * _width(config)
    experts = config.experts
    if experts is None:
        return attention + fitted.MLP * config.d_ff
    is_plain = of.structure.adapters is None and not experts.biased
    routed = (fitted.EXPERTS if is_plain else fitted.BIASED_EXPERTS) * experts.per_token * experts.d_ff
    return attention + routed + fitted.MLP * experts.shared_d_ff


def _routed(of: JobShapes, config: ModelConfig) -> float:
    """Return bytes per token of its copies, one for each expert that it goes to."""
    each = fitted.ROUTED if of.structure.adapters is None else fitted.ROUTED_FROZEN
    return 0.0 if config.experts is None else each * config.experts.per_token * config.d_model


def _width(config: ModelConfig) -> int:
    if config.delta is not None:  # each of them twice, in float32
        return 4 * config.delta.channels
    return (config.heads + config.kv_heads) * config.head_dim + config.kv_heads * config.value_dim


def _feed_forward(config: ModelConfig) -> int:
    experts = config.experts
    return config.d_ff if experts is None else experts.per_token * experts.d_ff + experts.shared_d_ff


def _own_embedding(config: ModelConfig) -> int:
    return 0 if config.layer_embeddings is None else config.layer_embeddings.size


def _gathered(of: JobShapes, config: ModelConfig) -> float:
    """Return the bytes of a layer's weights while they are gathered.

    Those of dense layers pass by in pieces; all experts of a device are gathered at once, and so are their
    gradients.
    """
    attention = sum(inputs * outputs for inputs, outputs in flops.attention_matrices(config).values())
    attention += 2 * config.d_model * _own_embedding(config)
    dense = fitted.GATHERED if of.structure.adapters is None else fitted.GATHERED_FROZEN
    if config.experts is None:
        return dense * (attention + 3 * config.d_model * config.d_ff)
    experts = config.experts.count * 3 * config.d_model * config.experts.d_ff / of.axis("expert")
    if of.structure.adapters is not None:
        each = fitted.FROZEN_EXPERTS
    else:
        takes_turns = any(len(scan) > 1 for scan in of.config.scans)
        each = fitted.GATHERED_EXPERTS_IN_TURNS if takes_turns else fitted.GATHERED_EXPERTS
    return dense * (attention + 3 * config.d_model * config.experts.shared_d_ff) + each * experts
