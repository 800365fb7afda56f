"""`python -m pttrainer serve` and OpenAI's own client."""

import json
import re
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.builders.trainer import runs
from tests.builders.trainer.forked import Process

from ptapi import run_directory
from pttrainer.commands.model.answers import Answer, Request
from pttrainer.commands.model.batches import Batches
from pttrainer.commands.model.loaded_model import load

HI: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
PICTURE = {
    "type": "image_url",
    "image_url": {"url": "data:image/gif;base64,R0lGODdhAQABAIEAAAAAAAAAAAAAAAAAACwAAAAAAQABAAAIBAABBAQAOw=="},
}
FIXED: dict[str, Any] = {"model": "tiny", "max_tokens": 10, "seed": 5}


def served() -> tuple[Process, str]:
    """A server on a free port, and its address."""
    server = runs.command("serve", "random://tiny", "--port", "0", "--max-length", "4096")
    assert server.stderr is not None
    for line in server.stderr:
        if address := re.search(r"http://127\.0\.0\.1:\d+/v1", line):
            return server, address[0]
    raise AssertionError("the server ended")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server, address = served()
    yield address
    server.send_signal(signal.SIGINT)
    server.wait(timeout=120)


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=address, api_key="none", max_retries=0)


def test_a_chat_is_answered_whole_and_in_a_stream_alike(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    whole = client.chat.completions.create(messages=HI, logprobs=True, **FIXED)
    [choice] = whole.choices
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len("Be brief." + "hi") + 6  # bos, three roles, two ends
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == whole.usage.completion_tokens
    assert all(token.logprob < 0 for token in choice.logprobs.content)
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(messages=HI, stream=True, stream_options=options, **FIXED))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == choice.message.content
    assert len(chunks) >= 3  # the role, the text in as many pieces as there was time for, the usage
    assert chunks[-2].choices[0].finish_reason == choice.finish_reason
    assert chunks[-1].usage == whole.usage


def test_a_completion_ends_before_its_stop_string(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {**FIXED, "prompt": "2 + 2 =", "temperature": 0.7, "top_p": 0.9}
    whole = client.completions.create(logprobs=0, **wanted).choices[0]
    assert whole.logprobs is not None
    assert len(whole.logprobs.tokens or ()) == 10
    stop = next(character for character in whole.text[2:] if character.isascii())
    ended = client.completions.create(stop=stop, **wanted).choices[0]
    assert (ended.text, ended.finish_reason) == (whole.text[: whole.text.index(stop)], "stop")
    streamed = client.completions.create(stop=[stop], stream=True, **wanted)
    assert "".join(chunk.choices[0].text for chunk in streamed) == ended.text


def test_requests_at_once_get_the_answers_that_they_get_alone(client: openai.OpenAI) -> None:
    def text(seed: int) -> str | None:
        whole = client.chat.completions.create(messages=HI, model="tiny", max_tokens=10, seed=seed)
        return whole.choices[0].message.content

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(text, [5, 6]))
    assert together == [text(5), text(6)]
    assert together[0] != together[1]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 3}, "temperature", "temperature: 3: accepted: less than or equal to 2"),
    ({"max_tokens": 5000}, "max_tokens", "max_tokens: 5000: accepted: 1 to 40"),
    ({"functions": []}, "functions", "functions: []: not supported; accepted: frequency_penalty, "),
    ({"tools": []}, "tools", "tools: []: accepted: List should have at least 1 item"),
    ({"n": 2}, "n", "n: 2: accepted: 1"),
    ({"model": "gpt"}, "model", "model: 'gpt': not served here; accepted: tiny"),
    ({"stop": ""}, "stop", "stop: '': accepted: up to 4 strings"),
    ({"messages": []}, "messages", "messages: []: accepted: "),
    ({"messages": [{"role": "cat", "content": ""}]}, "messages.0.role", "accepted: system, developer, user, assistant"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages.0.content.0.type", "accepted: {"),
    ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages", "the model takes none; accepted: text"),
]


@pytest.mark.parametrize(("change", "param", "message"), WRONG, ids=[param for _, param, _ in WRONG])
def test_a_wrong_request_is_answered_with_field_value_and_what_is_accepted(
    client: openai.OpenAI, change: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{"messages": HI, **FIXED, **change})
    body: Any = caught.value.body
    assert (caught.value.status_code, body["type"]) == (404 if param == "model" else 400, "invalid_request_error")
    assert body["param"] == param
    assert message in body["message"]


@pytest.mark.parametrize(
    ("path", "kind", "content", "status", "message"),
    [
        ("/chat/completions", "application/json", b"{", 400, "the body is not JSON"),
        ("/chat/completions", "text/plain", b"{}", 415, "Content-Type: 'text/plain': accepted: application/json"),
        ("/embeddings", "application/json", b"{}", 404, "POST /v1/embeddings: Not Found; accepted: "),
    ],
)
def test_what_is_no_request_is_answered_too(
    address: str, path: str, kind: str, content: bytes, status: int, message: str
) -> None:
    request = urllib.request.Request(f"{address}{path}", content, {"Content-Type": kind})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == status
    assert message in json.loads(caught.value.read())["error"]["message"]


def test_a_run_is_served_from_its_export_or_else_from_its_newest_checkpoint(tmp_path: Path) -> None:
    runs.write_rows(tmp_path / "train.jsonl", runs.SUMS)
    parts: dict[str, Any] = {"training": {"steps": 2}, "tensorboard": {"enabled": False}}
    runs.run(runs.job(tmp_path, "sums", parts))
    run = tmp_path / "runs" / "sums"

    def answer() -> tuple[str, tuple[int, ...]]:
        model, changed = load(str(run), None, 128), threading.Semaphore(0)
        answer = Answer(Request(list(b"2?"), 8, temperature=0.0), model.chat.tokenizer, changed.release)
        with Batches(model) as batches:
            batches.submit(answer)
            while not answer.is_done:
                assert changed.acquire(timeout=300)
        return model.name, answer.state.tokens

    exported = answer()
    shutil.rmtree(run / run_directory.EXPORT)
    assert exported == answer()
    assert exported[0] == "sums"


def test_ctrl_c_ends_the_server_at_once_and_a_used_port_is_named(address: str) -> None:
    port = address.split(":")[2].removesuffix("/v1")
    code, errors = runs.end(runs.command("serve", "random://tiny", "--port", port))
    assert code != 0
    assert f"127.0.0.1:{port}: " in errors
    assert "hint: --port 0 picks one" in errors
    assert "Traceback" not in errors
    server, own = served()
    client = openai.OpenAI(base_url=own, api_key="none", max_retries=0)
    stream = client.completions.create(model="tiny", prompt="a", max_tokens=4000, stream=True, temperature=2)
    next(iter(stream))
    server.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert server.wait(timeout=60) == 130
    assert time.monotonic() - started < 30  # of a machine that does much else; an answer takes longer
