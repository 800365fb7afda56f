"""Programs that are compiled before an evaluation: those that it calls, whatever its answers, and no others."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, preset
from pttrainer.rollout.engine import Draw, Prompt, Sampling
from pttrainer.rollout.evaluation.early_programs import EarlyPrograms
from pttrainer.rollout.native.decoding_weights import Call
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import Speculation
from pttrainer.runtime.distributed import sharding

GREEDY = Sampling(max_new_tokens=48, max_length=96, greedy=True)
DRAWN = dataclasses.replace(GREEDY, greedy=False)
OFTEN_ENDED = dataclasses.replace(byte_tokenizer(), eos_ids=tuple(range(236, 264)))
"""Many tokens end an answer, so that answers have many lengths."""
PROMPTS = [Prompt([256, *f"{n}?".encode()], n) for n in range(40)]


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The programs that were compiled, by name; nothing was before the test."""
    jax.clear_caches()
    names: list[str] = []

    def record(event: str, seconds: float, **facts: Any) -> None:
        if event.endswith("backend_compile_duration"):
            names.append(str(facts["fun_name"]))

    jax.monitoring.register_event_duration_secs_listener(record)
    yield names
    jax.monitoring.unregister_event_duration_listener(record)


def weights(model: Model, devices: int) -> tuple[Params, Mesh]:
    """Random weights on so many devices, which say something."""
    mesh = sharding.make_mesh((devices,), jax.devices()[:devices])
    where = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    params = jax.jit(model.init, out_shardings=where)(jax.random.key(1))
    return {**params, "embedding": params["embedding"] * 8.0}, mesh


def shapes(params: Params) -> Params:
    """The weights without their values."""
    made: Params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
    return made


def early(foresee: Callable[[Params, Call], None], *, is_first: bool = False) -> EarlyPrograms:
    return EarlyPrograms(foresee, threading.Lock(), is_first=is_first)


@pytest.mark.parametrize(
    ("samples", "sampling", "rows", "devices", "speculation"),
    [
        (1, GREEDY, None, 1, None),
        (1, GREEDY, None, 8, None),
        (1, GREEDY, 16, 8, None),
        (2, DRAWN, 32, 1, None),
        (2, dataclasses.replace(DRAWN, stop=("a",)), None, 1, None),
        (1, GREEDY, 32, 1, Speculation(Ngram(tokens=3, longest=3))),
    ],
    ids=["one device", "eight", "rows taken over on eight", "rows taken over", "stop strings", "n-grams"],
)
def test_nothing_is_compiled_while_answers_are_sampled(
    samples: int,
    sampling: Sampling,
    rows: int | None,
    devices: int,
    speculation: Speculation | None,
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pttrainer.rollout.native.buckets.FIRST_SLOTS", 16)
    model = Model(preset("tiny"))
    params, mesh = weights(model, devices)
    engine = NativeEngine(
        model, OFTEN_ENDED, partial(sharding.put, mesh), mesh=mesh, rows=rows, speculation=speculation
    )
    foresee = partial(engine.foresee, prompts=PROMPTS, samples=samples, sampling=sampling, all_sizes=True)
    with jax.set_mesh(mesh):
        early(lambda params, call: foresee(params, call=call)).lower(shapes(params)).compile()
        assert {"jit(prefill)", "jit(advance)", "jit(grow)"} <= {*compiled}
        compiled.clear()
        done = engine.generate(params, PROMPTS, samples, sampling, Draw(0, 0))
    assert compiled == []
    assert len({*done.lengths_N}) > 5


def test_what_an_evaluation_begins_with_is_left_to_it_once_it_has_begun(compiled: list[str]) -> None:
    evaluating, function = threading.Lock(), jax.jit(lambda x: x + 1)
    shape = jax.ShapeDtypeStruct((4,), "float32", sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))

    def foresee(params: Params, call: Call) -> None:
        call(function, shape)

    first = EarlyPrograms(foresee, evaluating, is_first=True).lower({})
    with evaluating:
        first.compile()
    assert compiled == []
    first.compile()
    assert len(compiled) == 1


def test_other_programs_are_compiled_once_it_has_ended(compiled: list[str]) -> None:
    evaluating, function = threading.Lock(), jax.jit(lambda x: x - 1)
    shape = jax.ShapeDtypeStruct((4,), "float32", sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    later = EarlyPrograms(lambda params, call: call(function, shape), evaluating, is_first=False).lower({})
    thread = threading.Thread(target=later.compile)
    with evaluating:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert compiled == []
    thread.join()
    assert len(compiled) == 1
