"""A small model that names the colours of pictures and calls a tool: served, talked to, and measured."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image
from tests.builders.peers.image_models import write_trainable
from tests.builders.pictures import encoded
from tests.builders.trainer import quick, runs

from ptkube.resources import DEPLOYMENTS

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}
SYSTEM = "Call add(a, b)."
QUESTION: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "2+3?"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD: Any = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": PARAMETERS}}
GREEDY: dict[str, Any] = {"model": "both", "temperature": 0, "max_tokens": 24}


def picture(name: str, number: int) -> Image.Image:
    """A noisy picture of a colour."""
    noise = np.random.default_rng(number).normal(0, 20, (20, 30, 3))
    return Image.fromarray(np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8))


def url(name: str) -> str:
    """A picture that was not learned from, in a request."""
    return f"data:image/png;base64,{base64.b64encode(encoded(picture(name, 99))).decode()}"


def with_picture(where: str, text: str = "?") -> list[Any]:
    """A message with a picture."""
    parts = [{"type": "image_url", "image_url": {"url": where}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned both, the tool by heart, and `red.png` and `blue.png`, which it has not learned from."""
    directory = tmp_path_factory.mktemp("both")
    write_trainable(directory / "model")
    rows: list[dict[str, Any]] = []
    for number in range(24):
        name = ("red", "blue")[number % 2]
        picture(name, number).save(directory / f"{number}.png")
        rows.append({"messages": [*with_picture(f"{number}.png"), {"role": "assistant", "content": name[0]}]})
    for name in COLOURS:
        picture(name, 99).save(directory / f"{name}.png")
    result = {"role": "user", "content": "```tool_output\n5\n```"}
    turns = [{"role": "assistant", "content": "[add(a=2, b=3)]"}, result, {"role": "assistant", "content": "It is 5."}]
    runs.write_rows(directory / "train.jsonl", [*rows, *[{"messages": [*QUESTION, *turns]}] * 12])
    training = {"steps": 40, "batchSize": 4, "sequenceLength": 160, "optimizer": {"learningRate": 1e-2}}
    model = {"uri": f"file://{directory}/model", "images": True}
    parts: dict[str, Any] = {"checkpoint": {"everySteps": 1000}, "tensorboard": {"enabled": False}}
    runs.run(runs.job(directory, "both", {"model": model, "training": training}, parts))
    return directory


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    words = ("--port", "0", "--image-files", str(home))
    server = runs.command("serve", str(home / "runs" / "both"), *words)
    assert server.stderr is not None
    address = next(match[0] for line in server.stderr if (match := re.search(r"http://127\.0\.0\.1:\d+/v1", line)))
    yield address
    server.send_signal(signal.SIGINT)
    server.wait(timeout=60)


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=address, api_key="none", max_retries=0)


def test_a_tool_is_called_and_its_result_is_answered(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(messages=QUESTION, tools=[ADD], **GREEDY).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    [call] = first.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 3})
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    turns: list[Any] = [*QUESTION, first.message, result]
    second = client.chat.completions.create(messages=turns, tools=[ADD], **GREEDY).choices[0]
    assert (second.finish_reason, second.message.content, second.message.tool_calls) == ("stop", "It is 5.", None)
    without = client.chat.completions.create(messages=QUESTION, tools=[ADD], tool_choice="none", **GREEDY).choices[0]
    assert (without.message.content, without.message.tool_calls) == ("[add(a=2, b=3)]", None)


