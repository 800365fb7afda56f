"""Which of the files in a directory hold a job's rows: by pattern, by format, by split.

Names in, names out; nothing is read. Splits are told from names as Hugging Face does: `train-00000-of-00002.parquet`,
`train/part.jsonl`, `dev.csv`. Two splits, two formats or two configurations are never mixed without being asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pttrainer.data.sources import formats
from pttrainer.errors import DataError

WILDCARDS = frozenset("*?[")
ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files beside the rows that describe them."""

KEYWORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
SHARD = re.compile(r"(.+)-\d{5,}-of-\d{5,}(?:-[0-9a-f]+)?\..*")
SAVED = "data"
"""What `save_to_disk` calls its shards; their directory is the split."""


def is_pattern(path: str) -> bool:
    """Whether a path has wildcards."""
    return not WILDCARDS.isdisjoint(path)


def base_of(path: str) -> tuple[str, str]:
    """A path with wildcards, parted at the last `/` before the first one."""
    first = min(path.index(sign) for sign in WILDCARDS if sign in path)
    head, slash, _ = path[:first].rpartition("/")
    return head, path[len(head) + len(slash) :]


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """Names that a pattern matches, part by part; `**` is any number of directories."""
    return [name for name in names if _matches(name.split("/"), pattern.split("/"))]


def in_directory(names: Iterable[str]) -> list[str]:
    """The data files among all that a directory holds, sorted; hidden ones are not."""
    return sorted(name for name in names if formats.suffix(name) and _is_data(name))


def of_split(names: Sequence[str], split: str, where: str) -> list[str]:
    """Names of a split; raises DataError with the splits that there are."""
    chosen = [name for name in names if _same_split(split_of(name), split)]
    if not chosen:
        raise DataError(f"{where}: no split {split!r}; accepted: {', '.join(splits(names)) or 'unset: there are none'}")
    return chosen


def splits(names: Iterable[str]) -> list[str]:
    """Splits that names speak of."""
    return sorted({split for name in names if (split := split_of(name)) is not None})


def split_of(name: str) -> str | None:
    """The split that a file belongs to, from its name, else from its directories'."""
    *parents, last = name.split("/")
    shard = SHARD.fullmatch(last)
    if shard and shard[1] != SAVED:
        return shard[1]
    if shard:
        return parents[-1] if parents else None
    for part in (last, *reversed(parents)):
        known = [KEYWORDS[word] for word in re.split(r"[^a-z0-9]+", part.lower()) if word in KEYWORDS]
        if known:
            return known[0]
    return None


def check_unmixed(names: Sequence[str], where: str, field: str) -> None:
    """Raises DataError where a directory's files are of several splits or formats."""
    if len(splits(names)) > 1:
        raise DataError(f"{where}: holds the splits {', '.join(splits(names))}; hint: name one in {field}.split")
    kinds = sorted({str(formats.suffix(name)) for name in names})
    if len(kinds) > 1:
        raise DataError(
            f"{where}: holds {', '.join(kinds)} files; accepted: files of one format; hint: add /*{kinds[0]} to the URI"
        )


def check_one_directory(names: Sequence[str], where: str) -> None:
    """Raises DataError where a data set has several configurations, a directory each."""
    directories = sorted({name.rpartition("/")[0] for name in names})
    if len(directories) > 1:
        raise DataError(
            f"{where}: holds several configurations: {', '.join(directories)}; "
            f"hint: name one at the end of the URI, such as {where.split(': ')[-1].rstrip('/')}/{directories[0]}"
        )


def _same_split(found: str | None, wanted: str) -> bool:
    return found is not None and (found == wanted or KEYWORDS.get(found, found) == KEYWORDS.get(wanted, wanted))


def _is_data(name: str) -> bool:
    parts = name.split("/")
    return parts[-1] not in ABOUT and not any(part.startswith((".", "_")) for part in parts)


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_matches(parts[skipped:], patterns[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])
