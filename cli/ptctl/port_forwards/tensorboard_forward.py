"""Forward a TensorBoard that runs in the cluster: request its pod, wait, forward its port, open a browser.

The operator keeps the pod while some job's annotation requests it. This command renews the request while it runs;
after it ends the request expires and the operator removes the pod.
"""

import shutil
import threading
import time
import webbrowser
from datetime import timedelta
from typing import Any

from ptctl.errors import CliError
from ptctl.jobs.view import JobView
from ptctl.port_forwards import port_forward
from ptctl.ui.app import App, Target
from ptkube import timestamps
from ptkube.client import Kube, NotFound
from ptkube.resources import DEPLOYMENTS, POSTTRAINJOBS
from ptoperator.kube import labels
from ptoperator.render.tensorboard import PORT, tensorboard_name

REQUEST_DURATION = timedelta(minutes=15)
"""The operator keeps the pod for this long after the last request."""
RENEW_EVERY_S = 300.0
"""How often this command renews the request."""
START_TIMEOUT_S = 180.0
"""Longest wait for the pod: its image may have to be pulled."""
POLL_S = 1.0


def forward(app: App, target: Target, job: JobView, output_uri: str, port: int, *, opens: bool) -> None:
    """Forward the job's TensorBoard until Ctrl-C."""
    if shutil.which("kubectl") is None:
        raise CliError(
            "kubectl is not installed",
            f"install kubectl, or reach the Service {tensorboard_name(output_uri)} another way",
        )
    kube = app.connect(target)
    name = tensorboard_name(output_uri)
    request_pod(kube, job)
    app.console.say(f"waiting for {name}: the operator starts its pod on request")
    wait_ready(kube, job.namespace, name)
    stopped = threading.Event()
    threading.Thread(target=_renew_until, args=(kube, job, stopped), daemon=True).start()
    address = f"http://localhost:{port}/"
    app.console.say(f"TensorBoard of {output_uri}: {address} (Ctrl-C to stop)")
    if opens:
        threading.Timer(1.0, webbrowser.open, (address,)).start()
    try:
        port_forward.run(port_forward.command(target, job.namespace, f"service/{name}", port, PORT))
    finally:
        stopped.set()


def request_pod(kube: Kube, job: JobView) -> None:
    """Request the TensorBoard pod for the next REQUEST_DURATION."""
    until = timestamps.to_text(timestamps.utc_now() + REQUEST_DURATION)
    kube.patch(POSTTRAINJOBS, job.name, job.namespace, {"metadata": {"annotations": {labels.TENSORBOARD_UNTIL: until}}})


def wait_ready(kube: Kube, namespace: str, name: str) -> None:
    """Wait until the Deployment has a ready pod. Raises CliError after START_TIMEOUT_S."""
    deadline = time.monotonic() + START_TIMEOUT_S
    deployment: dict[str, Any] = {}
    while time.monotonic() < deadline:
        try:
            deployment = kube.get(DEPLOYMENTS, name, namespace)
        except NotFound:
            deployment = {}
        if int((deployment.get("status") or {}).get("readyReplicas") or 0) > 0:
            return
        time.sleep(POLL_S)
    hint = f"kubectl -n {namespace} describe deployment {name}" if deployment else "check that the operator is running"
    raise CliError(f"Deployment {name} has no ready pod after {START_TIMEOUT_S:.0f} s", hint)


def _renew_until(kube: Kube, job: JobView, stopped: threading.Event) -> None:
    while not stopped.wait(RENEW_EVERY_S):
        request_pod(kube, job)
