"""What a user asks of a cluster, checked where it enters: the flags of `ptctl cluster create` as one value."""

import re
from dataclasses import dataclass, field
from datetime import datetime

from ptapi.accelerators import Slice
from ptapi.spec import CapacityOption
from ptctl.errors import InputError

CHANNELS = ("rapid", "regular", "stable", "extended")
DRIVERS = ("filestore", "parallelstore", "lustre")
"""Storage drivers besides those that every cluster gets (Cloud Storage FUSE and persistent disks)."""
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]?")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_PART = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_RESERVATION = re.compile(
    rf"(projects/[a-z0-9.:-]+/reservations/)?{_PART}(/reservationBlocks/{_PART}(/reservationSubBlocks/{_PART})?)?"
)


@dataclass(frozen=True)
class ChipPools:
    """The lasting node pools of chips: one per slice, or GPU type. options: the capacity of each."""

    accelerator: Slice
    zone: str
    options: tuple[CapacityOption, ...]


@dataclass(frozen=True)
class MaintenanceWindow:
    """When GKE may upgrade: daily from a time of day (UTC), or from start to end (RFC 3339) by an RFC 5545 rule."""

    daily: str = ""
    start: str = ""
    end: str = ""
    recurrence: str = ""


@dataclass(frozen=True)
class Network:
    """How nodes and control plane are reached. name: of the VPC. authorized: blocks that reach the control plane."""

    name: str = ""
    subnetwork: str = ""
    is_private: bool = False
    has_private_endpoint: bool = False
    authorized: tuple[str, ...] = ()


@dataclass(frozen=True)
class CpuPool:
    """The first node pool, for controllers. nodes: how many per zone at first."""

    machine: str = "e2-standard-16"
    nodes: int = 1


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster. location: a region, or a zone for a control plane in one zone. zones: of its nodes.

    pathways_machine: of the pool for Pathways' heads; empty: no such pool is made. gpu_networks: of the NICs of GPU
    machines: `tcpxo` or `rdma` to make them, or those that exist, as `settings.gpu_networks` lists them.
    """

    name: str
    project: str
    location: str
    zones: tuple[str, ...] = ()
    channel: str = "regular"
    version: str = ""
    network: Network = Network()
    cpu_pool: CpuPool = CpuPool()
    pathways_machine: str = ""
    node_service_account: str = ""
    drivers: frozenset[str] = frozenset()
    maintenance: MaintenanceWindow | None = None
    chips: ChipPools | None = None
    gpu_networks: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def region(self) -> str:
        """Return the region that the cluster lies in."""
        return region_of(self.location)

    @property
    def parent(self) -> str:
        """Return the resource name that the cluster is made in."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def path(self) -> str:
        """Return the cluster's resource name."""
        return f"{self.parent}/clusters/{self.name}"


def region_of(location: str) -> str:
    """Return the region of a zone, or the region itself."""
    return location.rpartition("-")[0] if _ZONE.fullmatch(location) else location


def checked_name(name: str) -> str:
    """Return a name that GKE takes for a cluster. Raises InputError."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"NAME: {name!r} is not a cluster's name; accepted: a letter, then lower-case letters, digits and -, "
            "at most 40 characters, no - at the end"
        )
    return name


def checked_location(flag: str, value: str, *, zone_only: bool = False) -> str:
    """Return a zone or region. Raises InputError."""
    if _ZONE.fullmatch(value) or (not zone_only and _REGION.fullmatch(value)):
        return value
    accepted = "a zone, us-east5-b" if zone_only else "a region, us-east5, or a zone, us-east5-b"
    raise InputError(f"{flag}: {value!r}; accepted: {accepted}")


def placed(location: str | None, zones: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the cluster's location and its nodes' zones. As with XPK, a zone alone means a cluster of its region."""
    for zone in zones:
        checked_location("--zone", zone, zone_only=True)
    if location:
        checked_location("--location", location)
    elif zones:
        location = region_of(zones[0])
    else:
        raise InputError(
            "--zone: not set; accepted: the zone of the chips, us-east5-b",
            "--location REGION alone leaves the choice of zones to GKE; it works without --tpu-type",
        )
    outside = [zone for zone in zones if region_of(zone) != region_of(location)]
    if outside:
        raise InputError(f"--zone: {outside[0]!r} is not in --location {location}; accepted: zones of one region")
    return location, zones


def capacity_options(
    slices: int, *, reservation: str | None, spot: bool, flex: bool, on_demand: bool
) -> tuple[CapacityOption, ...]:
    """Return how the chips of each slice are bought, from XPK's flags. Raises InputError."""
    given = {"--reservation": bool(reservation), "--spot": spot, "--flex": flex, "--on-demand": on_demand}
    flags = [flag for flag, is_given in given.items() if is_given]
    if len(flags) != 1:
        what = " and ".join(flags) + " together" if flags else "no capacity"
        raise InputError(
            f"--tpu-type: {what}; accepted: one of --reservation NAME, --spot, --flex, --on-demand",
            "without --tpu-type the operator makes node pools for each job, by its `capacity`",
        )
    if reservation:
        paths = [checked_reservation(path) for path in reservation.split(",")]
        if len(paths) not in (1, slices):
            raise InputError(
                f"--reservation: {len(paths)} reservations for {slices} slices; accepted: one, or one per slice"
            )
        paths = paths * slices if len(paths) == 1 else paths
        return tuple(CapacityOption(type="reservation", reservation=path) for path in paths)
    kind: dict[str, CapacityOption] = {
        "--spot": CapacityOption(type="spot"),
        "--flex": CapacityOption(type="flexStart"),
        "--on-demand": CapacityOption(type="onDemand"),
    }
    return (kind[flags[0]],) * slices


def checked_reservation(path: str) -> str:
    """Return the name or path of a reservation, a block or a sub-block. Raises InputError."""
    if not _RESERVATION.fullmatch(path):
        raise InputError(
            f"--reservation: {path!r}; accepted: NAME, projects/P/reservations/NAME, each also with "
            "/reservationBlocks/B and /reservationSubBlocks/S behind it"
        )
    return path


def maintenance_window(
    daily: str | None, start: str | None, end: str | None, rule: str | None
) -> MaintenanceWindow | None:
    """Return the window that gcloud's flags describe, or None. Raises InputError."""
    parts = {
        "--maintenance-window-start": start,
        "--maintenance-window-end": end,
        "--maintenance-window-recurrence": rule,
    }
    given = [flag for flag, value in parts.items() if value]
    if daily and given:
        raise InputError(f"--maintenance-window: set with {given[0]}; accepted: the daily window, or the three others")
    if daily:
        if not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", daily):
            raise InputError(f"--maintenance-window: {daily!r}; accepted: a time of day in UTC, 03:00")
        return MaintenanceWindow(daily=daily)
    if not given:
        return None
    if missing := next((flag for flag, value in parts.items() if not value), None):
        raise InputError(f"{missing}: not set; accepted: all of {', '.join(parts)}")
    begins, ends = (_time(flag, value) for flag, value in list(parts.items())[:2])
    if ends <= begins:
        raise InputError(f"--maintenance-window-end: {end!r} is not after --maintenance-window-start {start!r}")
    if not str(rule).startswith("FREQ="):
        raise InputError(f"--maintenance-window-recurrence: {rule!r}; accepted: FREQ=WEEKLY;BYDAY=SA,SU (RFC 5545)")
    return MaintenanceWindow(start=str(start), end=str(end), recurrence=str(rule))


def _time(flag: str, text: str | None) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InputError(f"{flag}: {text!r}; accepted: a time with its zone, 2026-01-03T02:00:00Z")
    return moment
