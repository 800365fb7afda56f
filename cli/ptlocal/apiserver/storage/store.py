"""All state, in one SQLite file: the objects, and a journal of recent changes for watches to replay.

One idea: a write is one transaction that takes the next resourceVersion, changes the object and appends to the journal;
listeners are notified only after it. The resourceVersion is the journal's key, so it grows for ever, across restarts.
With WAL and synchronous=NORMAL a commit survives kill -9 of this process at any moment; a power cut may lose the last
writes, but never part of one.

Bodies are stored as JSON without apiVersion and kind, which depend on the requested version. Nothing is cached in
memory: SQLite's page cache is fast enough, and 1,000 jobs must not cost hundreds of megabytes. Left out: conversion
between versions of a kind beyond renaming apiVersion.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.storage.selectors import Selectable

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
JOURNAL_LENGTH = 20_000  # how many changes back a watch may resume; older ones get a 410
_PRUNE_EVERY = 1_000

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
  resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, rv INTEGER NOT NULL,
  selectable TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (resource, namespace, name));
CREATE TABLE IF NOT EXISTS journal (
  rv INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  type TEXT NOT NULL, selectable TEXT NOT NULL, old_selectable TEXT, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS journal_by_object ON journal (resource, namespace, name, rv);
"""


@dataclass(frozen=True)
class Row:
    """One stored object.

    `rv`: the resourceVersion of its last write; `selectable`: what selectors match, stored next to the body so that a
    list need not parse it.
    """

    namespace: str
    name: str
    rv: int
    selectable: Selectable
    body: bytes


@dataclass(frozen=True)
class Change:
    """One entry of the journal. `old` is the object before; None if it did not exist or is no longer known."""

    rv: int
    resource: str
    namespace: str
    name: str
    type: ChangeType
    now: Selectable
    before: Selectable | None
    body: bytes
    old_body: bytes | None


