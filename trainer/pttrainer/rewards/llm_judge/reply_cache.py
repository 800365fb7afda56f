"""A judge's replies, kept in the run directory: nothing is asked twice, also after a restart.

`judge/<name>/000001.jsonl`, a file for each step that asked anything: a line per question (the digest of all that the
reply depends on, the reply, its tokens), and a line with the calls and tokens so far, which the budget counts on. Whole
files, because a bucket cannot append.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from ptapi import run_directory
from pttrainer.runtime.io.storage import Place


class Answer(NamedTuple):
    """A reply, and the tokens that the service counted for it and its question."""

    text: str
    tokens: int


class Answers:
    """By the question's digest. run: the run directory; None keeps them in memory alone."""

    def __init__(self, name: str, run: Place | None) -> None:
        self._under, self._run = f"{run_directory.JUDGE}/{name}", run
        self._known: dict[str, Answer] = {}
        self.calls = self.tokens = 0
        self._files = 0
        for file in run.names(self._under) if run is not None else []:
            self._read(file)
            self._files += 1

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Answer:
        return self._known[key]

    def add(self, fresh: Mapping[str, Answer], calls: int, tokens: int) -> None:
        """Keeps replies; calls and tokens: spent so far by the whole run."""
        self._known.update(fresh)
        if self._run is None or calls == self.calls:
            return
        self.calls, self.tokens = calls, tokens
        self._files += 1
        lines = [{"key": key, **answer._asdict()} for key, answer in fresh.items()]
        spent = {"spent": {"calls": calls, "tokens": tokens}}
        text = "".join(json.dumps(line) + "\n" for line in (*lines, spent))
        self._run.write(f"{self._under}/{self._files:06d}.jsonl", text.encode())

    def _read(self, file: str) -> None:
        assert self._run is not None
        for line in (self._run.read(file) or b"").splitlines():
            found = json.loads(line)
            if "spent" in found:
                self.calls, self.tokens = int(found["spent"]["calls"]), int(found["spent"]["tokens"])
            else:
                self._known[found["key"]] = Answer(found["text"], found["tokens"])
