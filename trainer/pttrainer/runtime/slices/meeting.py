"""How supervisors meet: each writes a file of its own, and one of them, the keeper, writes the generation.

The generation is written by compare-and-set, so two keepers never both succeed. Whoever sees the keeper silent for the
limit takes its place. Whether a file changes is measured by the reader's own clock: clocks of two machines are never
compared. Only the keeper reads all files; the others read the generation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ptapi.run_directory import GENERATION, Generation, Member, member_file
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.slices.next_generation import Key, Report


@dataclass
class _Changes:
    """When a counter last changed."""

    token: str = ""
    beats: int = -1
    at: float = float("-inf")

    def look(self, token: str, beats: int, now: float) -> None:
        if (token, beats) != (self.token, self.beats):
            self.token, self.beats, self.at = token, beats, now


@dataclass
class Meeting:
    """The files of all supervisors, as one of them sees them. limit_s: a supervisor silent for longer is lost."""

    place: Place
    job_uid: str
    limit_s: float
    generation: Generation = field(default_factory=Generation)
    _version: int = 0
    _keeper: _Changes = field(default_factory=_Changes)
    _members: dict[Key, _Changes] = field(default_factory=dict)

    def read_generation(self, now: float) -> Generation:
        """Return the generation; one of no slices if there is none yet of this job."""
        stored = self.place.read_versioned(GENERATION)
        self._version = stored.generation
        self.generation = _parsed(stored.content, self.job_uid)
        self._keeper.look(self.generation.keeper, self.generation.beats, now)
        return self.generation

    def is_kept(self, now: float) -> bool:
        """Return True if a keeper was active lately."""
        return self.generation.keeper != "" and now - self._keeper.at < self.limit_s

    def write_generation(self, generation: Generation, now: float) -> bool:
        """Replace the generation that was read last; return False if another keeper was faster."""
        version = self.place.write_if(GENERATION, generation.model_dump_json(by_alias=True).encode(), self._version)
        if version is None:
            return False
        self._version, self.generation = version, generation
        self._keeper.look(generation.keeper, generation.beats, now)
        return True

    def write_member(self, key: Key, member: Member) -> None:
        """Write what this supervisor reports."""
        self.place.write(member_file(*key), member.model_dump_json(by_alias=True).encode())

    def reports(
        self, keys: Iterable[Key], now: float, settled_since: float | None, lost: str = ""
    ) -> dict[Key, Report]:
        """Return the last reports. settled_since: when a trainer's end showed; lost: a keeper that has gone silent."""
        reports = {}
        for key in keys:
            content = self.place.read(member_file(*key))
            member = _member(content)
            if member is None:
                continue
            changes = self._members.setdefault(key, _Changes())
            is_first = changes.beats < 0
            changes.look(member.token, member.beats, now)
            if is_first and (member.token == lost or member.token not in self.generation.members):
                changes.at = now - self.limit_s  # a file that an earlier pod left: alive once it changes
            is_alive = now - changes.at < self.limit_s
            is_settled = settled_since is None or changes.at > settled_since or not is_alive
            reports[key] = Report(member, is_alive, is_settled)
        return reports


def _parsed(content: bytes | None, job_uid: str) -> Generation:
    """Return the stored generation; one of an earlier job of this name, or damaged, counts as none."""
    try:
        stored = None if content is None else Generation.model_validate_json(content)
    except ValueError:
        stored = None
    return stored if stored is not None and stored.job_uid == job_uid else Generation(job_uid=job_uid)


def _member(content: bytes | None) -> Member | None:
    try:
        return None if content is None else Member.model_validate_json(content)
    except ValueError:
        return None  # its next report will be readable
