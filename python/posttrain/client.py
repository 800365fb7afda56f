"""A cluster's jobs: submit, get, list. Imports of the Kubernetes client happen here, when a Client is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.errors import Error, NotFound, translated
from posttrain.run import Run, Runs
from ptkube.errors import AlreadyExists
from ptkube.errors import NotFound as MissingObject
from ptkube.resources import POSTTRAINJOBS

if TYPE_CHECKING:
    from posttrain.job import PostTrainJob


class Client:
    """A connection to a cluster: the given kubeconfig, else KUBECONFIG, ~/.kube/config or the pod's service account.

    As for `ptctl`, the embedded cluster is never chosen silently: `Client.local()` chooses it.
    """

    def __init__(
        self, kubeconfig: str | None = None, *, context: str | None = None, namespace: str | None = None
    ) -> None:
        from ptkube.client import Kube

        with translated():
            self._kube = Kube.load(kubeconfig, context)
        self.namespace = namespace or self._kube.namespace
        """Where jobs are that name no namespace."""

    @classmethod
    def local(cls, namespace: str | None = None) -> Client:
        """Return a client of the embedded cluster. Raises Error if it does not run."""
        from ptctl import local_cluster

        if not local_cluster.is_up():
            raise Error("the embedded cluster does not run", "`ptctl local up` starts it")
        return cls(str(local_cluster.kubeconfig()), namespace=namespace)

    def submit(self, job: PostTrainJob) -> Run:
        """Create the job and return its run. Raises Error if there is one of that name, or the server refuses it."""
        manifest = job.manifest()
        namespace = job.namespace or self.namespace
        manifest["metadata"]["namespace"] = namespace
        with translated():
            try:
                return Run(self._kube, self._kube.create(POSTTRAINJOBS, manifest, strict=True))
            except AlreadyExists as error:
                raise Error(
                    f"job {job.name!r} already exists in namespace {namespace!r}",
                    f"choose another name, take it by client.get({job.name!r}), or delete it first",
                ) from error

    def get(self, name: str, namespace: str | None = None) -> Run:
        """Return the run of a job. Raises NotFound."""
        namespace = namespace or self.namespace
        with translated():
            try:
                return Run(self._kube, self._kube.get(POSTTRAINJOBS, name, namespace))
            except MissingObject as error:
                if "not find the requested resource" in str(error):
                    raise
                names = ", ".join(run.name for run in self.list(namespace)[:12])
                hint = f"jobs there: {names}" if names else "there are no jobs in this namespace"
                raise NotFound(f"job {name!r} does not exist in namespace {namespace!r}", hint) from error

    def list(self, namespace: str | None = None, *, labels: str | None = None, everywhere: bool = False) -> Runs:
        """Return the runs of a namespace's jobs (everywhere: of all), by a label selector such as `team=search`."""
        with translated():
            jobs = self._kube.list(POSTTRAINJOBS, None if everywhere else namespace or self.namespace, labels=labels)
        return Runs(Run(self._kube, job) for job in jobs.items)

    @property
    def local_output(self) -> str | None:
        """Return a directory for what functions return, if this is the embedded cluster; None for others."""
        from ptctl import local_cluster

        kubeconfig = local_cluster.kubeconfig()
        is_local = kubeconfig.is_file() and self._kube.access.server in kubeconfig.read_text(encoding="utf-8")
        return str(kubeconfig.parent / "functions") if is_local else None

    def close(self) -> None:
        """Cut the connections, with running waits and log streams."""
        self._kube.close()

    def __repr__(self) -> str:
        return f"Client({self._kube.access.server!r}, namespace={self.namespace!r})"