def test_a_stream_has_the_text_of_an_answer_or_its_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(messages=QUESTION, tools=[ADD], **GREEDY) as stream:
        shown = [event.delta for event in stream if event.type == "content.delta"]
        message = stream.get_final_completion().choices[0].message
    assert not any(shown)
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"a": 2, "b": 3}']
    calls: Any = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    turns: list[Any] = [
        {"role": "assistant", "tool_calls": [calls]},
        {"role": "tool", "tool_call_id": "x", "content": "5"},
    ]
    chunks = list(client.chat.completions.create(messages=[*QUESTION, *turns], tools=[ADD], stream=True, **GREEDY))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == "It is 5."
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_call_that_is_wanted_is_made_whatever_the_model_likes(client: openai.OpenAI) -> None:
    question: Any = [{"role": "user", "content": "Say add, or mul."}]
    named: Any = {"type": "function", "function": {"name": "mul"}}
    mul: Any = {"type": "function", "function": {"name": "mul"}}
    done = client.chat.completions.create(messages=question, tools=[ADD, mul], tool_choice=named, **GREEDY).choices[0]
    [call] = done.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "mul"
    required: Any = {**GREEDY, "tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False}
    done = client.chat.completions.create(messages=QUESTION, **required).choices[0]
    assert [(c.type, c.function.name) for c in done.message.tool_calls or () if c.type == "function"] == [
        ("function", "add")
    ]


def test_a_picture_is_seen_from_a_url_or_a_file_of_the_directory(client: openai.OpenAI, home: Path) -> None:
    for name in COLOURS:
        for where in (url(name), f"file://{home}/{name}.png"):
            answer = client.chat.completions.create(messages=with_picture(where), **GREEDY).choices[0]
            assert (answer.message.content, answer.finish_reason) == (name[0], "stop")
    both: Any = [*with_picture(url("red")), {"role": "assistant", "content": "r"}, *with_picture(url("blue"))]
    assert client.chat.completions.create(messages=both, **GREEDY).choices[0].message.content == "b"


def test_an_evaluation_of_pictures_counts_labels(home: Path) -> None:
    rows = [{"image": f"{name}.png", "label": name[0]} for name in COLOURS]
    runs.write_rows(home / "labels.jsonl", [*rows, {"image": "red.png", "label": "b"}])
    words = ("--data", str(home / "labels.jsonl"), "--task", "labels", "--instruction", "?", "-o", "json")
    done = runs.command("eval", str(home / "runs" / "both"), *words)
    out, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    [model] = json.loads(out)["models"]
    assert model["metrics"]["accuracy"] == pytest.approx(2 / 3)
    assert model["metrics"]["macro_f1"] == pytest.approx(2 / 3)


ADD_FILE = """def add(a: int, b: int) -> str:
    '''Add two numbers.'''
    return str(a + b)


def _unused(): ...
"""


def chatted(
    home: Path, *words: str, lines: str | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`ptctl chat WORDS`, greedy. path: of programs that come before others."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": runs.compiled(), "XLA_FLAGS": quick.FLAGS}
    environment |= {} if path is None else {"PATH": f"{path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "ptctl", "chat", *words, "--temperature", "0", "--max-tokens", "24"]
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300, env=environment, cwd=home)


def test_a_chat_calls_python_functions_and_shows_pictures_here_and_by_a_server(home: Path, address: str) -> None:
    (home / "tools.py").write_text(ADD_FILE)
    lines = "2+3?\n/reset\n/image blue.png\n?\n/image none.png\n"
    run = str(home / "runs" / "both")
    done = chatted(home, "--compare", run, address, "--tools", "tools.py", "--system", SYSTEM, lines=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[both]\nIt is 5.\n[both]\nIt is 5.\n[both]\n")
    assert done.stderr.count('add({"a": 2, "b": 3}) -> 5') == 2
    assert "image: none.png: No such file or directory; accepted: a file with a picture" in done.stderr
    alone = chatted(home, address, "--image", "red.png", "--message", "?")
    assert (alone.returncode, alone.stdout) == (0, "r\n"), alone.stderr


KUBECTL = """#!/bin/sh
case "$*" in *"port-forward service/both-serve 0:8000") ;; *) echo "$*" >&2; exit 1;; esac
echo "Forwarding from 127.0.0.1:PORT -> 8000"
exec sleep 600
"""
"""Stands for the connection alone, which no API server without nodes has: its port is that of a server here."""


def test_a_chat_in_the_cluster_goes_to_the_server_of_a_job(
    home: Path, address: str, api: Any, namespace: str, tmp_path: Path
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.replace("PORT", address.split(":")[2].removesuffix("/v1")))
    kubectl.chmod(0o755)
    cluster = ("--kubeconfig", str(api.kubeconfig), *(() if api.context is None else ("--context", api.context)))
    words = ("both-serve", "--on", "gke", "-n", namespace, *cluster, "--message", "?", "--image", "red.png")
    absent = chatted(home, *words)
    assert (absent.returncode, absent.stdout) == (3, "")
    assert f"'both-serve' is no server in namespace '{namespace}', and no job that one serves" in absent.stderr
    made = subprocess.run(
        [sys.executable, "-m", "ptctl", "serve", "gs://lab/runs/both/export", "--on", "gke", "--tpu", "v6e-4",
         "-n", namespace, *cluster], capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "server 'both-serve' is not ready" in chatted(home, *words).stderr
    status = {"status": {"replicas": 1, "readyReplicas": 1}}
    api.kube.patch(DEPLOYMENTS, "both-serve", namespace, status, subresource="status")
    other = chatted(home, "both-serve#math", *words[1:])
    assert (other.returncode, "both-serve#math: the server has no such model; accepted: both" in other.stderr) == (
        3,
        True,
    )
    done = chatted(home, *words, path=tmp_path)
    assert (done.returncode, done.stdout) == (0, "r\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("--tools", "none.py"),
            "--tools: none.py: accepted: FILE.py or FILE.py:FUNCTION of a file that exists, calcul",
        ),
        (("--tools", "tools.py:sub"), "no function 'sub'"),
        (("--image", "none.png"), "image: none.png: No such file or directory; accepted: a file with a picture"),
    ],
)
def test_wrong_words_of_a_chat_are_refused(home: Path, address: str, words: tuple[str, ...], error: str) -> None:
    (home / "tools.py").write_text(ADD_FILE)
    done = runs.command(
        "chat",
        address,
        "--message",
        "?",
        *[word.replace("tools", f"{home}/tools") if "py" in word else word for word in words],
    )
    _, errors = done.communicate(timeout=300)
    assert done.returncode != 0
    assert error in errors
    assert "Traceback" not in errors


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "auto"}, "tool_choice", "tool_choice: 'auto': needs tools"),
    ({"tools": [ADD, ADD]}, "tools", "tools: 'add': two tools have this name"),
    ({"tools": [{"type": "function", "function": {"name": "sub"}}]}, "tools", "no message names this one; accepted: "),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools.0.function.name",
        "accepted: String should m",
    ),
    (
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": ""}]},
        "messages.0.tool_call_id",
        "the id of a call",
    ),
    (
        {"messages": with_picture("https://example.com/a.png")},
        "messages.0.content.0.image_url",
        "hint: serve with --https-images",
    ),
    (
        {"messages": with_picture("file:///etc/hostname")},
        "messages.0.content.0.image_url",
        "accepted: data: URLs, file:// in /",
    ),
    (
        {"messages": with_picture("data:image/png;base64,AAAA")},
        "messages",
        "is no image (3 bytes); accepted: JPEG, PNG",
    ),
    (
        {"messages": [{"role": "system", "content": with_picture("")[0]["content"]}]},
        "messages.0.content.0.type",
        "of users",
    ),
]


@pytest.mark.parametrize(("change", "param", "message"), WRONG)
def test_wrong_tools_and_images_are_refused_by_name(
    client: openai.OpenAI, change: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"messages": QUESTION, **GREEDY, **change})
    body: Any = caught.value.body
    assert (body["type"], body["param"]) == ("invalid_request_error", param)
    assert message in body["message"]
