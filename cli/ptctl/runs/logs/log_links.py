"""The Cloud Logging address of a job's logs, or of one rank's, from the links in its status."""

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
    """Return the Cloud Logging address of one rank's logs, or of all ranks' without `rank`."""
    job = fetch(kube, target, name)
    job_links = part(job, "status", "links", missing={})
    link = str(job_links.get("cloudLogs" if rank is None else "cloudLogsOfRank") or "")
    if not link:
        raise CliError(
            f"job {name!r} has no link to Cloud Logging",
            "set gke.cluster in the Helm chart, so that the operator can write the link",
        )
    if rank is None:
        return link
    try:
        return links.rank_logs_link(link, layout_of(parse_job(job), Settings()), rank)
    except ValueError as error:
        raise InputError(f"--rank: {error}") from None
