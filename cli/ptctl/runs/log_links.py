"""Where Cloud Logging keeps the logs of a job, or of one of its ranks: from the links in its status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptapi.load import parse_job
from ptctl.errors import CliError, InputError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import part
from ptctl.ui.app import Target
from ptoperator.render import layout_of
from ptoperator.settings import Settings
from ptoperator.status import links

if TYPE_CHECKING:
    from ptkube.client import Kube


def link_of(kube: Kube, target: Target, name: str, rank: int | None) -> str:
    """The address; of all ranks without `rank`."""
    job = fetch(kube, target, name)
    found = part(job, "status", "links", missing={})
    link = str(found.get("cloudLogs" if rank is None else "cloudLogsOfRank") or "")
    if not link:
        raise CliError(
            f"job {name!r} has no link to Cloud Logging",
            "the operator knows the cluster's address with gke.cluster set",
        )
    if rank is None:
        return link
    try:
        return links.rank_logs_link(link, layout_of(parse_job(job), Settings()), rank)
    except ValueError as error:
        raise InputError(f"--rank: {error}") from None
