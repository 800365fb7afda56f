"""Products with a tower's matrices, and which of these can have adapters (`lora.adapters`).

Adapters stand beside their matrix, as in the decoder: `vision.layers.q` and `vision.layers.q_lora.{a,b}`. What cuts a
picture into patches, and learned positions, get none.
"""

from collections.abc import Iterable

from flax import nnx
from jax import Array

from pttrainer.models.layers.linear import LowRank
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.vision.names import VISION
from pttrainer.runtime.distributed import sharding


def put_adapters(part: nnx.Module, names: Iterable[str], adapters: Adapters | None, place: tuple[str, ...]) -> None:
    """Give a part's matrices their adapters, where the model has some. place: of the part in the tower."""
    for name in names:
        setattr(part, f"{name}_lora", _adapter(part, name, adapters, place))


def _adapter(part: nnx.Module, name: str, adapters: Adapters | None, place: tuple[str, ...]) -> LowRank | None:
    if adapters is None or (VISION, *place, name) not in adapters.vision:
        return None
    return LowRank(name, getattr(part, name), adapters)


def product(part: nnx.Module, name: str, x: Array) -> Array:
    """Return the product with a matrix of a part, with its adapter and its bias where it has them.

    x: of images or tiles, which stay on the devices that have them.
    """
    matrix: Array = getattr(part, name)[...]
    adapter, bias = getattr(part, f"{name}_lora", None), getattr(part, f"{name}_bias", None)
    out = sharding.constrain_rows(x @ matrix.astype(x.dtype))
    out = out if adapter is None else out + adapter(x)
    return out if bias is None else out + bias[...].astype(x.dtype)
