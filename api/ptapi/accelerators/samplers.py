"""The chips of samplers with pods of their own (`rollout.placement: separate`).

A sampler is a slice, with a process on each of its hosts; one that is vLLM on TPUs is one host's. Left out: how its
mesh is made of them (`pttrainer.rollout`).
"""

from dataclasses import replace

from ptapi.accelerators.slice import Slice
from ptapi.accelerators.type_names import TYPE_FIELD, resolve
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec

PLACEMENT_FIELD = "spec.rollout.placement"
MOST_RANK = 512
"""Of adapters that vLLM takes."""
SAMPLER_TYPE_FIELD = "spec.rollout.separate.accelerator.type"


def sampler_chips(spec: PostTrainJobSpec) -> Slice | None:
    """Return the chips of all samplers, a slice for each; None if no pods of their own sample. Raises SpecError."""
    separate = spec.rollout.separate
    if separate is None:
        return None
    trainer = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    if trainer.total_vms * trainer.parallel_containers > 1:
        _check_many_processes(spec, trainer)
    one = trainer if separate.accelerator is None else _resolved(separate.accelerator.type)
    if spec.rollout.sampling_engine == "vllm":
        if one.multi_host and not one.is_gpu:
            raise SpecError([_several_hosts(one)])
        _check_vllm(spec, one)
    return replace(one, slices=separate.replicas)


def _resolved(type_: str) -> Slice:
    try:
        one = resolve(type_)
    except SpecError as error:
        raise SpecError([_about_sampler(finding) for finding in error.findings]) from None
    return one


def _check_vllm(spec: PostTrainJobSpec, one: Slice) -> None:
    """Raise SpecError for what vLLM cannot be given on these chips, or find in its pods."""
    vllm, findings = spec.rollout.vllm, []
    if spec.model.uri.startswith("random://"):
        accepted = "a model that samplers with vLLM can read: hf://, gs:// or file://"
        findings.append(Finding("spec.model.uri", spec.model.uri, accepted))
    if one.platform == "tpu" and spec.training.lora is None:
        findings.append(
            Finding(
                SAMPLER_TYPE_FIELD,
                one.name,
                "GPUs, or training.lora: vLLM on TPUs is given adapters as files, and no other weights",
                "training: {lora: {rank: 32}}",
            )
        )
    if spec.training.lora is not None and spec.training.lora.rank > MOST_RANK:
        findings.append(
            Finding(
                "spec.training.lora.rank",
                str(spec.training.lora.rank),
                f"at most {MOST_RANK} with samplers that are vLLM, which makes room for no more",
            )
        )
    if one.is_cpu and vllm is not None and vllm.image is None:
        findings.append(
            Finding("spec.rollout.vllm.image", "(missing)", "an image with vLLM for CPUs, of which there is no default")
        )
    if (
        vllm is not None
        and vllm.weights_directory is not None
        and not is_on_claim(spec, vllm.weights_directory, is_written=True)
    ):
        findings.append(
            Finding(
                "spec.rollout.vllm.weightsDirectory",
                vllm.weights_directory,
                "a directory below the mountPath of one of spec.volumes that trainer and samplers can mount at once",
                "volumes: [{name: shared, mountPath: /shared, persistentVolumeClaim: {claimName: shared}}]",
            )
        )
    if findings:
        raise SpecError(findings)


def is_on_claim(spec: PostTrainJobSpec, directory: str, *, is_written: bool = False) -> bool:
    """Return True if a claim of the job is mounted there; is_written: one that it may write to."""
    return any(
        f"{directory.rstrip('/')}/".startswith(f"{volume.mount_path.rstrip('/')}/")
        and volume.persistent_volume_claim is not None
        and not (is_written and volume.read_only)
        for volume in spec.volumes
    )


def _check_many_processes(spec: PostTrainJobSpec, trainer: Slice) -> None:
    """Raise SpecError for what several processes that train cannot do."""
    if spec.environment is not None and spec.environment.needs_one_process:
        count = f"{trainer.describe()} has {trainer.total_vms * trainer.parallel_containers} processes that train"
        accepted = f"colocated with environment.python and mcp, whose episodes are in one process, and {count}"
        hint = "an accelerator of one host with one process"
        raise SpecError([Finding(PLACEMENT_FIELD, "separate", accepted, hint)])


def _about_sampler(finding: Finding) -> Finding:
    return replace(finding, field=SAMPLER_TYPE_FIELD) if finding.field == TYPE_FIELD else finding


def _several_hosts(one: Slice) -> Finding:
    return Finding(
        SAMPLER_TYPE_FIELD,
        one.name,
        "GPUs, or a type of one host with samplers that are vLLM: over several hosts of TPUs vLLM runs by Ray alone, "
        f"which no pod starts, and {one.describe()} is {one.vms} hosts",
        f"accelerator: {{type: {_one_host(one)}}} and more replicas",
    )


def _one_host(one: Slice) -> str:
    """Return the type of one host of the same generation, with as many chips as a host of the slice."""
    family, _, number = one.name.rpartition("-")
    return f"{family}-{int(number) // one.vms}"
