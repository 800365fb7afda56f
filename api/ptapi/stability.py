"""Which fields of the spec are experimental; all others are stable.

A stable field keeps its name and meaning until the next API version; an experimental one may change or go in any
release, with a line in CHANGELOG.md. Both are built and tested alike: what is not built is refused
(`validation.rules.unsupported`). The one idea: only the exceptions are listed, so a new field is a promise unless its
author says otherwise here.
"""

from functools import cache
from typing import NamedTuple


class Group(NamedTuple):
    """Fields that are experimental for one reason.

    fields: dotted names relative to the spec, `[]` for a list's entry; a map stands for all below it, and `field=value`
    for one of the values that a field accepts.
    """

    why: str
    fields: str


EXPERIMENTAL = (
    Group(
        "A correction that few published recipes use, and that no learning curve of this project covers.",
        "algorithm.sft.zLoss algorithm.sft.loss=dft algorithm.dpo.loss=robust algorithm.kto.loss=apo-zero "
        "algorithm.grpo.dualClip "
        "algorithm.grpo.combineRewards algorithm.grpo.loss=gspo-token "
        "algorithm.grpo.loss=sapo algorithm.grpo.loss=luspo algorithm.grpo.loss=vespo algorithm.grpo.loss=dppo "
        "algorithm.grpo.loss=dppo-kl algorithm.grpo.gammaWeight algorithm.grpo.softClip "
        "algorithm.grpo.samplerCorrection algorithm.grpo.offPolicyThreshold algorithm.grpo.topEntropyQuantile "
        "algorithm.grpo.entropyBonus algorithm.grpo.referenceSync algorithm.ppo.whitenAdvantages "
        "algorithm.ppo.bootstrapTruncated algorithm.distill.selfTeacher training.neftuneAlpha",
    ),
    Group("Run on CPUs alone: no slice of TPUs was lost to it yet.", "accelerator.minSlices"),
    Group("One learning curve alone, of a tiny model, shows what its defaults do.", "algorithm.sdpo"),
    Group("Hardly a job sets it, and something simpler may take its place.", "evaluation.passMark export.mergeLora"),
    Group("What the optimizer's library itself calls experimental.", "training.optimizer.name=muon"),
    Group(
        "How samples are guessed, asked for or placed: run on CPUs alone, where what it is for cannot be measured.",
        "rollout.speculative rollout.engine=vllm rollout.vllm rollout.placement=disaggregated rollout.samplerShare "
        "rollout.placement=separate rollout.separate rollout.maxStaleness rollout.inFlightUpdates "
        "rollout.routingReplay",
    ),
    Group(
        "What an environment, a tool, a judge or a reward model is given and answers is being learned from users.",
        "environment rewards[].judge rewards[].model",
    ),
    Group(
        "How services are declared is being learned from the first users.",
        "services algorithm.distill.teacher.service",
    ),
    Group("What a function's job takes and keeps is still being learned from the first users.", "runtime.function"),
    Group(
        "Run with this project's servers of the hub's and the bucket's protocols alone; what removes copies is open.",
        "model.stage resources.stage",
    ),
    Group("Agent Sandbox was never reached, only its definitions, its sources and a stand-in for it.", "sandbox"),
    Group("The servers were never run on GKE, and what people ask of them is still being learned.", "serve"),
    Group(
        "The other side was never reached, only its documentation and sources: Pathways' servers, MaxText's image, "
        "GKE's queued provisioning, a TensorBoard in the cluster.",
        "pathways.headless pathways.elasticSlices pathways.colocatedPythonImage pathways.serverArgs pathways.proxyArgs "
        "pathways.workerArgs resources.pathwaysResourceManager resources.pathwaysProxy resources.pathwaysWorker "
        "resources.colocatedPython runtime.maxtext capacity[].type=queuedProvisioning tensorboard.server",
    ),
)


def is_experimental(field: str) -> bool:
    """Return True if a field, named as in `EXPERIMENTAL`, or a map that it is in, is listed."""
    steps = field.replace("[]", "").split(".")
    return any(".".join(steps[: end + 1]) in _fields() for end in range(len(steps)))


def experimental_values(field: str) -> tuple[str, ...]:
    """Return the accepted values of a stable field that are experimental."""
    pairs = (listed.partition("=") for listed in names())
    return tuple(value for name, _, value in pairs if value and name == field)


@cache
def names() -> tuple[str, ...]:
    """Return everything that is listed, in the order of the groups."""
    return tuple(name for group in EXPERIMENTAL for name in group.fields.split())


@cache
def _fields() -> frozenset[str]:
    return frozenset(name.replace("[]", "") for name in names() if "=" not in name)
