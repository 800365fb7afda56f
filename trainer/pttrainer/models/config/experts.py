"""A model's mixture of experts."""

from dataclasses import dataclass

from pttrainer.errors import ConfigError


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP.

    per_token: experts that a token uses. normalised: their weights sum to 1. biased: router and experts add biases,
    and the gated unit is gpt-oss's, clamped at `clamp` with a sigmoid of slope `slope`. balance_coefficient: weight
    of the load-balance loss in training, 0 for none.

    sigmoid: an expert's score is a sigmoid and not a softmax, and the router computes in float32. corrected: a number
    per expert is added to the scores for the choice alone (arXiv 2408.15664). groups, groups_used: experts are chosen
    within the best groups, by the sum of their two best scores. scale: of the chosen experts' weights.
    shared_d_ff: feed-forward size of an expert that all tokens use, 0 for none; shared_gated: a sigmoid of the token
    scales it. weighs_inputs: a token is weighed before its experts and not behind them. beside_mlp: the shared expert
    is the layer's MLP, both have norms of their own before and behind, the router reads the normed stream times a
    learned scale, and every expert's weight has a learned factor.
    """

    count: int
    per_token: int
    d_ff: int
    normalised: bool = True
    biased: bool = False
    clamp: float = 0.0
    slope: float = 1.0
    balance_coefficient: float = 0.0
    sigmoid: bool = False
    corrected: bool = False
    groups: int = 1
    groups_used: int = 1
    scale: float = 1.0
    shared_d_ff: int = 0
    shared_gated: bool = False
    weighs_inputs: bool = False
    beside_mlp: bool = False

    @property
    def is_linear(self) -> bool:
        """Return True if an expert's matrices are linear layers in transformers, which adapters can be on."""
        return not (self.biased or self.weighs_inputs or self.beside_mlp)

    @property
    def number_dtype(self) -> str:
        """Return the smallest number format that holds an expert's number, and `unknown_number`."""
        return "uint8" if self.count < 256 else "uint16"

    @property
    def unknown_number(self) -> int:
        """Return what stands for an expert that is not known."""
        return 255 if self.number_dtype == "uint8" else 65535

    def __post_init__(self) -> None:
        if self.per_token > self.count:
            raise ConfigError(
                f"config.json num_experts_per_tok: {self.per_token}: more than there are experts; accepted: at most "
                f"{self.count}"
            )
        if self.count % self.groups or self.groups_used > self.groups:
            raise ConfigError(
                f"config.json n_group: {self.groups}: accepted: a divisor of the {self.count} experts, and at least "
                f"topk_group ({self.groups_used})"
            )
        if self.groups > 1 and self.per_token > self.count // self.groups * self.groups_used:
            raise ConfigError(
                f"config.json num_experts_per_tok: {self.per_token}: more than the experts of {self.groups_used} "
                f"groups; accepted: at most {self.count // self.groups * self.groups_used}"
            )
