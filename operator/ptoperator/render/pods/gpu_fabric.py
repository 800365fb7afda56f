"""What a pod needs so that its GPUs reach those of other machines: networks, a daemon, NCCL's plugin and its settings.

Two fabrics, as in Google's examples (GoogleCloudPlatform/container-engine-accelerators): GPUDirect-TCPXO on a3-mega,
with a daemon beside the trainer, and GPUDirect RDMA (gIB) on a3-ultra and a4. Google's DaemonSets put the plugins on
the nodes; their profile scripts set NCCL's variables, so that these follow the installed version.

The one idea: the administrator names the networks of the cluster (POSTTRAIN_GPU_NETWORKS). Without names, machines talk
over their first interface: slow, but nothing else must be set up. Never run on GPUs by us. Left out: GPUDirect-TCPX
(a3-high), and DRANET, which takes claims instead of annotations.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ptkube.resources import Manifest
from ptoperator.render.layout import Layout
from ptoperator.settings import gpu_networks

DAEMON = "tcpxo-daemon"
_LIBRARIES, _GIB, _APERTURES = "/usr/local/nvidia", "/usr/local/gib", "/dev/aperture_devices"
_DEVICES = [*(f"/dev/nvidia{index}" for index in range(8)), "/dev/nvidiactl", "/dev/nvidia-uvm",
            "/dev/dmabuf_import_helper"]  # fmt: skip
_HEALTH = "/run/health-check"
_SOURCED = 'source "$0" && exec "$@"'


@dataclass(frozen=True)
class _Directory:
    """A directory of the node, and its place in a container."""

    name: str
    node: str
    container: str


_OF_FABRIC = {
    "tcpxo": (
        _Directory("nvidia", "/home/kubernetes/bin/nvidia", _LIBRARIES),
        _Directory("aperture-devices", _APERTURES, _APERTURES),
    ),
    "rdma": (
        _Directory("nvidia", "/home/kubernetes/bin/nvidia", _LIBRARIES),
        _Directory("gib", "/home/kubernetes/bin/gib", _GIB),
    ),
}
_OF_DAEMON = (
    _Directory("nvidia", "/home/kubernetes/bin/nvidia", _LIBRARIES),
    _Directory("sys", "/sys", "/hostsysfs"),
    _Directory("proc-sys", "/proc/sys", "/hostprocsysfs"),
)
_PROFILES = {"tcpxo": f"{_LIBRARIES}/lib64/nccl-env-profile.sh", "rdma": f"{_GIB}/scripts/set_nccl_env.sh"}
_ENVIRONMENT = {
    "tcpxo": {
        "NCCL_LIB_DIR": f"{_LIBRARIES}/lib64",
        "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": _APERTURES,
    },
    "rdma": {"LD_LIBRARY_PATH": f"{_LIBRARIES}/lib64:{_GIB}/lib64"},
}


def fabric(layout: Layout) -> str:
    """Return the fabric between the job's machines; empty where they talk over their first interface.

    So do those of one fabric in a cluster that has the networks of the other.
    """
    kind = layout.accelerator.fabric
    return kind if kind == gpu_networks.fabric(layout.settings.gpu_networks) else ""


def annotations(layout: Layout) -> dict[str, str]:
    """Return the pod's annotations: its interfaces, and the devices of the daemon."""
    kind = fabric(layout)
    if not kind:
        return {}
    made = {
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": json.dumps(_interfaces(layout), indent=1),
    }
    if kind == "tcpxo":
        made[f"devices.gke.io/container.{DAEMON}"] = "".join(f"- path: {path}\n" for path in _DEVICES)
    return made


def environment(layout: Layout) -> dict[str, str]:
    """Return the trainer's variables, besides those that the profile script sets.

    GKE puts the driver's libraries where no linker of the image looks, and sets no variable.
    """
    return {"LD_LIBRARY_PATH": f"{_LIBRARIES}/lib64"} | _ENVIRONMENT.get(fabric(layout), {})


def sidecars(layout: Layout) -> list[Manifest]:
    """Return the daemon that moves data between GPUs and NICs, as a native sidecar: it ends with the trainer.

    It fails at once on a broken host: its start is probed, as Google's best practices have it.
    """
    if fabric(layout) != "tcpxo":
        return []
    nics = len(_interfaces(layout)) - 1
    script = (
        "set -ex\nchmod 755 /fts/entrypoint_rxdm_container.sh\n"
        f"exec /fts/entrypoint_rxdm_container.sh --num_hops=2 --num_nics={nics} --uid= --alsologtostderr\n"
    )
    probe = {
        "exec": {"command": ["cat", _HEALTH]},
        "initialDelaySeconds": 1,
        "periodSeconds": 5,
        "failureThreshold": 24,
    }
    return [
        {
            "name": DAEMON,
            "image": layout.settings.gpu_tcpxo_image,
            "command": ["/bin/sh", "-c", script],
            "env": [
                {"name": "LD_LIBRARY_PATH", "value": f"{_LIBRARIES}/lib64"},
                {"name": "HEALTH_CHECK_LOG_FILE", "value": _HEALTH},
            ],
            "restartPolicy": "Always",
            "startupProbe": probe,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            # It changes routes and devices, so it is the one container that is root.
            "securityContext": {
                "runAsUser": 0,
                "runAsGroup": 0,
                "runAsNonRoot": False,
                "capabilities": {"add": ["NET_ADMIN", "NET_BIND_SERVICE"]},
            },
            "volumeMounts": _mounts(_OF_DAEMON),
        }
    ]


def mounts(layout: Layout) -> list[Manifest]:
    """Return the trainer's mounts of the node's directories."""
    return _mounts(_OF_FABRIC.get(fabric(layout), ()))


def volumes(layout: Layout) -> list[Manifest]:
    """Return the pod's volumes for them and for the daemon."""
    kind = fabric(layout)
    needed = {each.name: each for each in (*_OF_FABRIC.get(kind, ()), *(_OF_DAEMON if kind == "tcpxo" else ()))}
    return [{"name": name, "hostPath": {"path": each.node}} for name, each in needed.items()]


def command(layout: Layout, words: Sequence[str]) -> list[str]:
    """Return a command with the fabric's profile sourced before it; the program takes the shell's place."""
    profile = _PROFILES.get(fabric(layout))
    return list(words) if profile is None else ["/bin/bash", "-c", _SOURCED, profile, *words]


def _interfaces(layout: Layout) -> list[dict[str, str]]:
    """Return eth0, then those of the named networks, by their place; of RDMA nodes, those of RDMA NICs."""
    known = gpu_networks.parse(layout.settings.gpu_networks)
    named = [
        {"interfaceName": f"eth{index}", "network": each.name}
        for index, each in enumerate(known, start=1)
        if fabric(layout) != "rdma" or each.is_rdma
    ]
    return [{"interfaceName": "eth0", "network": "default"}, *named]


def _mounts(directories: Sequence[_Directory]) -> list[Manifest]:
    return [{"name": each.name, "mountPath": each.container} for each in directories]
