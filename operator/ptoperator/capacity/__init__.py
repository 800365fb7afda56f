"""How a job gets its chips: one function per kind of provider behind one protocol.

A provider is pure: it says what it sees and wants as a `Decision`, and plan treats all of them the same way.
`existing` (the nodes are there) is the only one so far.
"""

from __future__ import annotations

from ptoperator.capacity.decision import Decision, Provider
from ptoperator.capacity.existing import existing

__all__ = ["PROVIDERS", "Decision", "Provider"]

PROVIDERS: dict[str, Provider] = {"existing": existing}
"""By the type of an entry of spec.capacity. ptapi refuses the types that are not here."""
