"""A judge's replies, kept in the run directory: no request is repeated, even after a restart.

`judge/<name>/000001.jsonl`, one file per step with requests: a line per prompt (the digest of everything that the reply
depends on, the reply, its tokens), and a line with calls and tokens so far, which the budget counts. Whole files,
because a bucket cannot append.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from ptapi import run_directory
from pttrainer.runtime.io import json_text
from pttrainer.runtime.io.place import Place


class JudgeReply(NamedTuple):
    """A reply, and the tokens that the service counted for it and its prompt."""

    text: str
    tokens: int


class ReplyCache:
    """Replies by the prompt's digest. run: the run directory, or None to keep them in memory only."""

    def __init__(self, name: str, run: Place | None) -> None:
        self._under, self._run = f"{run_directory.JUDGE}/{name}", run
        self._replies: dict[str, JudgeReply] = {}
        self.calls = self.tokens = 0
        self._files = 0
        for file in run.names(self._under) if run is not None else []:
            self._read(file)
            self._files += 1

    def __contains__(self, key: str) -> bool:
        return key in self._replies

    def __getitem__(self, key: str) -> JudgeReply:
        return self._replies[key]

    def add(self, new_replies: Mapping[str, JudgeReply], calls: int, tokens: int) -> None:
        """Store replies; calls and tokens: spent so far by the whole run."""
        self._replies.update(new_replies)
        if self._run is None or calls == self.calls:
            return
        self.calls, self.tokens = calls, tokens
        self._files += 1
        lines = [{"key": key, **answer._asdict()} for key, answer in new_replies.items()]
        spent = {"spent": {"calls": calls, "tokens": tokens}}
        text = "".join(json.dumps(line) + "\n" for line in (*lines, spent))
        self._run.write(f"{self._under}/{self._files:06d}.jsonl", text.encode())

    def _read(self, file: str) -> None:
        assert self._run is not None
        for line in (self._run.read(file) or b"").splitlines():
            try:
                entry = json_text.loads(line)
                if "spent" in entry:
                    self.calls, self.tokens = int(entry["spent"]["calls"]), int(entry["spent"]["tokens"])
                else:
                    self._replies[entry["key"]] = JudgeReply(str(entry["text"]), int(entry["tokens"]))
            except (ValueError, KeyError, TypeError):
                continue  # a line that is cut off: its reply is asked for again
