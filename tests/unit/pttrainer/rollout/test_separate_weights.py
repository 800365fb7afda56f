"""What separate samplers are sent: changed parts equal to the bit, and weights that must match their checksums."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tests.builders.peers.models import CASES

from pttrainer.models import Model, from_hf
from pttrainer.models.decoding.cut_matrix import Cut, CutMatrix, cut
from pttrainer.rollout.disaggregated.separate import changed_part, messages
from pttrainer.rollout.disaggregated.separate.changed_part import BLOCKS, FULL, GAPS
from pttrainer.rollout.disaggregated.separate.held_weights import HeldWeights, ShardSums, VersionMissing
from pttrainer.rollout.disaggregated.separate.messages import MessageError
from pttrainer.rollout.disaggregated.separate.prefix_routing import PrefixRouting
from pttrainer.rollout.disaggregated.separate.sent_versions import CutWeights
from pttrainer.rollout.disaggregated.weight_sync import Key
from pttrainer.rollout.engine import Draw, Prompt, Sampling
from pttrainer.rollout.native import decoding_weights
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.checksum import digest

SIZE = 70_000
CPU = ""
"""The generation of chips that are in no table."""


def weight(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(SIZE // 100, 100)).astype(jnp.bfloat16)


@pytest.mark.parametrize(("share", "form"), [(0.001, GAPS), (0.1, BLOCKS), (0.9, FULL), (0.0, GAPS)])
def test_the_changed_part_is_sent_in_the_smallest_form_and_applied_to_the_bit(share: float, form: str) -> None:
    old, new = weight(0), weight(0)
    places = np.random.default_rng(1).permutation(SIZE)[: int(share * SIZE)]
    new.reshape(-1)[places] = weight(2).reshape(-1)[places]
    part = changed_part.changed(old, new)
    assert part.form == form
    assert part.changed == np.count_nonzero(changed_part.bits(old) != changed_part.bits(new))
    assert part.nbytes <= new.nbytes
    body = b"".join(messages.encode({}, part.arrays))
    applied = changed_part.applied(old, part.form, list(messages.decode(body).arrays))
    assert applied.tobytes() == new.tobytes()


def test_one_far_change_a_sign_of_zero_and_nan_are_changes() -> None:
    old = np.zeros(SIZE, np.float32)
    new = old.copy()
    new[[0, SIZE - 1]] = -0.0, np.nan
    part = changed_part.changed(old, new)
    assert (part.form, part.changed) == (GAPS, 2)
    assert changed_part.applied(old, part.form, part.arrays).tobytes() == new.tobytes()


@pytest.mark.parametrize("form", [FULL, GAPS, BLOCKS])
def test_a_part_that_does_not_fit_is_refused(form: str) -> None:
    arrays = {
        FULL: [np.zeros(3, np.float32)],
        GAPS: [np.array([9], np.uint16), np.zeros(1, np.uint32)],
        BLOCKS: [np.array([1], np.uint16), np.array([9], np.uint8), np.zeros(1, np.uint32)],
    }
    with pytest.raises(MessageError):
        changed_part.applied(np.zeros(4, np.float32), form, arrays[form])


def test_a_request_arrives_as_it_was_and_a_damaged_one_is_refused() -> None:
    sampling = Sampling(max_new_tokens=8, max_length=32, stop=("a", "b"), temperature=0.7)
    request = messages.Request("v", [Prompt([1, 2, 3], 7), Prompt([], 2**40)], 4, sampling, Draw(3, 5))
    body = b"".join(messages.encode_request(request))
    assert messages.decode_request(messages.decode(body)) == request
    for damaged in (body[:-1], body[:9], b"GET " + body[4:], b""):
        with pytest.raises(MessageError):
            messages.decode(damaged)


def test_prompts_go_where_their_beginning_is_and_no_sampler_has_more_than_its_share() -> None:
    routing = PrefixRouting(3, keeps_prompts=True)
    prompts = [Prompt([n] * 200, n) for n in range(12)]
    first = routing.assign(prompts)
    assert sorted(place for home in first for place in home) == list(range(12))
    assert [len(home) for home in first] == [4, 4, 4]
    assert PrefixRouting(3, keeps_prompts=False).assign(prompts) == first
    later = [Prompt([*prompt.tokens, 99], prompt.number) for prompt in prompts]
    assert [sorted(home) for home in routing.assign(later)] == [sorted(home) for home in first]
    on_one = routing.assign([Prompt([0] * 200, n) for n in range(12)])
    assert max(map(len, on_one)) <= 5


@pytest.mark.parametrize("part_bytes", [None, 2**17], ids=["whole matrices", "matrices in parts"])
def test_weights_that_differ_from_their_sums_do_not_sample_until_they_are_sent_again(
    part_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part_bytes is not None:
        monkeypatch.setitem(decoding_weights.PART_BYTES, CPU, part_bytes)
    model = Model(dataclasses.replace(from_hf(CASES["qwen-3"]).first_layers(1), d_model=256, d_ff=512))
    mesh = sharding.make_mesh((1, 1, 2), jax.devices()[:2])
    held, sent = HeldWeights(model, mesh), CutWeights(model, mesh)
    where = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    params = jax.device_put(jax.jit(model.init)(jax.random.key(0)), where)
    arrays, sums = {}, {}
    for some, of_them in sent.parts(params, static=False):
        arrays |= some
        sums |= of_them
    damaged = ("layers.mlp.up", 0)

    def send(version: str, base: str | None, changed: dict[Key, np.ndarray]) -> None:
        held.begin(version, base, [version])
        for key, value in changed.items():
            held.put(version, key, FULL, [value])
        held.finish(version, sums)

    with pytest.raises(VersionMissing, match="differ"):
        send("0", None, arrays | {damaged: arrays[damaged][::-1]})
    assert (held.newest, held.versions) == (None, [])
    with pytest.raises(VersionMissing, match="not the newest"):
        send("1", "0", {})
    send("1", None, arrays)
    assert held.versions == ["1"]
    up = held.params("1")["layers"][0]["mlp"]["up"]
    assert isinstance(up, CutMatrix) == (part_bytes is not None)
    np.testing.assert_array_equal(up.joined() if isinstance(up, CutMatrix) else up, arrays[damaged])
    with pytest.raises(VersionMissing, match="differ"):
        send("2", "1", {damaged: arrays[damaged][::-1]})
    with pytest.raises(VersionMissing, match="not held"):
        held.params("2")


def test_shards_add_up_to_the_checksum_of_the_whole_and_copies_count_once() -> None:
    mesh = sharding.make_mesh((2, 1, 2), jax.devices()[:4])
    whole = [weight(3), weight(4)[:6, :8].astype(np.float32), np.arange(10, dtype=np.uint8)]
    specs = [PartitionSpec(None, "tensor"), PartitionSpec("data", "tensor"), PartitionSpec()]
    arrays = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(whole, specs, strict=True)]
    matrix = weight(5)[:4, :12]
    parts = jax.tree.map(
        lambda part: jax.device_put(part, NamedSharding(mesh, PartitionSpec(None, "tensor"))), cut(matrix, Cut(3, 2))
    )
    whole.append(matrix)
    sums = ShardSums(mesh, [x.shape for x in whole], [None, None, None, Cut(3, 2)])([*arrays, parts])
    assert sums.tolist() == [int(digest(jnp.asarray(x))) for x in whole]
