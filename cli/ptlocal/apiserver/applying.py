"""Server-side apply."""

from __future__ import annotations

import copy
from typing import Any

from ptlocal.apiserver import checking, patches
from ptlocal.apiserver.kinds import Kind
from ptlocal.apiserver.options import WriteOptions
from ptlocal.apiserver.status import StatusError
from ptlocal.apiserver.writing import Writer

Manifest = dict[str, Any]


def apply(writer: Writer, kind: Kind, namespace: str, name: str, sent: Any, asked: WriteOptions) -> tuple[Manifest, bool]:
    checking.decode(sent, kind, "Strict")
    sent["metadata"].setdefault("name", name)
    try:
        live = writer.current(kind, namespace, name)
    except StatusError as error:
        if error.reason != "NotFound":
            raise
        return writer.create(kind, namespace, sent, asked), True
    return writer.update(kind, namespace, name, patches.merge(copy.deepcopy(live), sent), asked), False
