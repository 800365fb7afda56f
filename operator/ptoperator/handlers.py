"""kopf's decorators and nothing else: every event of a job becomes one entry in the queue.

Only `on.event` is used, because it writes nothing: no finalizer (owner references collect the objects), no annotation
with the last handled spec, no progress of handlers. The level-triggered reconcile replaces all of these. JobSets and
pods come by `observe.copies`: a reconcile reads them there, and kopf does not tell what was deleted while it was away.
"""

from typing import Any

import kopf

from ptapi.spec import API_GROUP, API_VERSION, PLURAL
from ptoperator.app import Application
from ptoperator.kopf_login import connection

PREFIX = "operator.posttrain.dev"
"""Prefix of any annotation or finalizer that kopf might write, so that it never meets another operator's."""


BACKOFFS_S = (0.5, 1.0, 2.0, 3.0, *[5.0] * 720)
"""An API server that is back is found within five seconds; after an hour without one the operator gives up."""


IDLE_S = 0.1
"""kopf keeps a task, a queue and the last event of each job for so long after it; a thousand jobs change in seconds."""


def register(app: Application) -> kopf.OperatorRegistry:
    """Register the handlers of one operator."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.persistence.finalizer = f"{PREFIX}/finalizer"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)
        settings.posting.enabled = False
        settings.networking.error_backoffs = BACKOFFS_S
        settings.queueing.idle_timeout = IDLE_S
        await app.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await app.stop()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return connection(app.kube, **kwargs)

    @kopf.on.event(API_GROUP, API_VERSION, PLURAL, registry=registry)
    async def job_changed(event: kopf.RawEvent, **_: Any) -> None:
        app.on_job(event["type"], dict(event["object"]))

    return registry
