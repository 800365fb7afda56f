"""Sends weights to samplers: the changed part to those that hold the version before, everything to all others.

`deliver` compares the new weights with the last version, on disk (`sent_versions`), a chunk at a time, and sends what
differs to every sampler that has that version. A sampler that does not (it is new, or was restarted, or its checksums
differ) gets a version as a whole when it is to sample with it (`ensure`), from disk: the trainer may be further then.
Every version ends with checksums of all weights, as the trainer's devices computed them, and the sampler's devices must
compute the same.
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ptapi import run_directory
from pttrainer.errors import TransferError
from pttrainer.models import Params
from pttrainer.rollout.disaggregated.separate.changed_part import FULL, changed
from pttrainer.rollout.disaggregated.separate.client import Conflict, SamplerAway, SamplerClient, entries
from pttrainer.rollout.disaggregated.separate.sent_versions import CutWeights, NewestLeaves, SentVersions
from pttrainer.rollout.disaggregated.weight_sync import Key
from pttrainer.rollout.native.buckets import CHUNK_BYTES


class Version(NamedTuple):
    """Weights that samplers can be given. digest: of all checksums, so equal weights have equal digests."""

    number: int
    name: str
    digest: str
    sums: dict[Key, int]


class WeightSender:
    """Delivers versions to `clients`. copies: versions that are in use at once."""

    def __init__(self, cut: CutWeights, clients: Sequence[SamplerClient], copies: int) -> None:
        self._cut, self._clients, self._copies = cut, clients, copies
        self._attempt = secrets.token_hex(4)
        self._sent: SentVersions | None = None
        self._versions: list[Version] = []
        self._static_sums: dict[Key, int] = {}
        self._newest = NewestLeaves()
        self._facts: dict[str, float] = {}
        self._lock, self._counting = threading.RLock(), threading.Lock()
        self._threads = ThreadPoolExecutor(len(clients), "weights")

    def deliver(self, params: Params) -> Version:
        """Store these weights as the newest version, and send samplers what changed."""
        with self._lock:
            if self._newest.replace(params):
                began = time.monotonic()
                self._deliver(params)
                self._add({run_directory.WEIGHT_SECONDS: time.monotonic() - began})
            return self._versions[-1]

    def ensure(self, client: SamplerClient, version: Version) -> None:
        """Send a version as a whole, unless the sampler has it. Raises SamplerAway or TransferError."""
        with self._lock:
            if version.name in client.held:
                return
            began = time.monotonic()
            for attempt in range(2):
                try:
                    self._send_whole(client, version, static=attempt > 0 or not client.has_static)
                    break
                except Conflict as conflict:
                    client.lost()
                    if attempt > 0:
                        raise TransferError(
                            f"sampler {client.name}: weights sent twice did not arrive: {conflict}; hint: a device or "
                            "the network is faulty; restart the run on other machines"
                        ) from conflict
            self._add({run_directory.WEIGHT_SECONDS: time.monotonic() - began})

    def facts(self) -> dict[str, float]:
        """Return bytes, seconds and the changed share since the last call."""
        with self._lock, self._counting:
            facts, self._facts = self._facts, {}
        return facts

    def close(self) -> None:
        """Remove what is on disk."""
        with self._lock:
            self._threads.shutdown(wait=False, cancel_futures=True)
            if self._sent is not None:
                self._sent.close()

    def _deliver(self, params: Params) -> None:
        if self._sent is None:
            self._sent = SentVersions(self._cut.shapes, list(self._cut.static), self._copies)
            for arrays, of_chunk in self._cut.parts(params, static=True):
                self._static_sums |= of_chunk
                for key, value in arrays.items():
                    self._sent.write(key, 0, value)
        sent, number = self._sent, len(self._versions)
        base = self._versions[-1] if self._versions else None
        name = f"{self._attempt}-{number}"
        receivers = self._begun(name, base)
        sums: dict[Key, int] = {}
        counts = {True: 0, False: 0}
        for arrays, of_chunk in self._cut.parts(params, static=False):
            sums |= of_chunk
            parts = []
            for key, value in arrays.items():
                if base is not None:
                    part = changed(sent.read(key, base.number), value)
                    counts[True] += part.changed
                    counts[False] += value.size
                    if part.changed:
                        parts.append((key, part.form, part.arrays))
                sent.write(key, number, value)
            receivers = self._to_each(receivers, lambda client, p=parts: self._send(client, p, name))
        whole = sums | self._static_sums
        self._versions.append(Version(number, name, _digest(whole), whole))
        self._to_each(receivers, lambda client: client.finish(name, whole))
        if counts[False]:
            self._add({run_directory.WEIGHT_CHANGES: counts[True] / counts[False]})

    def _begun(self, name: str, base: Version | None) -> list[SamplerClient]:
        """Announce a version to the samplers that have the one before; return them."""
        receivers = [client for client in self._clients if base is not None and client.newest == base.name]
        keep = self._kept(len(self._versions))
        return self._to_each(receivers, lambda client: client.begin(name, base.name if base else None, keep))

    def _kept(self, newest: int) -> list[str]:
        """Return the names of the versions that may be sampled with while this one is the newest."""
        return [f"{self._attempt}-{number}" for number in range(max(0, newest - self._copies + 1), newest + 1)]

    def _to_each(self, clients: Sequence[SamplerClient], send: Callable[..., None]) -> list[SamplerClient]:
        """Send to all at once; return those that took it. The others get the version as a whole, later."""

        def took(client: SamplerClient) -> bool:
            try:
                send(client)
            except (SamplerAway, Conflict):
                client.lost()
                return False
            return True

        return [client for client, ok in zip(clients, self._threads.map(took, clients), strict=True) if ok]

    def _send(self, client: SamplerClient, parts: Sequence[tuple[Key, str, Sequence[np.ndarray]]], name: str) -> None:
        if parts:
            client.tensors(entries(parts, name))
            self._add({run_directory.WEIGHT_BYTES: float(sum(x.nbytes for _, _, arrays in parts for x in arrays))})

    def _send_whole(self, client: SamplerClient, version: Version, *, static: bool) -> None:
        client.begin(version.name, None, self._kept(self._versions[-1].number))
        for parts in self._stored(version, static=static):
            self._send(client, parts, version.name)
        client.finish(version.name, version.sums)

    def _stored(self, version: Version, *, static: bool) -> Iterator[list[tuple[Key, str, list[np.ndarray]]]]:
        """Yield all weights of a version, some at a time."""
        assert self._sent is not None
        parts: list[tuple[Key, str, list[np.ndarray]]] = []
        held = 0
        for key in [*(self._cut.static if static else ()), *self._cut.moving]:
            value = self._sent.read(key, version.number)
            if parts and held + value.nbytes > CHUNK_BYTES:
                yield parts
                parts, held = [], 0
            parts.append((key, FULL, [value]))
            held += value.nbytes
        yield parts

    def _add(self, facts: dict[str, float]) -> None:
        """Add to the facts, from any thread; the share is that of the last version."""
        with self._counting:
            for name, value in facts.items():
                before = 0.0 if name == run_directory.WEIGHT_CHANGES else self._facts.get(name, 0.0)
                self._facts[name] = before + value


def _digest(sums: dict[Key, int]) -> str:
    text = repr(sorted(sums.items())).encode()
    return hashlib.sha256(text).hexdigest()
