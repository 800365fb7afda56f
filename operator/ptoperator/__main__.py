"""`python -m ptoperator`: run the operator until it is told to stop."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVarTuple, Unpack

from ptoperator.capacity.cloud import CloudProvider
from ptoperator.monitoring import logging
from ptoperator.settings import LOG_LEVELS, Settings, SettingsError

Ts = TypeVarTuple("Ts")

_CUT = "Connection closed."
"""aiohttp (3.14) says so of a stream that is read between the end of its connection and the news; kopf lets it pass."""

EPILOG = """\
examples:
  python -m ptoperator                              every namespace of the current context's cluster
  python -m ptoperator -n team-a -n team-b          only these namespaces
  python -m ptoperator --kubeconfig ~/.kube/dev --context kind-dev --log-level debug

settings come from the environment (POSTTRAIN_TRAINER_IMAGE, POSTTRAIN_PROGRESS_SECONDS, ...): see operator/README.md
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the operator; return 0 if it was stopped by a signal, 1 if it could not run, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options)
    except SettingsError as error:
        print(f"posttrain operator: {error}", file=sys.stderr)
        return 2
    logging.configure(settings.log_level)
    code = _run(options, settings)
    while code is None:
        code = _run(options, settings, is_first=False)
    return code


def _run(options: argparse.Namespace, settings: Settings, *, is_first: bool = True) -> int | None:
    """Run until told to stop, and return the exit code; None to begin anew, as when a watched kind vanished.

    is_first: an API server that does not answer is a mistake of whoever starts this; later it is away for a while.
    """
    # Imported here: `--help` must not wait for kopf.
    import kopf
    from kopf._cogs.clients.errors import APINotFoundError

    from ptkube.client import ApiError, Kube
    from ptoperator.app import Application
    from ptoperator.handlers import register
    from ptoperator.kube.pod_groups import resolved

    identity = os.environ.get("POD_ID", f"posttrain-{os.getpid()}")
    try:
        kube = Kube.load(options.kubeconfig, options.context)
        if is_first:
            kube.request("GET", "/version")
        settings = replace(settings, pod_groups=resolved(settings.pod_groups, kube))
        app = Application(kube, settings, _cloud(settings), options.namespace, identity)
    except (ApiError, CloudError, OSError) as error:
        print(f"posttrain operator: {error}", file=sys.stderr)
        return 1
    operator = kopf.operator(
        registry=register(app),
        clusterwide=not options.namespace,
        namespaces=options.namespace,
        standalone=True,
        # kopf would ask for the user's name, which a container's user id need not have
        identity=identity,  # type: ignore[arg-type]
    )
    loop = _Loop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(operator)
    except APINotFoundError as error:  # of a definition's deletion, kopf's watch of its objects may hear first
        if loop.is_signalled:
            return 0
        print(f"posttrain operator: a watched kind is gone, watching anew: {error}", file=sys.stderr)
        return None
    except RuntimeError as error:
        if str(error) != _CUT:
            raise
        if loop.is_signalled:
            return 0
        print("posttrain operator: a watch was cut while it was read, watching anew", file=sys.stderr)
        return None
    except (asyncio.CancelledError, KeyboardInterrupt):
        pass  # told to stop
    return 0


class _Loop(asyncio.SelectorEventLoop):
    """Remembers that a signal came: kopf forgets one that comes while it ends for another reason."""

    is_signalled = False

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call back as asked."""

        def called() -> None:
            self.is_signalled = True
            callback(*args)

        super().add_signal_handler(sig, called)


class CloudError(Exception):
    """The cloud's credentials are missing."""


def _cloud(settings: Settings) -> CloudProvider | None:
    if not settings.has_gke:
        return None
    from google.auth.exceptions import GoogleAuthError

    from ptoperator.capacity.gke.client import Gke  # a second and 50 MB that an operator without GKE does not spend
    from ptoperator.capacity.gke.reservations import reader

    try:
        return Gke(settings, reservations=reader(settings))
    except GoogleAuthError as error:
        raise CloudError(
            f"no Google credentials for cluster {settings.gke_cluster}: {error}\nhint: bind the operator's service "
            "account to a Google one (docs/guides/gke.md), or run `gcloud auth application-default login`"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ptoperator",
        description="Runs PostTrainJobs: one operator per cluster, or per set of namespaces.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-n", "--namespace", action="append", default=[], help="serve this namespace; may be repeated")
    which.add_argument("-A", "--all-namespaces", action="store_true", help="serve every namespace (the default)")
    parser.add_argument("--kubeconfig", help="default: KUBECONFIG, ~/.kube/config, the pod's service account")
    parser.add_argument("--context", help="context of the kubeconfig")
    parser.add_argument("--port", type=int, help="port of /healthz, /readyz and /metrics; 0: none")
    parser.add_argument("--log-level", choices=LOG_LEVELS)
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    settings = Settings.from_env(os.environ)
    if options.port is not None:
        settings = replace(settings, http_port=options.port)
    return replace(settings, log_level=options.log_level) if options.log_level else settings


if __name__ == "__main__":
    sys.exit(main())