class Store:
    """The database."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA cache_size=-16384")
        self._db.executescript(_TABLES)
        self._listeners: list[Callable[[Change], None]] = []
        row = self._db.execute("SELECT max(rv), min(rv) FROM journal").fetchone()
        self.revision: int = row[0] or 1
        self._oldest: int = row[1] or 2

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call the listener after every change."""
        self._listeners.append(listener)

    def get(self, resource: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object, or None."""
        row = self._db.execute(
            "SELECT body FROM objects WHERE resource=? AND namespace=? AND name=?", (resource, namespace, name)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def rows(
        self, resource: str, namespace: str | None = None, after: tuple[str, str] = ("", ""), limit: int | None = None
    ) -> Iterator[Row]:
        """Yield objects in order of namespace and name, starting after `after`."""
        where, values = _where(resource, namespace, after)
        query = f"SELECT namespace, name, rv, selectable, body FROM objects WHERE {where} ORDER BY namespace, name"
        if limit is not None:
            query += f" LIMIT {limit:d}"
        for space, name, rv, selectable, body in self._db.execute(query, values):
            yield Row(space, name, rv, _selectable(selectable), body)

    def count(self, resource: str, namespace: str | None = None, after: tuple[str, str] = ("", "")) -> int:
        """Return the number of objects."""
        where, values = _where(resource, namespace, after)
        return int(self._db.execute(f"SELECT count(*) FROM objects WHERE {where}", values).fetchone()[0])

    def resources_in(self, namespace: str) -> list[str]:
        """Return the resources that have objects in the namespace."""
        rows = self._db.execute("SELECT DISTINCT resource FROM objects WHERE namespace=?", (namespace,))
        return [row[0] for row in rows]

    def write(self, kind: Kind, obj: dict[str, Any], change_type: ChangeType) -> dict[str, Any]:
        """Store (or remove) an object under the next resourceVersion, which is set in the returned copy."""
        meta = obj["metadata"]
        resource, namespace, name = kind.storage_key, meta.get("namespace", ""), meta["name"]
        rv = self.revision + 1
        obj = {**obj, "metadata": {**meta, "resourceVersion": str(rv)}}
        body = encode({k: v for k, v in obj.items() if k not in ("apiVersion", "kind")})
        now = Selectable.of(kind, obj)
        old = self._db.execute(
            "SELECT selectable, body FROM objects WHERE resource=? AND namespace=? AND name=?",
            (resource, namespace, name),
        ).fetchone()
        packed = _packed(now)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if change_type == "DELETED":
                self._db.execute(
                    "DELETE FROM objects WHERE resource=? AND namespace=? AND name=?", (resource, namespace, name)
                )
            else:
                self._db.execute(
                    "INSERT OR REPLACE INTO objects VALUES (?,?,?,?,?,?)", (resource, namespace, name, rv, packed, body)
                )
            self._db.execute(
                "INSERT INTO journal VALUES (?,?,?,?,?,?,?,?)",
                (rv, resource, namespace, name, change_type, packed, old and old[0], body),
            )
            if rv % _PRUNE_EVERY == 0:
                self._db.execute("DELETE FROM journal WHERE rv <= ?", (rv - JOURNAL_LENGTH,))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self.revision = rv
        if rv % _PRUNE_EVERY == 0:
            self._oldest = max(self._oldest, rv - JOURNAL_LENGTH + 1)
        change = Change(
            rv,
            resource,
            namespace,
            name,
            change_type,
            now,
            _selectable(old[0]) if old else None,
            body,
            old[1] if old else None,
        )
        for listener in self._listeners:
            listener(change)
        return obj

    def can_replay_from(self, rv: int) -> bool:
        """Return True if the journal has all changes since."""
        return rv >= self._oldest - 1

    def changes_since(self, rv: int, resource: str, namespace: str | None) -> Iterator[Change]:
        """Yield the changes since."""
        where, values = "rv > ? AND resource=?", [rv, resource]
        if namespace is not None:
            where, values = where + " AND namespace=?", [*values, namespace]
        query = (
            "SELECT rv, resource, namespace, name, type, selectable, old_selectable, body FROM journal "
            f"WHERE {where} ORDER BY rv"
        )
        for line in self._db.execute(query, values).fetchall():
            number, res, space, name, change_type, now, before, body = line
            yield Change(
                number,
                res,
                space,
                name,
                change_type,
                _selectable(now),
                _selectable(before) if before else None,
                body,
                None,
            )

    def body_before(self, change: Change) -> bytes:
        """Return the object before a replayed change, or the changed one if that is no longer known."""
        row = self._db.execute(
            "SELECT body FROM journal WHERE resource=? AND namespace=? AND name=? AND rv<? ORDER BY rv DESC LIMIT 1",
            (change.resource, change.namespace, change.name, change.rv),
        ).fetchone()
        return row[0] if row else change.body

    def forget_resource(self, resource: str) -> None:
        """Remove the remaining objects of a kind whose definition was deleted."""
        self._db.execute("DELETE FROM objects WHERE resource=?", (resource,))

    def reindex(self, kind: Kind) -> None:
        """Recompute the selectable fields after a kind's definition changed them."""
        for row in list(self.rows(kind.storage_key)):
            packed = _packed(Selectable.of(kind, json.loads(row.body)))
            self._db.execute(
                "UPDATE objects SET selectable=? WHERE resource=? AND namespace=? AND name=?",
                (packed, kind.storage_key, row.namespace, row.name),
            )


def _where(resource: str, namespace: str | None, after: tuple[str, str]) -> tuple[str, list[str]]:
    if namespace is None:
        return "resource=? AND (namespace, name) > (?, ?)", [resource, *after]
    return "resource=? AND namespace=? AND name > ?", [resource, namespace, after[1]]


def encode(value: Any) -> bytes:
    """Encode as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _packed(what: Selectable) -> str:
    return json.dumps([what.labels, what.fields], separators=(",", ":"), ensure_ascii=False)


def _selectable(text: str) -> Selectable:
    labels, fields = json.loads(text)
    return Selectable(labels, fields)
