"""The spec of a PostTrainJob: one file per part, combined in `job.py`.

Field docs are attribute docstrings: they become the CRD's descriptions (`kubectl explain ptj.spec`) and the reference
page. Parse with `ptapi.load.parse_job`, which adds the rules across fields (`ptapi.validation`).
"""

from ptapi.spec.algorithm import (
    Algorithm,
    Critic,
    Distill,
    Dpo,
    Grpo,
    Kto,
    Ppo,
    Raft,
    RewardModelTraining,
    Sdpo,
    SdpoPolicy,
    SelfTeacher,
    Sft,
)
from ptapi.spec.base import PythonCode
from ptapi.spec.chips.accelerator import Accelerator
from ptapi.spec.chips.capacity import CapacityOption
from ptapi.spec.chips.pathways import Pathways
from ptapi.spec.data import Columns, DataSource, DataSpec
from ptapi.spec.evaluation_checkpoint_export import (
    BestCheckpoints,
    Checkpoint,
    Evaluation,
    Export,
    Fork,
    Output,
    RunPolicy,
)
from ptapi.spec.job import API_GROUP, API_VERSION, KIND, PLURAL, ObjectMeta, PostTrainJob, PostTrainJobSpec
from ptapi.spec.model import ModelSpec
from ptapi.spec.pods.env import EnvVar
from ptapi.spec.pods.overrides import ContainerSecurityContext, InitContainer, Pod
from ptapi.spec.pods.resources import Amounts, ContainerResources, Resources
from ptapi.spec.pods.runtime import FunctionRuntime, Runtime
from ptapi.spec.pods.services import Service
from ptapi.spec.pods.volumes import Volume
from ptapi.spec.rollouts.environment import (
    Environment,
    GymnasiumEnvironment,
    McpServer,
    PythonEnvironment,
    PythonTool,
    Tool,
)
from ptapi.spec.rollouts.rewards import JudgeBudget, JudgeReward, ModelReward, PythonReward, Reward
from ptapi.spec.rollouts.rollout import BlockDrafts, DraftModel, NgramLookup, Rollout, Speculative, Vllm
from ptapi.spec.training import Optimizer, Parallelism, Precision, Profile, Schedule, Training

__all__ = [
    "API_GROUP",
    "API_VERSION",
    "KIND",
    "PLURAL",
    "Accelerator",
    "Algorithm",
    "Amounts",
    "BestCheckpoints",
    "BlockDrafts",
    "CapacityOption",
    "Checkpoint",
    "Columns",
    "ContainerResources",
    "ContainerSecurityContext",
    "Critic",
    "DataSource",
    "DataSpec",
    "Distill",
    "Dpo",
    "DraftModel",
    "EnvVar",
    "Environment",
    "Evaluation",
    "Export",
    "Fork",
    "FunctionRuntime",
    "Grpo",
    "GymnasiumEnvironment",
    "InitContainer",
    "JudgeBudget",
    "JudgeReward",
    "Kto",
    "McpServer",
    "ModelReward",
    "ModelSpec",
    "NgramLookup",
    "ObjectMeta",
    "Optimizer",
    "Output",
    "Parallelism",
    "Pathways",
    "Pod",
    "PostTrainJob",
    "PostTrainJobSpec",
    "Ppo",
    "Precision",
    "Profile",
    "PythonCode",
    "PythonEnvironment",
    "PythonReward",
    "PythonTool",
    "Raft",
    "Resources",
    "Reward",
    "RewardModelTraining",
    "Rollout",
    "RunPolicy",
    "Runtime",
    "Schedule",
    "Sdpo",
    "SdpoPolicy",
    "SelfTeacher",
    "Service",
    "Sft",
    "Speculative",
    "Tool",
    "Training",
    "Vllm",
    "Volume",
]
