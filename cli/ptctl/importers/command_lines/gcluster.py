"""`gcluster job submit` (Cluster Toolkit), XPK's successor."""

from ptapi import accelerators
from ptapi.errors import SpecError
from ptctl.importers.command_lines.flags import ParsedFlags, Tool, put_flags, put_pathways_flags, read_flags
from ptctl.importers.command_lines.shell import Command
from ptctl.importers.draft import Draft
from ptctl.importers.program import put_program
from ptctl.importers.tpus import put_machine

_FLAGS = {
    "--name": "workload",
    "-n": "workload",
    "--compute-type": "tpu_type",
    "--num-slices": "num_slices",
    "--image": "docker_image",
    "-i": "docker_image",
    "--command": "command",
    "-e": "command",
    "--env": "env",
    "--queue": "queue",
    "-q": "queue",
    "--priority": "priority",
    "--gke-nap-reservation": "reservation",
    "--restarts": "max_restarts",
    "--gke-ttl-after-finished": "ttl_seconds_after_finished",
    "--grace-period": "termination_grace_period_seconds",
    "--service-account": "service_account",
    "--pathways-elastic-slices": "elastic_slices",
    "--pathways-server-image": "server_image",
    "--pathways-proxy-server-image": "proxy_server_image",
}
_SWITCHES = {"--pathways-headless": "headless"}
_OTHER_SWITCHES = frozenset(("--pathways", "--await-job-completion", "--verbose", "--skip-prereqs",
                             "--gke-disable-parallel-containers"))  # fmt: skip
_ADVICE = {
    "-c": "the cluster comes from kubeconfig: --context NAME, --kubeconfig PATH or KUBECONFIG",
    "-l": "`ptctl cluster credentials CLUSTER --location PLACE`, then --context",
    "--location": "`ptctl cluster credentials CLUSTER --location PLACE`, then --context",
    "-p": "`ptctl cluster credentials CLUSTER --project ID`, then --context",
    "-B": "`ptctl image build DIRECTORY --base IMAGE --tag IMAGE` builds one; pass it with --docker-image",
    "-b": "build an image (see Dockerfile), because nothing builds it here",
    "-f": "build an image (see Dockerfile), because nothing builds it here",
    "-o": "this manifest is it",
    "--skip-prereqs": "ptctl needs no gcloud, kubectl or docker",
    "--pathways-head-np": "Pathways' head goes where CPU nodes have room for it",
}
_CAPACITY = {"spot": "spot", "flex-start": "flex", "flex": "flex", "on-demand": "on_demand"}
TOOL = Tool("gcluster job submit", _FLAGS, _SWITCHES, _OTHER_SWITCHES, _ADVICE)


def is_submit(command: Command) -> bool:
    """Return True for a command that submits a job; `gcluster` may be a path."""
    return command.words[0].rpartition("/")[2] == "gcluster" and command.words[1:3] == ("job", "submit")


def draft_of(command: Command) -> Draft:
    """Return the job of a command."""
    draft, parsed = Draft("`gcluster job submit`"), read_flags(command.words[3:], TOOL)
    namespace = parsed.other("--gke-namespace")
    if namespace:
        draft.put("metadata.namespace", namespace, "--gke-namespace")
    _put_chips(draft, parsed)
    _put_capacity(parsed)
    if parsed.other("--pathways") is not None:
        draft.put("spec.pathways.enabled", True, "--pathways")
    put_pathways_flags(draft, parsed)
    put_flags(draft, parsed, TOOL)
    put_program(draft, parsed.known.get("command"))
    return draft


def _put_chips(draft: Draft, parsed: ParsedFlags) -> None:
    """Read `--compute-type v6e-16`, or a machine type with `--topology`."""
    topology, compute = parsed.other("--topology"), parsed.known.get("tpu_type")
    if compute is None:
        return
    try:
        accelerators.resolve(compute, topology, 1)
    except SpecError:
        if put_machine(draft, compute, topology):
            del parsed.known["tpu_type"]
            return
    if topology:
        draft.put("spec.accelerator.topology", topology, "--topology")


def _put_capacity(parsed: ParsedFlags) -> None:
    way = parsed.other("--gke-nap-provisioning")
    if way in _CAPACITY:
        parsed.known[_CAPACITY[way]] = True
    elif way is not None and not (way == "reservation" and "reservation" in parsed.known):
        parsed.others.append(("--gke-nap-provisioning", way))
