"""Send a checked job to the API server, or print what would be sent."""

from dataclasses import replace

from ptctl.errors import CliError
from ptctl.ui import name_cache
from ptctl.ui.app import App, Target
from ptctl.ui.output import RESOURCE, document
from ptkube.errors import AlreadyExists
from ptkube.resources import POSTTRAINJOBS, Manifest


def submit(app: App, target: Target, job: Manifest, form: str | None, dry_run: str, name_flag: str) -> None:
    """Create the job. dry_run: `none`, `client` or `server`; name_flag: the flag that gives the job another name."""
    if dry_run == "client":
        _report(app, job, form, "created (client dry run)")
        return
    kube = app.connect(target)
    name, namespace = job["metadata"]["name"], job["metadata"].get("namespace") or kube.namespace
    body = {**job, "metadata": {**job["metadata"], "namespace": namespace}}
    try:
        created = kube.create(POSTTRAINJOBS, body, dry_run=dry_run == "server", strict=True)
    except AlreadyExists as error:
        raise CliError(
            f"job {name!r} already exists in namespace {namespace!r}",
            f"choose another name with {name_flag}, or first run `ptctl workload delete {name}{target.flags} --wait`",
        ) from error
    if dry_run == "none":
        name_cache.add(replace(target, namespace=job["metadata"].get("namespace")), name)
    _report(app, created, form, "created (server dry run)" if dry_run == "server" else "created")
    if dry_run == "none" and form is None:
        app.console.say(next_commands(name, Target(namespace, target.kubeconfig, target.context), kube.namespace))


def _report(app: App, job: Manifest, form: str | None, done: str) -> None:
    app.console.data(document([job], form) if form else f"{RESOURCE}/{job['metadata']['name']} {done}")


def next_commands(name: str, target: Target, default_namespace: str) -> str:
    """Return the commands to type next, ready to copy; with -n only where it is needed."""
    namespace = target.namespace if target.namespace != default_namespace else None
    flags = Target(namespace, target.kubeconfig, target.context).flags
    return f"""
next:
  ptctl workload logs {name} -f{flags}
  ptctl workload describe {name}{flags}
  ptctl workload wait {name} --timeout 2h{flags}
  ptctl workload metrics {name}{flags}
  kubectl get ptj {name} -w{flags}
  ptctl workload delete {name}{flags}"""
