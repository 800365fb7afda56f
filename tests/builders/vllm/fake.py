"""A stand-in for vLLM, as a server and as the package: it speaks the protocol, and our own model does the work.

What it knows of vLLM was read in the sources of 0.32.0: paths, fields, which answers come when. It is no vLLM: nothing
here says how fast, how exact or how sturdy the real one is.

Where `known` has a request's seed, it samples with the native engine's keys of that (draw, prompt's number), so a
rollout through it equals a native one token for token.
"""

import base64
import io
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
from tests.builders.peers.image_models import load_model

from posttrain_vllm.tensor_files import Expected, MappedTensor, TransferError, verified
from pttrainer.batch import Images
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, from_hf
from pttrainer.models.lora import adapters
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.weights.hf_names import Names, table
from pttrainer.rollout.engine import Draw
from pttrainer.rollout.native.token_sampling import row_keys, uniforms
from pttrainer.rollout.vllm.requests import seed_of

SAMPLING_FIELDS = {
    *("n", "seed", "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "stop_token_ids", "ignore_eos"),
    "skip_special_tokens",
}
REQUEST_FIELDS = SAMPLING_FIELDS | {"model", "prompt", "return_token_ids"}
TEACHER_FIELDS = {"model", "prompt", "prompt_logprobs", "max_tokens", "temperature", "add_special_tokens"}
FIELDS_WITH_IMAGES = {"model", "token_ids", "content_parts", "sampling_params", "return_token_ids"}
Processor = Callable[[list[int], list[Image.Image]], tuple[list[int], Images]]
"""A prompt with a mark for each picture, and the pictures -> all tokens, and what the tower reads."""
SLOTS = 128


class Sample(NamedTuple):
    """One completion, as vLLM would say it."""

    tokens: list[int]
    logps: list[float]
    reason: str


def known_seeds(seed: int, steps: int, prompts: int) -> dict[int, tuple[Draw, int]]:
    """Of a GRPO run without dynamic sampling, and of its evaluations."""
    drawn = [(Draw(seed, step), step * prompts + p) for step in range(steps) for p in range(prompts)]
    evaluated = [(Draw(0, 0), number) for number in range(64)]
    return {seed_of(draw, number): (draw, number) for draw, number in [*drawn, *evaluated]}


class Brain:
    """A model that answers. is_raw: log-probs before the temperature, vLLM's own default. is_deaf: weights that are
    read are thrown away."""

    def __init__(
        self,
        model: Model,
        params: Params,
        known: dict[int, tuple[Draw, int]] | None = None,
        processor: Processor | None = None,
    ) -> None:
        self.model, self.params, self.known, self.processor = model, params, known or {}, processor
        self.is_raw, self.is_deaf, self.is_cache_old = False, False, False
        self.loaded: list[Path] = []
        self.tensors: dict[str, np.ndarray] = {}
        """The checkpoint that the weight API has given it."""

    def load_tensors(self, mapped: Sequence[MappedTensor]) -> None:
        """`load_weights` of a whole checkpoint, or of some layers of one that follows it."""
        arrays = (np.frombuffer(one.content, np.float32).reshape(one.expected.shape) for one in mapped)
        self.tensors |= {one.expected.name: array for one, array in zip(mapped, arrays, strict=True)}
        if not self.is_deaf:
            self.params, self.is_cache_old = _tree(self.tensors, table(self.model.config)), True

    def reload(self, directory: Path) -> None:
        """`reload_weights`: in place, and the cache of prompts stays as it was."""
        if self.processor is None:
            config = from_hf(json.loads((directory / "config.json").read_text()))
            model, params = Model(config), _read(directory / "model.safetensors", table(config))
        else:
            model, params = load_model(directory)
        self.loaded.append(directory)
        if not self.is_deaf:
            self.model, self.params, self.is_cache_old = model, params, True

    def with_adapter(self, directory: Path) -> Self:
        """The model with a PEFT adapter beside its weights."""
        config = json.loads((directory / adapters.CONFIG_FILE).read_text())
        kinds = set(config["target_modules"])
        matrices = tuple(m for m in (*adapters.ATTENTION, *adapters.MLP) if f"{m}_proj" in kinds)
        model = replace(self.model, adapters=Adapters(config["r"], config["lora_alpha"], matrices))
        assert model.adapters is not None
        adapter_params = _read(directory / adapters.WEIGHTS_FILE, adapters.names(model.config, model.adapters))
        self.loaded.append(directory)
        return Brain(model, model.join_params(self.params, adapter_params), self.known)

    def complete(self, tokens: list[int], fields: dict[str, Any], images: Images | None = None) -> list[Sample]:
        """Samples as `SamplingParams` of these fields asks for them."""
        if self.is_cache_old:
            raise RuntimeError("keys and values of the old weights are still in the prefix cache")
        assert not set(fields) - SAMPLING_FIELDS, set(fields) - SAMPLING_FIELDS
        assert fields["n"] == 1 or fields["temperature"], "n must be 1 when using greedy sampling"
        assert fields["ignore_eos"]
        assert (fields["top_k"], fields["top_p"], fields["min_p"], fields["min_tokens"]) == (0, 1.0, 0.0, 0)
        draw, number = self.known.get(fields["seed"], (Draw(fields["seed"] % 2**31, 0), 0))
        return [self._sample(tokens, draw, number, g, fields, images) for g in range(fields["n"])]

    def score(self, tokens: list[int], temperature: float = 1.0, images: Images | None = None) -> list[float]:
        """Log-probs of all tokens but the first."""
        logps_TV = _log_softmax(self._logits(tokens, images)[: len(tokens) - 1] / temperature)
        return [float(logp) for logp in logps_TV[np.arange(len(tokens) - 1), tokens[1:]]]

    def likeliest(self, tokens: list[int], count: int) -> list[Any]:
        """`prompt_logprobs`: nothing for the first token, then what is likeliest in its place, and the token itself."""
        logps_TV = _log_softmax(self._logits(tokens, None)[: len(tokens) - 1])
        entries: list[Any] = [None]
        for logps_V, token in zip(logps_TV, tokens[1:], strict=True):
            order_V = np.argsort(-logps_V, kind="stable")
            rank_V = np.argsort(order_V) + 1
            listed = dict.fromkeys([token, *order_V[:count].tolist()])  # the token first, as vLLM has it
            entries.append(
                {str(i): {"logprob": float(logps_V[i]), "rank": int(rank_V[i]), "decoded_token": "?"} for i in listed}
            )
        return entries

    def _sample(
        self, prompt: list[int], draw: Draw, number: int, g: int, fields: dict[str, Any], images: Images | None
    ) -> Sample:
        key, temperature = row_keys(draw.seed, draw.step, jnp.array([number]), jnp.array([g])), fields["temperature"]
        uniform_T = _uniforms(key, fields["max_tokens"])
        tokens, stop = list(prompt), "length"
        for uniform in uniform_T:
            logits_V = self._logits(tokens, images)[len(tokens) - 1]
            upto_V = np.cumsum(np.exp(_log_softmax(logits_V / (temperature or 1.0))))
            tokens.append(int(np.argmax(upto_V > uniform * upto_V[-1]) if temperature else np.argmax(logits_V)))
            text = byte_tokenizer().decode(tokens[len(prompt) :])
            if tokens[-1] in fields["stop_token_ids"] or any(string in text for string in fields["stop"]):
                stop = "stop"
                break
        heat = 1.0 if self.is_raw else temperature or 1.0
        return Sample(tokens[len(prompt) :], self.score(tokens, heat, images)[len(prompt) - 1 :], stop)

    def _logits(self, tokens: list[int], images: Images | None) -> np.ndarray:
        """What is predicted after each token, by the training forward over all of them: slow, and one program."""
        ids_T = np.zeros(SLOTS, np.int32)
        ids_T[: len(tokens)] = tokens
        return np.asarray(_forward(self.model)(self.params, ids_T, images)).astype(np.float64)


def _read(file: Path, names: Names) -> Params:
    """Our tree of a safetensors file in float32."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, end = (start + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(content[first:end], np.float32).reshape(entry["shape"])
    return _tree(tensors, names)


def _tree(tensors: dict[str, np.ndarray], names: Names) -> Params:
    """Our tree of a checkpoint's tensors, without compiling anything."""
    tree: Params = {}
    for path, stored in names.items():
        layers = (stored.name.format(i=i) for i in range(len(tensors)))
        matrices = [tensors[name] for name in (layers if stored.stacked else [stored.name]) if name in tensors]
        turned = [x.T if stored.transposed else x for x in matrices]
        place = tree
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = jnp.asarray(np.stack(turned) if stored.stacked else turned[0])
    return tree


@lru_cache
def _forward(model: Model) -> Callable[..., jax.Array]:
    def logits(params: Params, ids_T: jax.Array, images: Images | None) -> jax.Array:
        rows = ids_T[None], jnp.arange(SLOTS)[None], jnp.ones((1, SLOTS), jnp.int32)
        hidden = model.forward(params, *rows, images=images)
        return model.logits(params, hidden)[0]

    return jax.jit(logits)


@partial(jax.jit, static_argnums=1)
def _uniform_numbers(key_1: jax.Array, count: int) -> jax.Array:
    return jax.vmap(lambda position: uniforms(key_1, position)[0])(jnp.arange(count))


def _uniforms(key_1: jax.Array, count: int) -> np.ndarray:
    return np.asarray(_uniform_numbers(key_1, SLOTS))[:count]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logps: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logps


class FakeServer:
    """`vllm serve` on a port of this machine. trouble(path, calls so far) may give a status, or `drop` (the connection
    breaks), `half` (the answer does) or `hang`, in place of an answer."""

    def __init__(
        self, brain: Brain, *, dev_mode: bool = True, lora: bool = True, key: str | None = None, port: int = 0
    ) -> None:
        self.brain, self.dev_mode, self.lora, self.key, self.scale_out = brain, dev_mode, lora, key, True
        self.served: dict[str, Brain] = {"tiny": brain}
        self.weight_api: FakeWeightApi | None = None
        self.trouble: Callable[[str, int], int | str | None] = lambda path, calls: None
        self.max_model_len, self.max_logprobs = SLOTS, 20
        self.requests: list[tuple[str, Any]] = []
        self.held = threading.Event()
        self._one = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that gave up
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.held.set()
        self._http.shutdown()
        self._http.server_close()

    def bodies(self, path: str) -> list[Any]:
        """What was asked of a path."""
        return [body for requested, body in self.requests if requested == path]

    def answer(self, path: str, body: Any, key: str | None) -> tuple[int, Any]:
        """Status and JSON."""
        if self.key is not None and key != f"Bearer {self.key}" and path.startswith("/v1"):
            return 401, {"error": "Unauthorized"}
        routes: dict[str, Callable[[Any], tuple[int, Any]]] = {
            "/health": lambda _: (200, None),
            "/v1/models": lambda _: (200, self._models()),
            "/v1/completions": self._complete,
            "/tokenize": self._tokenize,
        }
        if self.brain.processor is not None and self.scale_out:
            routes |= {"/inference/v1/generate": self._complete_with_images}
        if self.dev_mode:
            routes |= {"/collective_rpc": self._rpc, "/reset_prefix_cache": self._reset}
            routes |= _without_backend() if self.weight_api is None else self.weight_api.routes
        if self.lora:
            routes |= {"/v1/load_lora_adapter": self._load, "/v1/unload_lora_adapter": self._unload}
        if path not in routes:
            return 404, {"detail": "Not Found"}
        with self._one:
            return routes[path](body)

    def _models(self) -> Any:
        base, *rest = self.served  # an adapter's card says no length
        cards = [(base, self.max_model_len, None), *((name, None, base) for name in rest)]
        return {
            "object": "list",
            "data": [{"id": name, "max_model_len": most, "parent": parent} for name, most, parent in cards],
        }

    def _rpc(self, body: Any) -> tuple[int, Any]:
        assert body["method"] == "reload_weights"
        assert set(body["kwargs"]) == {"weights_path"}
        self.brain.reload(Path(body["kwargs"]["weights_path"]))
        return 200, {"results": [None]}

    def _reset(self, _: Any) -> tuple[int, Any]:
        self.brain.is_cache_old = False
        return 200, {"success": True}

    def _load(self, body: Any) -> tuple[int, Any]:
        directory = Path(body["lora_path"])
        if body["lora_name"] in self.served:
            return 400, _error(f"The lora adapter '{body['lora_name']}' has already been loaded.", 400)
        if not (directory / adapters.CONFIG_FILE).is_file():
            return 404, _error(f"Loading lora {body['lora_name']} failed: No adapter found for {directory}", 404)
        self.served[body["lora_name"]] = self.brain.with_adapter(directory)
        return 200, f"Success: LoRA adapter '{body['lora_name']}' added successfully."

    def _unload(self, body: Any) -> tuple[int, Any]:
        if self.served.pop(body["lora_name"], None) is None:
            return 404, _error(f"The lora adapter '{body['lora_name']}' cannot be found.", 404)
        return 200, f"Success: LoRA adapter '{body['lora_name']}' removed successfully."

    def _tokenize(self, body: Any) -> tuple[int, Any]:
        assert body["add_special_tokens"] is False
        tokens = byte_tokenizer().encode(body["prompt"])
        return 200, {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens}

    def _teach(self, body: Any, brain: Brain) -> tuple[int, Any]:
        count = body["prompt_logprobs"]
        assert set(body) == TEACHER_FIELDS, set(body) ^ TEACHER_FIELDS
        assert (body["max_tokens"], body["add_special_tokens"]) == (1, False)
        if count > self.max_logprobs:
            why = f"Requested prompt logprobs of {count}, which is greater than max allowed: {self.max_logprobs}"
            return 400, _error(why, 400)
        choice = {"index": 0, "text": "?", "finish_reason": "length", "logprobs": None}
        scores = brain.likeliest(body["prompt"], count)
        return 200, {"id": "cmpl-1", "model": body["model"], "choices": [{**choice, "prompt_logprobs": scores}]}

    def _complete(self, body: Any) -> tuple[int, Any]:
        brain = self.served.get(body["model"])
        if brain is None:
            return 404, _error(f"The model `{body['model']}` does not exist.", 404)
        if len(body["prompt"]) + body["max_tokens"] > self.max_model_len:
            return 400, _error(f"This model's maximum context length is {self.max_model_len} tokens.", 400)
        if body.get("prompt_logprobs"):
            return self._teach(body, brain)
        assert not set(body) - REQUEST_FIELDS, set(body) - REQUEST_FIELDS
        fields = {name: value for name, value in body.items() if name in SAMPLING_FIELDS}
        samples = brain.complete(body["prompt"], fields)
        scores = None
        if "prompt_logprobs" in body:
            pairs = zip(body["prompt"][1:], brain.score(body["prompt"]), strict=True)
            scores = [None, *({str(token): {"logprob": logp, "rank": 1, "decoded_token": ""}} for token, logp in pairs)]
        choices = [_choice(index, sample, body, scores) for index, sample in enumerate(samples)]
        return 200, {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": choices}

    def _complete_with_images(self, body: Any) -> tuple[int, Any]:
        assert set(body) == FIELDS_WITH_IMAGES, set(body) ^ FIELDS_WITH_IMAGES
        assert all(part["type"] == "image_url" for part in body["content_parts"])
        assert self.brain.processor is not None
        urls = [part["url"].removeprefix("data:image/png;base64,") for part in body["content_parts"]]
        pictures = [Image.open(io.BytesIO(base64.b64decode(url, validate=True))) for url in urls]
        tokens, images = self.brain.processor(body["token_ids"], pictures)
        brain, fields = self.served[body["model"]], body["sampling_params"]
        samples, scores = brain.complete(tokens, fields, images), None
        if "prompt_logprobs" in fields:
            pairs = zip(tokens[1:], brain.score(tokens, images=images), strict=True)
            scores = [None, *({str(token): {"logprob": logp, "rank": 1, "decoded_token": ""}} for token, logp in pairs)]
        choices = [_choice_of_tokens(index, sample) for index, sample in enumerate(samples)]
        return 200, {"request_id": "1", "choices": choices, "prompt_logprobs": scores, "prompt_token_ids": tokens}


class FakeWeightApi:
    """The weight API of a server with our backend: its files are found and verified by the backend's own module.

    calls: the paths in order. A call that the worker refuses is an error 500 with the reason, as in vLLM.
    """

    def __init__(self, brain: Brain) -> None:
        self.brain, self.version, self.is_paused, self.is_active = brain, "default", False, False
        self.staged: list[MappedTensor] = []
        self.updates: list[list[str]] = []
        self.routes: dict[str, Callable[[Any], tuple[int, Any]]] = {
            "/init_weight_transfer_engine": self._init,
            "/weight_info": lambda _: (200, {"weight_version": self.version}),
            "/pause?mode=wait": self._pause,
            "/start_weight_update": self._start,
            "/update_weights": self._update,
            "/finish_weight_update": self._finish,
            "/resume": self._resume,
        }

    def _init(self, body: Any) -> tuple[int, Any]:
        self.staged = []
        if not Path(body["init_info"]["directory"]).is_dir():
            return _refusal(TransferError("the server sees no directory"))
        return 200, {"message": "Weight transfer initialized"}

    def _pause(self, _: Any) -> tuple[int, Any]:
        self.is_paused, self.brain.is_cache_old = True, False
        return 200, {"status": "paused"}

    def _start(self, _: Any) -> tuple[int, Any]:
        if self.is_active:
            return _refusal(RuntimeError("start_weight_update called while a weight update is already active."))
        self.is_active = True
        return 200, {"message": "Weight update started"}

    def _update(self, body: Any) -> tuple[int, Any]:
        assert self.is_active
        assert self.is_paused
        info = body["update_info"]
        columns = (info[name] for name in ("names", "dtype_names", "shapes", "files", "sha256"))
        try:
            self.staged = verified(info["directory"], [Expected(*row) for row in zip(*columns, strict=True)])
        except TransferError as error:
            self.is_active = False
            return _refusal(error)
        self.updates.append(info["names"])
        return 200, {"message": "Weights updated"}

    def _finish(self, body: Any) -> tuple[int, Any]:
        assert self.is_active
        staged, self.staged, self.is_active = self.staged, [], False
        if staged:
            self.brain.load_tensors(staged)
            self.brain.is_cache_old = False  # no request has filled it since the pause dropped it
        self.version = body.get("weight_version", self.version)
        return 200, {"message": "Weight update finished"}

    def _resume(self, _: Any) -> tuple[int, Any]:
        self.is_paused = False
        return 200, {"status": "resumed"}


def _without_backend() -> dict[str, Callable[[Any], tuple[int, Any]]]:
    reason = RuntimeError(
        "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
    )
    return {"/init_weight_transfer_engine": lambda _: _refusal(reason)}


def _refusal(error: Exception) -> tuple[int, Any]:
    return 500, _error(f"Call to collective_rpc method failed: {error}", 500)


def _choice_of_tokens(index: int, sample: Sample) -> Any:
    pairs = zip(sample.tokens, sample.logps, strict=True)
    content = [{"token": f"token_id:{token}", "token_id": token, "logprob": logp} for token, logp in pairs]
    return {
        "index": index, "token_ids": sample.tokens, "finish_reason": sample.reason, "logprobs": {"content": content},
    }  # fmt: skip


def _choice(index: int, sample: Sample, body: Any, scores: Any) -> Any:
    return {
        "index": index,
        "text": byte_tokenizer().decode(sample.tokens),
        "finish_reason": sample.reason,
        "stop_reason": None,
        "logprobs": {
            "text_offset": [0] * len(sample.tokens),
            "token_logprobs": sample.logps,
            "tokens": [""] * len(sample.tokens),
            "top_logprobs": [{} for _ in sample.tokens],
        },
        "token_ids": sample.tokens if body.get("return_token_ids") else None,
        "prompt_logprobs": scores,
        "prompt_token_ids": body["prompt"] if body.get("return_token_ids") else None,
    }


def _error(message: str, code: int) -> Any:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": code}}


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve(None)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._serve(json.loads(content) if content else None)

        def _serve(self, body: Any) -> None:
            fake.requests.append((self.path, body))
            trouble = fake.trouble(self.path, len(fake.bodies(self.path)))
            if trouble == "hang":
                fake.held.wait(30)
            if trouble in ("drop", "hang"):
                self.close_connection = True
                return
            if isinstance(trouble, int):
                status, document = trouble, _error("in trouble", trouble)
            else:
                try:
                    status, document = fake.answer(self.path, body, self.headers.get("Authorization"))
                except Exception as error:
                    status, document = 500, _error(f"{type(error).__name__}: {error}", 500)
            words = "" if document is None else document if isinstance(document, str) else json.dumps(document)
            text = words.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text[: len(text) // 2] if trouble == "half" else text)

        def log_message(self, *_: Any) -> None: ...

    return Handler


class FakeLLM:
    """The package's `LLM`, as far as it is used."""

    brain: Brain
    """Set by a test: what the first directory is read into."""
    made: list[dict[str, Any]] = []
    trouble: Callable[[int], Exception | None]
    """What the call of `generate` raises in place of an answer; told how many there were so far."""
    calls: int

    def __init__(self, model: str, **how: Any) -> None:
        assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
        assert set(how) == {"max_model_len", "dtype", "gpu_memory_utilization", "logprobs_mode"}
        FakeLLM.made.append(how)
        self.brain.is_raw = {"raw_logprobs": True, "processed_logprobs": False}[how["logprobs_mode"]]
        self.brain.reload(Path(model))
        self.brain.is_cache_old = False

    def generate(self, prompts: Iterable[Any], sampling_params: Iterable[Any], *, use_tqdm: bool) -> list[Any]:
        FakeLLM.calls += 1
        trouble = FakeLLM.trouble(FakeLLM.calls)
        if trouble is not None:
            raise trouble
        pairs = zip(prompts, sampling_params, strict=True)
        return [self._output(prompt, vars(params)) for prompt, params in pairs]

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> list[Any]:
        assert method == "reload_weights"
        self.brain.reload(Path(kwargs["weights_path"]))
        return [None]

    def reset_prefix_cache(self) -> bool:
        self.brain.is_cache_old = False
        return True

    def _output(self, prompt: dict[str, Any], fields: dict[str, Any]) -> Any:
        tokens, images = prompt["prompt_token_ids"], None
        if "multi_modal_data" in prompt:
            assert self.brain.processor is not None
            tokens, images = self.brain.processor(tokens, prompt["multi_modal_data"]["image"])
        samples = self.brain.complete(tokens, fields, images)
        scores = None
        if "prompt_logprobs" in fields:
            pairs = zip(tokens[1:], self.brain.score(tokens, images=images), strict=True)
            scores = [None, *({token: SimpleNamespace(logprob=logp)} for token, logp in pairs)]
        outputs = [
            SimpleNamespace(
                index=index,
                token_ids=sample.tokens,
                logprobs=[
                    {token: SimpleNamespace(logprob=logp)}
                    for token, logp in zip(sample.tokens, sample.logps, strict=True)
                ],
                finish_reason=sample.reason,
            )
            for index, sample in enumerate(samples)
        ]
        return SimpleNamespace(outputs=outputs, prompt_logprobs=scores, prompt_token_ids=tokens)


def package(brain: Brain) -> Any:
    """What `import vllm` gives."""
    FakeLLM.brain, FakeLLM.made, FakeLLM.calls, FakeLLM.trouble = brain, [], 0, lambda calls: None
    return SimpleNamespace(LLM=FakeLLM, SamplingParams=SimpleNamespace, TokensPrompt=dict)
