"""Forward a port of the cluster to this machine with kubectl."""

from ptctl.errors import CliError
from ptctl.ui import interrupts
from ptctl.ui.app import Target


def command(target: Target, namespace: str, resource: str, local_port: int, remote_port: int) -> list[str]:
    """Return the kubectl command that forwards `local_port` here to `remote_port` of `pod/…` or `service/…`."""
    options = (("kubeconfig", target.kubeconfig), ("context", target.context))
    cluster = [f"--{flag}={value}" for flag, value in options if value]
    return ["kubectl", *cluster, "-n", namespace, "port-forward", resource, f"{local_port}:{remote_port}"]


def run(args: list[str]) -> None:
    """Run the port-forward until Ctrl-C. Raises CliError if kubectl fails."""
    code = interrupts.call(args)
    if code:
        raise CliError(f"kubectl port-forward exited with code {code}")
