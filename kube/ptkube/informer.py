"""A watch that keeps a local copy of one kind's objects current, in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Any

from ptkube.errors import ApiError, NotFound
from ptkube.resources import Resource
from ptkube.watch import LISTED, Selection, follow
from ptkube.watch_cache import Listener, LocalCopy

if TYPE_CHECKING:
    from ptkube.client import Kube

__all__ = ["Informer", "Listener"]

log = logging.getLogger(__name__)

_NOT_SERVED_RETRY_S = 5.0  # the kind's CRD may be installed later


class Informer(LocalCopy):
    """List, then watch, for as long as `stop` is not set. Listeners run on the informer's thread: be quick."""

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        stop: threading.Event,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        **kept: Any,
    ) -> None:
        super().__init__(resource, **kept)
        self._kube = kube
        self._selection = Selection(resource, namespace, labels, fields)
        self._stop = stop

    def start(self) -> threading.Thread:
        """Run in a background thread."""
        thread = threading.Thread(target=self.run, name=f"informer-{self.resource.plural}", daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """List and watch until `stop`, whatever fails."""
        while not self._stop.is_set():
            try:
                self._follow()
            except NotFound:  # a kind that is not served has no objects
                self.replace([], "0")
                self._stop.wait(_NOT_SERVED_RETRY_S)
            except ApiError:
                return  # the client was closed under us, as `stop` says
            except Exception:  # without this thread the copy would stay as it is for ever
                log.exception("watch of %s failed, listing anew", self.resource.plural)
                self._stop.wait(_NOT_SERVED_RETRY_S)

    def _follow(self) -> None:
        for kind, item in follow(
            self._kube,
            self._selection,
            endures=self._endures,
            left_s=lambda: 0.0 if self._stop.is_set() else math.inf,
            wait=self._stop.wait,
        ):
            if kind == LISTED:
                self.replace(item.items, item.resource_version)
            elif kind == "BOOKMARK":
                self.pass_version(item)
            else:
                self.pass_version(item)
                self.take(kind, item)

    def _endures(self, error: ApiError, failures: int, lost_s: float) -> bool:
        if failures == 0 and not self._stop.is_set():
            log.warning("watch of %s interrupted: %s", self.resource.plural, error.message.splitlines()[0])
        return not self._stop.is_set()
