"""Get and list: selectors, pages, and the list's resourceVersion.

A page after the first shows the objects as they are now, not as they were at the first page; the list keeps the first
page's resourceVersion, so a watch that starts there replays whatever happened in between.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptlocal.apiserver.errors import bad_request, expired
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.storage import selectors
from ptlocal.apiserver.storage.selectors import Selector
from ptlocal.apiserver.storage.store import Row, Store, encode
from ptlocal.apiserver.storage.watchers import too_new
from ptlocal.apiserver.write_options import whole_number

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """A part of a list. `meta` has its resourceVersion and, if there is more, the continue token."""

    bodies: list[bytes]
    meta: Manifest


def read_page(store: Store, kind: Kind, namespace: str | None, query: Mapping[str, str]) -> Page:
    """Return a page of a list."""
    selector = selectors.parse(kind, query.get("labelSelector"), query.get("fieldSelector"))
    limit = whole_number(query, "limit") or 0
    revision, after = store.revision, ("", "")
    if query.get("continue"):
        revision, after = _decode_continue(query["continue"])
    else:
        _check_revision(store, query)
    bodies: list[bytes] = []
    last = after
    for row in matching(store, kind, namespace, selector, after):
        if limit and len(bodies) == limit:
            return _partial(store, kind, namespace, selector, bodies, revision, last)
        bodies.append(row.body)
        last = (row.namespace, row.name)
    return Page(bodies, {"resourceVersion": str(revision)})


def matching(
    store: Store, kind: Kind, namespace: str | None, selector: Selector, after: tuple[str, str] = ("", "")
) -> Iterator[Row]:
    """Yield the rows that match a selector."""
    for row in store.rows(kind.storage_key, namespace, after):
        if selector.is_everything or selector.matches(row.selectable):
            yield row


def _partial(
    store: Store,
    kind: Kind,
    namespace: str | None,
    selector: Selector,
    bodies: list[bytes],
    revision: int,
    last: tuple[str, str],
) -> Page:
    meta: Manifest = {"resourceVersion": str(revision), "continue": _encode_continue(revision, last)}
    if selector.is_everything:
        meta["remainingItemCount"] = store.count(kind.storage_key, namespace, last)
    return Page(bodies, meta)


def _check_revision(store: Store, query: Mapping[str, str]) -> None:
    requested = whole_number(query, "resourceVersion")
    match = query.get("resourceVersionMatch")
    if match and match not in ("Exact", "NotOlderThan"):
        raise bad_request(
            f'resourceVersionMatch: Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"'
        )
    if requested and requested > store.revision:
        raise too_new(requested, store.revision)
    if requested and match == "Exact" and requested != store.revision:
        raise expired(f"The resourceVersion for the provided list is too old: {requested} ({store.revision})")


def _encode_continue(revision: int, last: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(encode({"v": "local/v1", "rv": revision, "after": last})).decode()


def _decode_continue(token: str) -> tuple[int, tuple[str, str]]:
    try:
        position = json.loads(base64.urlsafe_b64decode(token.encode()))
        namespace, name = position["after"]
        return int(position["rv"]), (str(namespace), str(name))
    except (binascii.Error, ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid") from None
