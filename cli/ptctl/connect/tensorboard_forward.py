"""A TensorBoard that runs in the cluster, brought to this machine: ask for its pod, wait, forward its port, open it.

The operator gives it a pod for as long as some job says that somebody looks; while this command runs it says so again
and again, and when it ends the pod goes after a while.
"""

from __future__ import annotations

import shutil
import threading
import time
import webbrowser
from datetime import timedelta
from typing import Any

from ptctl.connect import port_forward
from ptctl.errors import CliError
from ptctl.jobs.view import JobView
from ptctl.ui.app import App, Target
from ptkube import timestamps
from ptkube.client import Kube, NotFound
from ptkube.resources import DEPLOYMENTS, POSTTRAINJOBS
from ptoperator.kube import labels
from ptoperator.render.tensorboard import PORT, tensorboard_name

LOOK = timedelta(minutes=15)
"""A pod stays for this long after the last word that somebody looks."""
AGAIN_S = 300.0
"""It is said again so often, while this command runs."""
START_S = 180.0
"""Longest wait for the pod: its image may have to be pulled."""
LOOK_EVERY_S = 1.0


def forward(app: App, target: Target, job: JobView, output_uri: str, port: int, *, opens: bool) -> None:
    """Until Ctrl-C."""
    if shutil.which("kubectl") is None:
        raise CliError(
            "kubectl is not installed", f"the Service {tensorboard_name(output_uri)} can also be reached otherwise"
        )
    kube = app.connect(target)
    name = tensorboard_name(output_uri)
    ask(kube, job)
    app.console.say(f"waiting for {name}: its pod starts when somebody looks")
    wait_ready(kube, job.namespace, name)
    over = threading.Event()
    threading.Thread(target=_keep_asking, args=(kube, job, over), daemon=True).start()
    address = f"http://localhost:{port}/"
    app.console.say(f"TensorBoard of {output_uri}: {address} (Ctrl-C ends)")
    if opens:
        threading.Timer(1.0, webbrowser.open, (address,)).start()
    try:
        port_forward.run(port_forward.command(target, job.namespace, f"service/{name}", port, PORT))
    finally:
        over.set()


def ask(kube: Kube, job: JobView) -> None:
    """Somebody looks, from now on for a while."""
    until = timestamps.to_text(timestamps.utc_now() + LOOK)
    kube.patch(POSTTRAINJOBS, job.name, job.namespace, {"metadata": {"annotations": {labels.TENSORBOARD_UNTIL: until}}})


def wait_ready(kube: Kube, namespace: str, name: str) -> None:
    """Raises CliError with what is known when it does not come."""
    end = time.monotonic() + START_S
    found: dict[str, Any] = {}
    while time.monotonic() < end:
        try:
            found = kube.get(DEPLOYMENTS, name, namespace)
        except NotFound:
            found = {}
        if int((found.get("status") or {}).get("readyReplicas") or 0) > 0:
            return
        time.sleep(LOOK_EVERY_S)
    hint = f"kubectl -n {namespace} describe deployment {name}" if found else "is the operator running?"
    raise CliError(f"Deployment {name} has no ready pod after {START_S:.0f} s", hint)


def _keep_asking(kube: Kube, job: JobView, over: threading.Event) -> None:
    while not over.wait(AGAIN_S):
        ask(kube, job)
