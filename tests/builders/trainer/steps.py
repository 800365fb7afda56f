"""Real optimizer steps of a tiny model: what tests of optimizers, averages and safety nets compile."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ptapi.spec import Schedule, Training
from pttrainer.batch import Batch
from pttrainer.data.batching import lay_out, to_batch
from pttrainer.data.sft_examples import Example
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, preset
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step.neftune import Noise
from pttrainer.train_step.optimizer import freeze, transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.state import Layout
from pttrainer.train_step.step import TrainStep, train_step

LENGTHS = (5, 9, 14, 3, 7, 11, 2, 12)
STEPS = 10


class Likelihood:
    """The smallest algorithm: negative log-likelihood."""

    total_steps, temperature, entropy, level, by_token, needs_params = STEPS, 1.0, False, False, True, False

    def loss(self, stats: TokenStats, batch: Batch) -> Any:
        return -stats.logps_BT, {}


def batch(seed: int = 0) -> Batch:
    """Eight ragged rows; the first third of each is prompt."""
    random = np.random.default_rng(seed)
    rows = [Example(random.integers(0, 256, n + 1).astype(np.int32), np.arange(n + 1) > n // 3) for n in LENGTHS]
    laid = [lay_out([row], 16) for row in rows]
    return to_batch({name: np.stack([row[name] for row in laid]) for name in laid[0]})


def single() -> jax.sharding.Mesh:
    """A mesh of one device, of the eight that tests have."""
    return sharding.make_mesh((1,), jax.devices()[:1])


def compiled(program: Program, mesh: jax.sharding.Mesh) -> tuple[TrainStep, Any]:
    """The jitted step, and what makes its first state of random weights."""
    layout = program.layout(mesh)
    fresh = jax.jit(lambda: program.new_state(program.model.init(jax.random.key(0))), out_shardings=layout.state)
    return train_step(program, layout), fresh


@dataclass
class Steps:
    """A compiled step, and the state that it changes."""

    mesh: jax.sharding.Mesh
    layout: Layout
    compiled: Any
    state: Any

    def __call__(self, of: Batch) -> dict[str, float]:
        """One step; its metrics."""
        with jax.set_mesh(self.mesh):
            self.state, metrics = self.compiled(self.state, put(self.mesh, of))
        return {name: float(value) for name, value in metrics.items()}

    def host(self) -> Any:
        """The whole state in host memory."""
        return jax.device_get(self.state)


def steps(
    training: Training, shape: tuple[int, int, int, int] = (1, 1, 1, 1), algorithm: Any = None, rate: float = 1e-2
) -> Steps:
    """A fresh run on a mesh of this shape, at a rate that moves."""
    model = Model(preset("tiny"))
    mesh = sharding.make_mesh(shape) if np.prod(shape) > 1 else single()
    schedule = transformation.schedule(Schedule(), rate, STEPS)
    frozen_mask = freeze.frozen_mask(training.freeze, model.config) if training.freeze else None
    noise = Noise(training.neftune_alpha, training.seed) if training.neftune_alpha else None
    updates = transformation.build(
        training.optimizer, schedule, model.logical_axes(), frozen_mask=frozen_mask, average=training.ema
    )
    objective: Any = algorithm or Likelihood()
    program = Program(model, objective, updates, schedule, training.micro_batch_size, frozen_mask, noise)
    function, fresh = compiled(program, mesh)
    return Steps(mesh, program.layout(mesh), function, fresh())
