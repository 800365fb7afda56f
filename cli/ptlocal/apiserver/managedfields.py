"""Field ownership."""

from __future__ import annotations

from typing import Any

from ptlocal.apiserver.kinds import Kind
from ptlocal.apiserver.options import WriteOptions

Manifest = dict[str, Any]


def own_changes(obj: Manifest, old: Manifest | None, kind: Kind, options: WriteOptions, sent: Any) -> None:
    return None
