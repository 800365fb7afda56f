"""Asks the nodes on which pods of a job failed: the reads around `nodes`.

One GET per node and failure, at most a few per look. An operator that may not read nodes knows what the pods say.
"""

from __future__ import annotations

from typing import Protocol

from ptkube.errors import Forbidden, NotFound
from ptkube.resources import NODES, Manifest, Resource
from ptoperator.failures.node_failures import NodeFailureHint, gone, node_failure_hint
from ptoperator.observe.cache import JobCache
from ptoperator.observe.state import Observed


class NodeReader(Protocol):
    """The part of `kube.Kube` that this needs."""

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest: ...


def inspect_failed_nodes(reader: NodeReader, cache: JobCache, state: Observed) -> None:
    """Let the nodes say why pods of this job failed."""
    for node in cache.nodes_to_inspect(state.uid):
        cache.note_node(state.uid, node, _inspect(reader, node, state.capacity_option == "spot"))


def _inspect(reader: NodeReader, name: str, is_spot: bool) -> NodeFailureHint | None:
    try:
        return node_failure_hint(reader.get(NODES, name))
    except NotFound:
        return gone(name, is_spot)
    except Forbidden:
        return None
