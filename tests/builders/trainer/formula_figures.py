"""Jobs whose formula's verdict is kept, figure by figure, in `formula_figures.json`: every kind that it tells apart.

Its figures are promises: a change of code that should not change them is held against them to the last bit.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.builders.scripts import load_script
from tests.builders.trainer.preflight import job

from ptapi.spec import Pathways, PostTrainJob, Reward
from pttrainer.preflight.advice.matrix import matrix
from pttrainer.preflight.advice.search import fit
from pttrainer.preflight.check import judge

KEPT = Path(__file__).parents[2] / "unit" / "pttrainer" / "preflight" / "formula_figures.json"
LORA: dict[str, Any] = {"lora": {"rank": 16}}
QLORA: dict[str, Any] = {**LORA, "quantization": {"weights": "nf4"}}
EIGHT: dict[str, Any] = {"batchSize": 64, "sequenceLength": 3072, "steps": 100}
TEACHER = {"uri": "random://qwen3-8b"}


def _case(model: str, accelerator: str, name: str = "", **fields: Any) -> tuple[str, PostTrainJob]:
    merged = {"remat": "full", **EIGHT, **fields}
    made = job(model, accelerator, **merged)
    algorithm = fields.get("algorithm", "sft")
    return f"{model} {algorithm} {accelerator} {name}".strip(), made


def _measured() -> Iterator[tuple[str, PostTrainJob]]:
    """Those that were held against the compiler."""
    for case in load_script("benchmarks/preflight/preflight_formula.py").CASES:
        if case.has_images:  # of a config that no URI names
            continue
        more = {"algorithm": case.algorithm, "slices": case.slices, "options": case.options}
        yield case.name, job(case.model, case.accelerator, **more, **{"remat": "full", **case.training})


def _more() -> Iterator[tuple[str, PostTrainJob]]:
    eight, moe, v6e = "llama3.1-8b", "qwen3-30b-a3b", "v6e-16"
    yield _case(eight, v6e)
    yield _case(eight, v6e, "auto", remat="auto")
    yield _case(eight, "v5p-16", "auto", remat="auto")
    yield _case(eight, v6e, "does not fit", batchSize=256, sequenceLength=8192)
    yield _case("llama3.1-70b", v6e, "does not fit")
    yield _case("llama3.1-70b", "tpu7x-128", algorithm="grpo", batchSize=128, rollout={"maxNewTokens": 1024})
    yield _case("llama3.1-70b", "v5p-128", algorithm="grpo", batchSize=1024, rollout={"maxNewTokens": 1024})
    for rule in ("adafactor", "muon", "lion"):
        for model in (eight, moe):
            for name, how in (("full", {}), ("lora", LORA)):
                yield _case(model, "v5p-128", f"{rule} {name}", optimizer={"name": rule}, **how)
    yield _case("qwen3-4b", v6e, "adafactor average", optimizer={"name": "adafactor"}, ema={})
    yield _case("qwen3-4b", v6e, "frozen average", freeze=["embeddings", "norms", "layers.0-3"], ema={})
    yield _case("qwen3-4b", v6e, "frozen in part", freeze=["layers.7"])
    yield _case("qwen3-8b", v6e, "frozen muon", freeze=["embeddings", "head"], optimizer={"name": "muon"})
    yield _case("gpt-oss-20b", "v5p-64")
    yield _case("gpt-oss-20b", "v5p-64", "adapters", **LORA)
    yield _case(moe, "v5p-64", "int8", **LORA, quantization={"weights": "int8"})
    yield _case(moe, "v5e-64", "does not fit", parallelism={"expert": 8})
    yield _case("gemma3-4b", "v6e-8", "tables", lora={"rank": 8, "embeddings": True, "targets": "attention"})
    yield _case("gemma2-2b", "v5e-8", "tensor", parallelism={"fsdp": 2, "tensor": 4}, **QLORA)
    yield _case("gemma3-27b", "v5p-128", "float32", precision={"compute": "float32"})
    yield _case("llama3.2-1b", "v5e-4", "bfloat16", precision={"params": "bfloat16"}, microBatchSize=8)
    yield _case("mistral-7b", v6e, "slices", slices=4, batchSize=128)
    yield _case(eight, v6e, "simpo", algorithm="dpo", options={"loss": "simpo"})
    for loss in ("gspo", "dapo"):
        yield _case("qwen3-1.7b", "v6e-8", loss, algorithm="grpo", options={"loss": loss, "updatesPerBatch": 2})
    yield _case("qwen3-8b", v6e, "penalty", algorithm="grpo", options={"beta": 0.1}, rollout={"slots": 16})
    yield _case("qwen3-8b", v6e, "penalty on adapters", algorithm="grpo", options={"beta": 0.1}, **QLORA)
    yield _case("qwen3-8b", v6e, "ngram", algorithm="grpo", rollout={"speculative": {"ngram": {}}})
    yield _case("qwen3-8b", v6e, "block", algorithm="grpo", rollout={"speculative": {"block": {}}})
    draft = {"uri": "random://qwen3-0.6b"}
    yield _case("qwen3-8b", v6e, "draft", algorithm="grpo", rollout={"speculative": {"draft": draft}})
    yield _case("qwen3-8b", v6e, "vllm", algorithm="grpo", rollout={"engine": "vllm", "vllm": {}})
    apart = {"placement": "disaggregated", "samplerShare": 0.333, "maxStaleness": 1}
    name, three = _case(eight, v6e, "apart", algorithm="grpo", slices=3, batchSize=512, rollout=apart)
    one_controller = three.spec.model_copy(update={"pathways": Pathways(enabled=True)})
    yield name, three.model_copy(update={"spec": one_controller})
    for kind in ("head", "model"):
        options = {"critic": {"kind": kind}, "klCoefficient": 0.1}
        yield _case("llama3.2-3b", v6e, kind, algorithm="ppo", options=options)
    yield _case("qwen3-0.6b", v6e, algorithm="distill", options={"teacher": TEACHER})
    yield _case("qwen3-0.6b", v6e, "online", algorithm="distill", options={"teacher": TEACHER, "mode": "online"})
    yield _case("qwen3-0.6b", v6e, "offline", algorithm="distill", options={"mode": "offline"})
    for weights, how in (("initial", LORA), ("average", {"ema": {}})):
        options = {"selfTeacher": {"weights": weights, "privilegedContext": "{prompt} {answer}"}}
        yield _case("qwen3-0.6b", v6e, weights, algorithm="distill", options=options, **how)


def _rewarded(of: PostTrainJob) -> PostTrainJob:
    """Return a job of reinforcement learning that is valid when it is read again."""
    rewards = [Reward.model_validate({"builtin": "gsm8k"})]
    return of.model_copy(update={"spec": of.spec.model_copy(update={"rewards": rewards})})


JOBS = dict([*_measured(), *_more()])
SEARCHED = {
    "fit 8B": _case("llama3.1-8b", "v5e-16", batchSize=64)[1],
    "fit 70B": _case("llama3.1-70b", "v6e-16", batchSize=32)[1],
}
TABLED = {"matrix of 8B GRPO": _rewarded(_case("qwen3-8b", "v6e-16", algorithm="grpo", batchSize=32)[1])}


def verdict_figures(of: PostTrainJob) -> dict[str, Any]:
    """What people look at first, and a digest of everything."""
    document = judge(of, "formula", price=2.0).document()
    document.pop("versions")
    step = document["programs"][0]
    first = {name: document[name] for name in ("fits", "peak", "peakDuring", "parameters", "trainedParameters")}
    seconds = document["estimate"]["seconds"]
    return {**first, "arguments": step["arguments"], "temporaries": step["temporaries"], "seconds": seconds} | {
        "digest": _digest(document)
    }


def figures() -> dict[str, Callable[[], dict[str, Any]]]:
    """By name: how they are found."""
    made: dict[str, Callable[[], dict[str, Any]]] = {
        name: lambda of=of: verdict_figures(of)  # type: ignore[misc]
        for name, of in JOBS.items()
    }
    for name, of in SEARCHED.items():
        made[name] = lambda of=of: dataclasses.asdict(fit(of, compile_first=False))  # type: ignore[misc]
    for name, of in TABLED.items():
        made[name] = lambda of=of: _cells(of)  # type: ignore[misc]
    return made


def _cells(of: PostTrainJob) -> dict[str, Any]:
    cells = [dataclasses.asdict(cell) for cell in matrix(of, ["v6e-16", "v5p-16", "v5e-64"], [32, 64])]
    return {"peaks": [cell["peak_gib"] for cell in cells], "digest": _digest(cells)}


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
