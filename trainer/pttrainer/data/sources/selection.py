"""Select the files of a directory that hold a job's rows: by pattern, by format, by split.

A function of names; nothing is read. Names decide the split as on Hugging Face: `train-00000-of-00002.parquet`,
`train/part.jsonl`, `dev.csv`. Two splits, formats or configurations are never mixed unless the job asks for it.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pttrainer.data.sources import formats
from pttrainer.errors import DataError

WILDCARDS = frozenset("*?[")
METADATA_FILES = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Metadata files beside the rows."""

KEYWORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
SHARD = re.compile(r"(.+)-\d{5,}-of-\d{5,}(?:-[0-9a-f]+)?\..*")
SAVED = "data"
"""Prefix of `save_to_disk` shards; their directory is the split."""


def is_pattern(path: str) -> bool:
    """Return True if a path has wildcards."""
    return not WILDCARDS.isdisjoint(path)


def base_of(path: str) -> tuple[str, str]:
    """Split a path at the last `/` before its first wildcard."""
    first = min(path.index(sign) for sign in WILDCARDS if sign in path)
    head, slash, _ = path[:first].rpartition("/")
    return head, path[len(head) + len(slash) :]


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that a pattern matches, part by part; `**` is any number of directories."""
    return [name for name in names if _matches(name.split("/"), pattern.split("/"))]


def in_directory(names: Iterable[str]) -> list[str]:
    """Return the data files of a directory, sorted, without hidden ones."""
    return sorted(name for name in names if formats.suffix(name) and _is_data(name))


def of_split(names: Sequence[str], split: str, where: str) -> list[str]:
    """Return the names of a split; raise DataError with the splits that exist."""
    chosen = [name for name in names if _same_split(split_of(name), split)]
    if not chosen:
        raise DataError(f"{where}: no split {split!r}; accepted: {', '.join(splits(names)) or 'unset: there are none'}")
    return chosen


def splits(names: Iterable[str]) -> list[str]:
    """Return the splits that names belong to."""
    return sorted({split for name in names if (split := split_of(name)) is not None})


def split_of(name: str) -> str | None:
    """Return a file's split, from its name, else from its directories'."""
    *parents, last = name.split("/")
    shard = SHARD.fullmatch(last)
    if shard and shard[1] != SAVED:
        return shard[1]
    if shard:
        return parents[-1] if parents else None
    for part in (last, *reversed(parents)):
        splits_named = [KEYWORDS[word] for word in re.split(r"[^a-z0-9]+", part.lower()) if word in KEYWORDS]
        if splits_named:
            return splits_named[0]
    return None


def check_unmixed(names: Sequence[str], where: str, field: str) -> None:
    """Raise DataError if a directory's files belong to several splits or formats."""
    if len(splits(names)) > 1:
        raise DataError(f"{where}: holds the splits {', '.join(splits(names))}; hint: name one in {field}.split")
    kinds = sorted({str(formats.suffix(name)) for name in names})
    if len(kinds) > 1:
        raise DataError(
            f"{where}: holds {', '.join(kinds)} files; accepted: files of one format; hint: add /*{kinds[0]} to the URI"
        )


def check_one_directory(names: Sequence[str], where: str) -> None:
    """Raise DataError if a data set has several configurations, one directory each."""
    directories = sorted({name.rpartition("/")[0] for name in names})
    if len(directories) > 1:
        raise DataError(
            f"{where}: holds several configurations: {', '.join(directories)}; "
            f"hint: name one at the end of the URI, such as {where.split(': ')[-1].rstrip('/')}/{directories[0]}"
        )


def _same_split(split: str | None, wanted: str) -> bool:
    return split is not None and (split == wanted or KEYWORDS.get(split, split) == KEYWORDS.get(wanted, wanted))


def _is_data(name: str) -> bool:
    parts = name.split("/")
    return parts[-1] not in METADATA_FILES and not any(part.startswith((".", "_")) for part in parts)


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_matches(parts[skipped:], patterns[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])
