"""vLLM in pods of its own (`rollout.placement: separate`), as the trainer reaches it.

Prompts are shared out and drawn again as with native samplers (`disaggregated.separate`), each sampler is a server
(`http_server`), and new weights are files on a volume that trainer and samplers mount (`weight_files`). A server reads
a version when it is to sample with it, and then must prove that it has it (`version_check`). Each pod serves the model
under a name of its own, and each version of an adapter has another: one that was started again refuses the old name,
so no sample comes from other weights than were asked for.

What a lost sampler has finished is kept, and the one that takes over asks for the rest alone. Of several processes that
train the leader alone writes versions and speaks to the servers, as with native samplers (`shared_draws`).
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

import numpy as np

from ptapi import run_directory
from ptapi.spec import Vllm as VllmSpec
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.disaggregated.separate.client import TOKEN_ENV, Conflict, SamplerAway, SamplerFailed
from pttrainer.rollout.disaggregated.separate.messages import Request
from pttrainer.rollout.disaggregated.separate.prefix_routing import PrefixRouting
from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine, sampler_addresses, versions_in_use
from pttrainer.rollout.disaggregated.separate.sampler_pods import SamplerPods
from pttrainer.rollout.disaggregated.separate.sent_versions import NewestLeaves
from pttrainer.rollout.disaggregated.separate.shared_draws import FollowersPods, GatheringSender, LeadersPods
from pttrainer.rollout.engine import Completions
from pttrainer.rollout.vllm.http_server import ServerClient
from pttrainer.rollout.vllm.requests import VllmForgot, VllmReply, VllmRequest, VllmUnavailable, requests_of
from pttrainer.rollout.vllm.version_check import VersionCheck
from pttrainer.rollout.vllm.vllm_engine import completions_of
from pttrainer.rollout.vllm.weight_check import Comparison
from pttrainer.rollout.vllm.weight_files import WeightFiles, WeightVersion, take_part
from pttrainer.runtime.distributed import processes

FIELD = "spec.rollout.separate"


class FileVersion(NamedTuple):
    """A version on the volume. trainer_T: the trainer's log-probs of the text that servers score."""

    name: str
    files: WeightVersion
    trainer_T: np.ndarray


class FinishedReplies:
    """The replies of shares that are not complete yet, whoever gave them. Calls are of one version at a time."""

    def __init__(self) -> None:
        self._replies: dict[tuple[str, VllmRequest], VllmReply] = {}
        self._lock = threading.Lock()

    def missing(self, version: str, requests: Sequence[VllmRequest]) -> list[VllmRequest]:
        """Return the requests without a reply; forget what came too late for another version's share."""
        with self._lock:
            self._replies = {key: reply for key, reply in self._replies.items() if key[0] == version}
            return [request for request in requests if (version, request) not in self._replies]

    def keep(self, version: str, request: VllmRequest, reply: VllmReply) -> None:
        """Keep a reply."""
        with self._lock:
            self._replies[version, request] = reply

    def taken(self, version: str, requests: Sequence[VllmRequest]) -> dict[VllmRequest, VllmReply]:
        """Return all replies of a complete share, and drop them here."""
        with self._lock:
            return {request: self._replies.pop((version, request)) for request in requests}


class VllmSampler:
    """A server in a pod of its own. finished: shared by all samplers of the job."""

    def __init__(self, name: str, client: ServerClient, tokenizer: Tokenizer, finished: FinishedReplies) -> None:
        self.name, self._client, self._tokenizer, self._finished = name, client, tokenizer, finished
        self._version = ""
        self._loads = 0
        self._before: Comparison | None = None

    def refresh(self) -> None:
        """Look whether it is up. Raises SamplerAway, or ConfigError if it serves something else."""
        try:
            self._client.reach()
        except VllmUnavailable as unavailable:
            raise SamplerAway(str(unavailable)) from unavailable

    def take_over(self, version: FileVersion, check: VersionCheck) -> bool:
        """Let it read a version, and compare its log-probs; return False if it has the version.

        Raises SamplerAway, or ConfigError if it does not have it then.
        """
        if self._version == version.name:
            return False
        self._loads += 1  # a name that is never used twice: the reply to the last try may be all that was lost
        try:
            self._client.reach()  # the pod may be another one since
            self._client.load(version.files._replace(name=f"{version.files.name}-{self._loads}"))
            [reply] = self._client.generate([check.request])
        except VllmUnavailable as unavailable:
            raise SamplerAway(str(unavailable)) from unavailable
        self._before = check.compare(f"vLLM at {self.name}", version.trainer_T, reply, self._before)
        self._version = version.name
        return True

    def generate(self, request: Request, progress: Callable[[], None]) -> Completions:
        """Return completions. Raises SamplerAway, SamplerFailed if it is up and failed, or Conflict."""
        eos, none = self._tokenizer.eos_ids, [None] * len(request.prompts)
        requests = requests_of(request.prompts, none, request.samples, request.sampling, request.draw, eos)
        once = list(dict.fromkeys(requests))

        def keep(one: VllmRequest, reply: VllmReply) -> None:
            self._finished.keep(request.version, one, reply)
            progress()

        missing = self._finished.missing(request.version, once)
        try:
            if missing:
                self._client.generate(missing, keep)
        except VllmForgot as forgot:
            raise Conflict(str(forgot)) from forgot
        except VllmUnavailable as unavailable:
            self._raise_lost(unavailable)
        replies = self._finished.taken(request.version, once)
        return completions_of(self._tokenizer, [replies[one] for one in requests], request.samples, request.sampling)

    def forget(self) -> None:
        """Do nothing: vLLM makes room for other prompts by itself."""

    def lost(self) -> None:
        """Note that nothing is known of what it holds."""
        self._version, self._before = "", None

    def close(self) -> None:
        """Cancel what is in progress; every later call raises SamplerAway."""
        self._client.close()

    def _raise_lost(self, unavailable: VllmUnavailable) -> None:
        try:
            self._client.reach()
        except VllmUnavailable:
            raise SamplerAway(str(unavailable)) from unavailable
        raise SamplerFailed(str(unavailable)) from unavailable


