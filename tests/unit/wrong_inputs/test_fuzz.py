"""Random wrong inputs: whatever is given, only our own errors leave, never a traceback.

In the suite the examples are few and the same each time; `HYPOTHESIS_PROFILE=long` draws others for hours.
"""

import copy
import json
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kubernetes.client import Configuration
from tests.unit.ptapi.test_wrong_manifests import GOOD
from tests.unit.wrong_inputs.test_files import CONFIG, TENSOR

from ptapi.errors import SpecError
from ptapi.load import load_job, parse_job
from ptapi.run_directory import LEASE, LINEAGE, METRICS, PROGRESS, TERMINATION
from ptapi.spec import DataSource
from ptctl.errors import CliError
from ptctl.runs import metric_table, sample_view
from ptctl.runs.storage import directory, local_run
from ptkube.client import Kube
from ptkube.errors import ApiError
from ptkube.kubeconfig import Access
from ptkube.resources import PODS
from pttrainer.data import rows
from pttrainer.data.tokenization import tokenizer
from pttrainer.environments.tool_call_parsing import PARSERS, parse_calls
from pttrainer.errors import TrainerError
from pttrainer.models.families import FAMILIES
from pttrainer.models.loading import model_spec
from pttrainer.models.weights.hf_directory import Checkpoint
from pttrainer.runtime.io import storage
from pttrainer.training.run_directory import latest_step, run_files

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
ROOT = Path(__file__).parents[3]
EXAMPLES = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "manifests" / "examples").glob("*.yaml"))]


def some(few: int) -> settings:
    if IS_LONG:
        return settings(max_examples=few * 1000)
    return settings(max_examples=few)


TEXTS = st.text(max_size=12) | st.sampled_from([
    "", " ", "0", "-1", "1e999", "nan", "true", "null", "010", "auto", "gs://", "file:///..", "hf://a/b", "v6e-16",
    "\x00", "\ud800", "a" * 300, "64 GB", "10m", "{", "{}", "*", "../..", "\u202e", "\n", "9" * 5000,
])  # fmt: skip
NUMBERS = st.integers(-(10**30), 10**30) | st.floats() | st.sampled_from([0, -1, 1, 2**31, 2**63, 1e308, -0.0])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every map and list of a document, with each of its keys."""
    steps = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [(node, step) for step in steps] + [place for step in steps for place in places(node[step])]


@st.composite
def changed(draw: st.DrawFn, documents: Any, most: int = 3) -> Any:
    """A good document with some values replaced, taken away, or under another key."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, most))):
        changeable = places(document)
        assume(changeable)
        node, step = draw(st.sampled_from(changeable))
        kind = draw(st.sampled_from(["replace", "replace", "remove", "rename", "wrap"]))
        if kind == "replace":
            node[step] = draw(VALUES)
        elif kind == "remove":
            del node[step]
        elif kind == "wrap":
            node[step] = draw(st.sampled_from([[node[step]], {"a": node[step]}, str(node[step])]))
        elif isinstance(node, dict):
            node[draw(TEXTS)] = node.pop(step)
    return document


PARTS = [b"", b"\xff", b"\x00", b"\t", b"- ", b": ", b"&a ", b"*a", b"!!int ", b"\n"]


