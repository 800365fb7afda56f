"""A small head that proposes the next tokens of a row in one pass, from the model's last hidden state.

Letters: X any axes, D model, K proposals, F = D inside, V vocabulary.

    x     = [rms(h_t) ; rms(w(t + 1))]          h_t: the state from which token t + 1 was drawn; w: its row of the
                                                model's output head, which stands for the token
    y_k   = h_t + down_k · silu(up · x)         k = 1 … K; logits of token t + 1 + k are the model's head on y_k

Blocks beside the last layer that share the model's output head are those of Medusa (arXiv 2401.10774); that token t + 1
is known when the ones after it are proposed, and read, is from multi-token prediction modules (arXiv 2412.19437,
section 2.2) and EAGLE (2401.15077). All K come from one product with each matrix, so the head is read once. Left out:
attention and a cache of its own, and that a proposal depends on the one before it, which would take K passes.

`down` begins at 0: the first proposals are drawn from the state that token t + 1 was drawn from.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models.shapes.parameters import ParamSpec, block_head
from pttrainer.models.shapes.structure import Params, split_part, with_part

KEY = "block_head"
"""Key of the head's weights among those that an engine is given."""
_EPSILON = 1e-6


@dataclass(frozen=True)
class BlockHead:
    """The head. tokens: K; width: D."""

    tokens: int
    width: int

    def abstract(self) -> Params:
        """Return shapes and dtypes of its weights."""
        return {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in self._specs.items()}

    def logical_axes(self) -> Params:
        """Return the names of each weight's axes."""
        return {name: one.axes for name, one in self._specs.items()}

    def init(self, key: Array) -> Params:
        """Return the first weights: `up` normal, scaled by fan-in; `down` zero."""
        up, down = self._specs["up"], self._specs["down"]
        drawn = jax.random.normal(key, up.shape, up.dtype) / jnp.sqrt(up.shape[0]).astype(up.dtype)
        return {"down": jnp.zeros(down.shape, down.dtype), "up": drawn}

    def states(self, params: Params, hidden_XD: Array, head_VD: Array, tokens_X: Array) -> Array:
        """Return y [X, K, D] in the format of hidden_XD. tokens_X: token t + 1, drawn from hidden_XD.

        What an adapter of the output head adds to states and head, behind their D, is not read.
        """
        hidden_XD = hidden_XD[..., : self.width]
        token_XD = head_VD[tokens_X][..., : self.width].astype(hidden_XD.dtype)
        up, down = (params[name].astype(hidden_XD.dtype) for name in ("up", "down"))
        inner_XF = jax.nn.silu(jnp.concatenate([_normed(hidden_XD), _normed(token_XD)], axis=-1) @ up)
        return hidden_XD[..., None, :] + jnp.einsum("...f,kfd->...kd", inner_XF, down)

    @property
    def _specs(self) -> dict[str, ParamSpec]:
        return block_head(self.tokens, self.width)


def with_block(params: Params, block: Params | None) -> Params:
    """Return the weights that an engine is given: the model's, and the head's if there is one."""
    return with_part(params, KEY, block)


def split_block(params: Params) -> tuple[Params, Params | None]:
    """Split what `with_block` returned into the model's weights and the head's."""
    return split_part(params, KEY)


def _normed(x_XD: Array) -> Array:
    """Divide by the root mean square, in float32."""
    wide_XD = x_XD.astype(jnp.float32)
    normed_XD = wide_XD * lax.rsqrt(jnp.mean(wide_XD * wide_XD, axis=-1, keepdims=True) + _EPSILON)
    return normed_XD.astype(x_XD.dtype)
