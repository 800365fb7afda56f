"""The container of a sampler that is vLLM (`rollout.placement: separate` with `engine: vllm`).

It serves the job's model under its pod's uid, a name that is never used twice: the trainer asks for that name, so a
sampler that was made anew answers nothing before it has the weights, which it reads on a volume of the job. Where all
weights are trained, it finds our backend of vLLM's weight API (`vllm_plugin`): vLLM has none over files. On several
hosts, the first serves, and `posttrain_vllm.several_hosts` ends all of them when one ends. Left out: an image for CPUs,
which the job must name; all weights on TPUs, whose vLLM takes none of ours, and several hosts of TPUs.
"""

import json

import posttrain_vllm
from posttrain_vllm import several_hosts
from ptkube.resources import Manifest
from ptoperator.kube import names
from ptoperator.render.layout import Layout
from ptoperator.render.pods import gpu_fabric
from ptoperator.render.pods.beside import vllm_plugin
from ptoperator.render.pods.environment_variables import HOST_INDEX, SAMPLER_INDEX, SAMPLER_POD, vllm_env
from ptoperator.render.pods.pod import trainer_container
from ptoperator.render.serving.deployment import health, max_lora_rank, probes
from ptoperator.render.serving.weights import BUCKET, FUSE_ANNOTATION, Mounted, bucket_volume, bucket_weights, mounts_of

TPU_IMAGE = "vllm/vllm-tpu:v0.32.0"
GPU_IMAGE = "vllm/vllm-openai:v0.32.0"
"""Of the version whose requests the trainer was written for."""
_HUB, _FILE = "hf://", "file://"


def container(layout: Layout, amounts: Manifest) -> Manifest:
    """Return the container; layout: with the chips of one sampler."""
    ports = [{"name": "sampler", "containerPort": names.SAMPLER_PORT}]
    if layout.hosts > 1:
        ports.append({"name": "coordinator", "containerPort": names.COORDINATOR_PORT})
    base = trainer_container(layout, names.SAMPLER, vllm_env(layout), amounts, ports=ports)
    model = _model(layout)
    return {
        **base,
        "image": _image(layout),
        "command": gpu_fabric.command(layout, [*_launcher(layout), "vllm", "serve", model.path]),
        "args": _flags(layout, model),
        "volumeMounts": [*base["volumeMounts"], *mounts_of([model]), *vllm_plugin.mounts(layout)],
        **probes(health("sampler")),
    }


def volumes(layout: Layout) -> list[Manifest]:
    """Return the volumes of the model's bucket, if it lies in one, and of the plugin; claims are the job's own."""
    model = _model(layout)
    return [*([bucket_volume(model)] if model.bucket else []), *vllm_plugin.volumes(layout)]


def annotations(layout: Layout) -> dict[str, str]:
    """Return what lets GKE mount that bucket, and the GPUs' network."""
    return {**gpu_fabric.annotations(layout), **({FUSE_ANNOTATION: "true"} if _model(layout).bucket else {})}


def _model(layout: Layout) -> Mounted:
    """Return where the pod finds the model: its copy, if it was staged."""
    uri = layout.staged_model or layout.job.spec.model.uri
    if uri.startswith(BUCKET):
        return bucket_weights("", uri)
    return Mounted("", uri.removeprefix(_HUB).removeprefix(_FILE))


def _image(layout: Layout) -> str:
    vllm = layout.job.spec.rollout.vllm
    assert vllm is not None
    return vllm.image or (GPU_IMAGE if layout.accelerator.is_gpu else TPU_IMAGE)


def _launcher(layout: Layout) -> list[str]:
    """Return the program that starts vLLM as one of several hosts; nothing for one host."""
    if layout.hosts == 1:
        return []
    leader = f"{names.role_host(layout.jobset, names.SAMPLER, f'$({SAMPLER_INDEX})')}:{names.COORDINATOR_PORT}"
    words = ["--rank", f"$({HOST_INDEX})", "--hosts", str(layout.hosts), "--leader", leader]
    return ["python3", "-m", several_hosts.__name__, *words, "--health", str(names.SAMPLER_PORT), "--"]


def _flags(layout: Layout, model: Mounted) -> list[str]:
    spec, chips = layout.job.spec, layout.accelerator
    vllm, lora = spec.rollout.vllm, spec.training.lora
    assert vllm is not None
    flags = ["--served-model-name", f"$({SAMPLER_POD})", "--port", str(names.SAMPLER_PORT)]
    flags += ["--max-model-len", str(spec.training.sequence_length), "--dtype", _dtype(layout)]
    # At the temperature and after truncation, or before both: as the native engine's where one is enough.
    flags += ["--logprobs-mode", "raw_logprobs" if spec.rollout.temperature == 1.0 else "processed_logprobs"]
    if chips.multi_host:  # layers between hosts, parts of a layer within one, as vLLM's guide has it
        flags += ["--tensor-parallel-size", str(chips.devices // chips.vms), "--pipeline-parallel-size", str(chips.vms)]
    elif not chips.is_cpu:
        flags += ["--tensor-parallel-size", str(chips.devices)]
    if spec.model.revision and not model.path.startswith("/"):
        flags += ["--revision", spec.model.revision]
    if vllm.memory_share is not None:
        flags += ["--gpu-memory-utilization", f"{vllm.memory_share:g}"]
    if lora is not None:
        flags += ["--enable-lora", "--max-lora-rank", str(max_lora_rank(lora.rank))]
    if lora is None:
        flags += ["--weight-transfer-config", json.dumps({"backend": posttrain_vllm.BACKEND})]
    return flags


def _dtype(layout: Layout) -> str:
    """Return the number format in which the trainer computes: vLLM's own choice may be another."""
    spec = layout.job.spec
    return spec.training.formats(on_cpu=spec.accelerator.type.startswith("cpu-")).compute
