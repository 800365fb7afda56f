"""Fetch the nodes that hosted failed pods. `failures.node_failures` classifies them.

One GET per node and failure, at most a few per reconcile. Without the right to read nodes, the pods' own state counts.
"""

from ptkube.errors import Forbidden, NotFound
from ptkube.resources import NODES
from ptoperator.failures.node_failures import NodeFailureHint, gone, node_failure_hint
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe.cache import JobCache
from ptoperator.observe.state import Observed


def inspect_failed_nodes(reader: KubeReader, cache: JobCache, state: Observed) -> None:
    """Record what their nodes say about this job's failed pods."""
    for node in cache.nodes_to_inspect(state.job.uid):
        cache.note_node(state.job.uid, node, _inspect(reader, node, state.capacity_option == "spot"))


def _inspect(reader: KubeReader, name: str, is_spot: bool) -> NodeFailureHint | None:
    try:
        return node_failure_hint(reader.get(NODES, name))
    except NotFound:
        return gone(name, is_spot)
    except Forbidden:
        return None