@st.composite
def cut(draw: st.DrawFn, texts: Any) -> bytes:
    """A good text with bytes cut out, doubled or changed."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        put = draw(st.sampled_from(PARTS) | st.binary(max_size=4))
        text = text[:start] + (put or text[start:end] * 2) + text[end:]
    return text


JOBS = [GOOD, *EXAMPLES]
JOB_TEXTS = [yaml.safe_dump(job).encode() for job in JOBS]


@some(120)
@given(changed(JOBS))
def test_job_of_any_values_is_read_or_refused(document: Any) -> None:
    _only(SpecError, lambda: parse_job(document))


@some(80)
@given(cut(JOB_TEXTS))
def test_text_of_any_kind_is_read_or_refused(text: bytes) -> None:
    _only(SpecError, lambda: load_job(text.decode("utf-8", "replace")))


ROWS = [
    {"prompt": "a", "completion": "b", "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [
        {"function": {"name": "f", "arguments": {}}}]}]},
    {"prompt": [{"role": "user", "content": "a"}], "chosen": "a", "rejected": "b"}, {"text": "a"},
    {"question": "a", "answer": "b"},
]  # fmt: skip
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".jsonl.gz", ".jsonl.zst")


@some(60)
@given(st.lists(changed(ROWS), min_size=1, max_size=3))
def test_rows_of_any_values_are_read_or_refused(documents: Any) -> None:
    _read_rows("\n".join(json.dumps(document) for document in documents).encode(), ".jsonl")


@some(60)
@given(
    st.binary(max_size=60) | cut([json.dumps(ROWS).encode(), b"prompt,completion\na,b\n"]), st.sampled_from(SUFFIXES)
)
def test_files_of_any_bytes_are_read_or_refused(content: bytes, suffix: str) -> None:
    _read_rows(content, suffix)


def _read_rows(content: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / f"rows{suffix}").write_bytes(content)
        _only(TrainerError, lambda: rows.load(DataSource(uri=f"file://{name}/rows{suffix}"), "spec.data.train"))


CONFIGS = [
    CONFIG | {"model_type": family, "rope_scaling": {"rope_type": "linear", "factor": 2.0}} for family in FAMILIES
]
HEADER = {"a": TENSOR, "b": TENSOR | {"data_offsets": [16, 32]}, "__metadata__": {"format": "pt"}}
ADAPTERS = [{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}]


@some(80)
@given(changed(CONFIGS))
def test_config_of_any_values_is_read_or_refused(config: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(config))
        _only(TrainerError, lambda: model_spec.open_source(f"file://{name}", "spec.model.uri", lambda line: None))


@some(60)
@given(changed([HEADER]), st.integers(0, 64), st.integers(-8, 2**64 - 1000))
def test_weights_of_any_header_are_read_or_refused(header: Any, size: int, length: int) -> None:
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as name:
        start = struct.pack("<Q", len(text) + length if -len(text) < length < 20 else len(text))
        (Path(name) / "model.safetensors").write_bytes(start + text + bytes(size))
        _only(TrainerError, lambda: _first_rows(Checkpoint(Path(name), name)))


def _first_rows(checkpoint: Checkpoint) -> None:
    for name in checkpoint.names():
        if checkpoint.shape(name):
            checkpoint.rows(name, 0, checkpoint.shape(name)[0])


@some(40)
@given(
    st.sampled_from(["tokenizer_config.json", "generation_config.json", "chat_template.json", "adapter_config.json"]),
    changed([{"eos_token": "<|end|>", "pad_token": {"content": "a"}, "eos_token_id": [1], "chat_template": [
        {"name": "default", "template": "x"}]}, *ADAPTERS]) | VALUES,
)  # fmt: skip
def test_settings_of_any_values_are_read_or_refused(file: str, settings: Any) -> None:
    from pttrainer.models.loading import peft_adapters  # it imports jax, and every worker all files

    with tempfile.TemporaryDirectory() as name:
        for known, content in tokenizer.byte_tokenizer().files.items():
            (Path(name) / known).write_bytes(content)
        (Path(name) / file).write_text(json.dumps(settings))
        _only(TrainerError, lambda: tokenizer.load(storage.place(f"file://{name}")))
        if file.startswith("adapter"):
            _only(TrainerError, lambda: peft_adapters._read_config(Path(name), name))


RUN_FILES = {
    "spec.yaml": JOB_TEXTS[0],
    PROGRESS: b'{"schemaVersion": 1, "step": 3, "stage": "training", "metrics": {"loss": 1.0}}',
    METRICS: b'{"step": 1, "loss": 2.0, "time": 1.0}\n{"step": 2, "loss": 1.0}\n',
    TERMINATION: b'{"failureClass": "Unknown", "message": "x", "exitCode": 1}',
    LEASE: b'{"holder": "a", "heartbeat": "2026-01-01T00:00:00Z", "limitSeconds": 60}',
    LINEAGE: b'{"model": {"uri": "random://tiny"}, "data": {"train": {"uri": "file:///a", "files": []}}}',
    "samples/step-00000001.jsonl": b'{"reward": 1.0, "rewards": {"a": 1.0, "b": 2.0}, "turns": [{"role": "user"}]}\n',
}
DOCUMENTS = [
    json.loads(content) for name, content in RUN_FILES.items() if content.startswith(b"{") and content.count(b"\n") < 2
]


@some(60)
@given(
    st.sampled_from(sorted(RUN_FILES)),
    cut(list(RUN_FILES.values())) | changed(DOCUMENTS).map(lambda d: json.dumps(d).encode()),
)
def test_run_directory_of_any_files_is_read_or_refused(file: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        (run / "samples").mkdir()
        for known, good in (RUN_FILES | {file: content}).items():
            (run / known).write_bytes(good)
        job = parse_job(GOOD)
        place = storage.place(f"file://{name}")
        _only((CliError, SpecError), lambda: local_run.read(run))
        _only(CliError, lambda: _show(run))
        _only(TrainerError, lambda: run_files.pinned_commits(place, job))
        _only(TrainerError, lambda: run_files.pinned_data(place, job))
        _only(TrainerError, lambda: latest_step.run_progress(place))


def _show(run: Path) -> None:
    metrics = directory.metrics(run)
    metric_table.table(metrics, 80, wide=True)
    _only(CliError, lambda: metric_table.plot(metrics, "loss", 80))
    directory.progress(run)
    directory.newest_sample(f"file://{run}")
    for row in directory.samples(run, None)[1]:
        sample_view._headline(row)
        sample_view._split_turns(row)


TURNS = [
    b'<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', b'[TOOL_CALLS][{"name": "f", "arguments": {}}]',
    b"<|start|>assistant to=functions.f<|message|>{}<|call|>", b"```tool_code\nprint(f(a=[1], b={'c': 2}))\n```",
    b'<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g"}', b"[f(a=1), g(b='x')]",
]  # fmt: skip


@some(120)
@given(
    st.sampled_from(sorted(PARSERS)),
    cut(TURNS) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
)
def test_turn_of_any_text_is_an_answer_or_calls(form: str, turn: bytes) -> None:
    for call in parse_calls(form, turn.decode("utf-8", "replace")):
        assert call.error or call.name is not None


POD = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}}
ANSWERS = [
    {"kind": "PodList", "items": [POD], "metadata": {"resourceVersion": "1"}}, POD,
    {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no"},
    {"type": "ADDED", "object": POD}, {"type": "ERROR", "object": {"code": 410, "reason": "Expired"}},
]  # fmt: skip


class Answering:
    """A transport whose API server, or whatever is in its place, gives one answer to everything."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def request(self, *args: Any, **kwargs: Any) -> bytes:
        return self.answer

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return iter([self.answer, b"\n"])


@some(120)
@given(changed(ANSWERS).map(lambda one: json.dumps(one).encode()) | cut([json.dumps(one).encode() for one in ANSWERS]))
def test_answer_of_any_kind_is_read_or_refused(answer: bytes) -> None:
    kube = Kube(Access(Configuration(host="http://127.0.0.1:1"), "a test"))
    kube._transport = cast(Any, Answering(answer))
    _only(ApiError, lambda: kube.list(PODS, "a"))
    _only(ApiError, lambda: kube.get(PODS, "a", "a"))
    _only(ApiError, lambda: list(kube.watch(PODS, "a")))
    _only(ApiError, lambda: list(kube.pod_logs("a", "a")))


def _only(errors: type[Exception] | tuple[type[Exception], ...], act: Callable[[], object]) -> None:
    message = "accepted"
    try:
        act()
    except errors as error:
        message = str(error)
    assert message.encode(), "an error without a message"
