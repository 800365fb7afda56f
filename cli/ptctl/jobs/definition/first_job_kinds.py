"""What `ptctl init` writes jobs for: settings in the words of `--set`, and comments on parts of the spec.

Only what one looks at first is written; every other field has its recommended default. To add one: an entry here, and
its name in `choices.FIRST_JOBS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Comments = Mapping[str, tuple[str, ...]]
_MODEL = "hf://Qwen/Qwen3-1.7B"
_ANSWERS = ("JSON lines with `prompt` (or `messages`) and `answer`, which rewards compare with.",)
_TALKS = ("JSON lines with `messages`, or `prompt` and `completion`; other columns: data.train.columns.",)
_ROLLOUT = ("Longest completion in tokens; prompt and completion together fit training.sequenceLength.",)
_REWARD = (
    "gsm8k compares the last number with the row's `answer`. Your own:",
    "- {python: {uri: gs://my-bucket/reward.py, function: score}}",
)


@dataclass(frozen=True)
class Kind:
    """One kind of job.

    samples: of a group, which a batch holds whole; model: the one that is proposed; checks: verbs for what is written.
    """

    algorithm: str
    purpose: str
    settings: tuple[str, ...] = ()
    comments: Comments = field(default_factory=dict)
    rewards: tuple[str, ...] = ()
    samples: int = 1
    model: str = _MODEL
    checks: tuple[str, ...] = ("data check", "plan")


COMMENTS: Comments = {
    "model": (
        "hf://organisation/name, gs://bucket/directory or file:///directory, in Hugging Face's layout.",
        "Gated ones: tokenSecretRef: {name: hf-token}, a Secret with the key `token`.",
    ),
    "data": _TALKS,
    "training": (
        "batchSize: sequences per step over all chips; microBatchSize splits a step that does not fit.",
        "Unset steps: one pass over the data. Unset learning rate: the algorithm's recipe.",
    ),
    "accelerator": ("`ptctl accelerators list --fits -f FILE` names the smallest chips that hold this job.",),
    "output": ("The run is in output.uri/NAME: checkpoints/, export/ (the model), metrics, logs.",),
    "rollout": _ROLLOUT,
    "rewards": _REWARD,
}
"""Before each part of the spec that has no other comment."""
_LENGTH = "training.sequenceLength=2048"
_ROWS_OF_RL = ("training.steps=200", _LENGTH, "rollout.maxNewTokens=1024")

KINDS = {
    "sft": Kind(
        "sft",
        "Supervised fine-tuning: all weights learn from examples.",
        (_LENGTH,),
        {"algorithm": ("Learns the assistant's tokens alone; lossOnPrompt: true, all of them.",)},
    ),
    "lora": Kind(
        "sft",
        "LoRA: supervised fine-tuning of small adapters, with a fraction of the memory.",
        (_LENGTH, "training.lora={rank: 16, alpha: 32}"),
        {
            "algorithm": ("LoRA goes with dpo and grpo, too.",),
            "training": (
                "rank 16 on all linear layers; the learning rate is ten times that of all weights.",
                "Still too large for the chips: quantization: {weights: nf4} (QLoRA).",
            ),
        },
    ),
    "dpo": Kind(
        "dpo",
        "DPO: learns from pairs of a preferred and a rejected answer.",
        ("algorithm.dpo={loss: sigmoid, beta: 0.1}", _LENGTH),
        {
            "algorithm": ("beta: the pull towards the initial model. Without one: loss: orpo, or simpo.",),
            "data": ("JSON lines with `prompt`, `chosen` and `rejected`.",),
            "training": ("batchSize counts sequences, two for each pair.",),
        },
    ),
    "kto": Kind(
        "kto",
        "KTO: learns from answers that are each labelled good or bad.",
        ("algorithm.kto={beta: 0.1}", _LENGTH),
        {
            "algorithm": ("Where one label is rarer, its weight: desirableWeight, undesirableWeight.",),
            "data": ("JSON lines with `prompt`, `completion` and `label` (true or false).",),
        },
    ),
    "reward": Kind(
        "reward",
        "Reward model: learns from pairs of a preferred and a rejected answer to score answers.",
        ("algorithm.reward={centering: 0.01}", _LENGTH),
        {
            "algorithm": ("In another job, its export is a reward: rewards: [{name: taste, model: {uri: …/export}}].",),
            "data": ("JSON lines with `prompt`, `chosen` and `rejected`.",),
            "training": ("batchSize counts sequences, two for each pair.",),
        },
    ),
    "grpo": Kind(
        "grpo",
        "GRPO: reinforcement learning from rewards, relative to other samples of a prompt.",
        ("algorithm.grpo={groupSize: 8}", *_ROWS_OF_RL),
        {
            "algorithm": ("Variants: loss: dr-grpo, dapo, gspo, gspo-token, cispo, rloo.",),
            "data": _ANSWERS,
            "training": ("batchSize: prompts × groupSize.",),
        },
        ("gsm8k",),
        8,
    ),
    "ppo": Kind(
        "ppo",
        "PPO: reinforcement learning from rewards, with a critic.",
        ("algorithm.ppo={samplesPerPrompt: 1, klCoefficient: 0.02}", *_ROWS_OF_RL),
        {
            "algorithm": ("The critic is a value head on the policy; critic: {kind: model} is one of its own.",),
            "data": _ANSWERS,
            "training": ("batchSize: prompts × samplesPerPrompt.",),
        },
        ("gsm8k",),
    ),
    "raft": Kind(
        "raft",
        "RAFT: filtered self-training: fine-tuning on the model's own good samples.",
        ("algorithm.raft={samplesPerPrompt: 8}", *_ROWS_OF_RL),
        {
            "algorithm": ("Kept: samples of reward minReward (1) and more; keepBest: at most so many of a prompt.",),
            "data": _ANSWERS,
            "training": ("batchSize: prompts × samplesPerPrompt.",),
        },
        ("gsm8k",),
        8,
    ),
    "sdpo": Kind(
        "sdpo",
        "SDPO: self-distillation: samples learn from what the model says after seeing a good one.",
        ("algorithm.sdpo={groupSize: 8}", *_ROWS_OF_RL),
        {
            "algorithm": ("feedbackContext: what the teacher reads where no other sample is good.",),
            "data": _ANSWERS,
            "training": ("batchSize: prompts × groupSize.",),
        },
        ("gsm8k",),
        8,
    ),
    "distill": Kind(
        "distill",
        "Distillation: a small model learns a larger one's distribution on its own samples.",
        ("algorithm.distill.teacher.uri=hf://Qwen/Qwen3-8B", *_ROWS_OF_RL),
        {
            "algorithm": ("The teacher must have the student's tokenizer. Without sampling: mode: online.",),
            "data": ("JSON lines with `prompt` or `messages`; the student writes the completions.",),
        },
    ),
    "tools": Kind(
        "grpo",
        "Tools: reinforcement learning of a model that calls tools between its turns.",
        (
            "algorithm.grpo={groupSize: 8}",
            *_ROWS_OF_RL,
            "environment={tools: [{builtin: calculator}], maxTurns: 4}",
        ),
        {
            "data": _ANSWERS,
            "environment": (
                "A tool of your own, whose docstring the model reads:",
                "- {python: {uri: gs://my-bucket/tools.py, function: search}}",
            ),
            "rollout": ("Longest turn in tokens; training.sequenceLength limits the whole episode.",),
        },
        ("gsm8k",),
        8,
    ),
    "images": Kind(
        "sft",
        "Images: supervised fine-tuning of a model that sees, from conversations with pictures.",
        (_LENGTH, "model.images=true"),
        {
            "model": ("Gemma 3 with its vision tower, which stays frozen. dpo, grpo and ppo take images, too.",),
            "data": (
                "JSON lines with `messages` whose content has parts {type: image, path: …}, or a column `images`.",
                "Pictures lie beside the file, on gs://, or in the rows; for https://: data.allowHttpsImages.",
            ),
            "training": ("A picture takes 256 tokens of sequenceLength.",),
        },
        model="hf://google/gemma-3-4b-it",
    ),
    "maxtext": Kind(
        "sft",
        "MaxText: its train_sft in your image, set up from this spec.",
        (
            "image=gcr.io/my-project/maxtext:latest",
            "runtime={maxtext: {modelName: llama3.1-8b, args: []}}",
            "training.steps=1000",
            _LENGTH,
        ),
        {
            "image": ("Yours, with MaxText's post-training: nothing builds it here.",),
            "runtime": ("MaxText's name of the model; args: its options as key=value. For train_rl: algorithm grpo.",),
            "model": ("A checkpoint of MaxText: gs://bucket/…/0/items.",),
            "data": ("A data set of the hub, or gs://; columns by data.train.columns.",),
            "accelerator": ("All types: `ptctl accelerators list`. `ptctl plan` does not cover MaxText.",),
        },
        model="gs://my-bucket/llama3.1-8b/0/items",
        checks=("validate",),
    ),
}