class FileSender:
    """Lays versions down as files, and has samplers read them. copies: versions that are in use at once."""

    def __init__(self, files: WeightFiles, check: VersionCheck, copies: int) -> None:
        self._files, self._check, self._copies = files, check, copies
        self._versions: list[FileVersion] = []
        self._newest = NewestLeaves()
        self._facts: dict[str, float] = {}
        self._counting = threading.Lock()

    def deliver(self, params: Params) -> FileVersion:
        """Lay these weights down, unless they are the newest version."""
        if self._newest.replace(params):
            began = time.monotonic()
            files = self._files.write(params)
            self._versions.append(FileVersion(files.directory.name, files, self._check.trainer(params)))
            self._versions = self._versions[-self._copies :]
            self._files.keep_only(*(version.files for version in self._versions))
            size = sum(file.stat().st_size for file in files.directory.rglob("*") if file.is_file())
            self._add({run_directory.WEIGHT_BYTES: float(size)}, began)
        return self._versions[-1]

    def ensure(self, client: VllmSampler, version: FileVersion) -> None:
        """Let a sampler read a version, unless it has it. Raises SamplerAway or ConfigError."""
        began = time.monotonic()
        if client.take_over(version, self._check):
            self._add({}, began)

    def facts(self) -> dict[str, float]:
        """Return bytes and seconds since the last call; the seconds of all samplers add up."""
        with self._counting:
            facts, self._facts = self._facts, {}
        return facts

    def close(self) -> None:
        """Remove the files."""
        self._files.keep_only()

    def _add(self, facts: Mapping[str, float], began: float) -> None:
        with self._counting:
            for name, value in {**facts, run_directory.WEIGHT_SECONDS: time.monotonic() - began}.items():
                self._facts[name] = self._facts.get(name, 0.0) + value


def vllm_samplers(context: Context, vllm: VllmSpec, environ: MutableMapping[str, str] = os.environ) -> RemoteEngine:
    """Build the engine with the samplers that the environment names; of several processes the leader speaks to them.

    Raises ConfigError.
    """
    spec, to_others, as_adapters = context.spec, context.messages, context.model.adapters is not None
    addresses = sampler_addresses("`vllm serve`", environ)
    token = processes.secret(TOKEN_ENV, FIELD, environ)
    routing = PrefixRouting(len(addresses), keeps_prompts=spec.environment is not None)
    check = VersionCheck(context, vllm.tolerance)
    if to_others is not None and not context.leader:

        def gather(params: Params, _: int) -> None:  # as `FileSender` does
            take_part(context, params, as_adapters=as_adapters)
            check.trainer(params)

        return RemoteEngine(FollowersPods(to_others), GatheringSender(gather), routing, context.alive)
    length, finished = spec.training.sequence_length, FinishedReplies()
    samplers = [
        VllmSampler(
            address,
            ServerClient(
                f"http://{address}",
                None,
                token,
                vllm.concurrency,
                vllm.timeout_seconds,
                length,
                FIELD,
                is_pod=True,
                note=context.note,
            ),
            context.tokenizer,
            finished,
        )
        for address in addresses
    ]
    context.note(f"{len(samplers)} samplers with vLLM in pods of their own: {', '.join(addresses)}")
    files = WeightFiles(context, vllm.weights_directory, as_adapters=as_adapters)
    sender = FileSender(files, check, versions_in_use(spec))
    pods = SamplerPods(samplers, sender, context.note, most_failures=vllm.retries + 1)
    here = pods if to_others is None else LeadersPods(pods, to_others)
    return RemoteEngine(here, sender, routing, context.alive)
