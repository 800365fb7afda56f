"""Asks the nodes on which pods of a job failed: the reads around `nodes`.

One GET per node and failure, at most a few per look. An operator that may not read nodes knows what the pods say.
"""

from __future__ import annotations

from typing import Protocol

from ptkube.errors import Forbidden, NotFound
from ptkube.resources import NODES, Manifest, Resource
from ptoperator.failures.node_failures import NodeSign, gone, sign_of
from ptoperator.observe.cache import Memory
from ptoperator.observe.state import Observed


class NodeReader(Protocol):
    """The part of `kube.Kube` that this needs."""

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest: ...


def ask_nodes(reader: NodeReader, memory: Memory, seen: Observed) -> None:
    """Let the nodes say why pods of this job failed."""
    for node in memory.nodes_to_ask(seen.uid):
        memory.note_node(seen.uid, node, _ask(reader, node, seen.capacity_option == "spot"))


def _ask(reader: NodeReader, name: str, is_spot: bool) -> NodeSign | None:
    try:
        return sign_of(reader.get(NODES, name))
    except NotFound:
        return gone(name, is_spot)
    except Forbidden:
        return None
