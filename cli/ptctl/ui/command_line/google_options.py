"""Options of verbs that talk to Google Cloud, with gcloud's and XPK's names."""

import click

from ptctl.ui.command_line.options import Function, configured, context_options


def project(function: Function) -> Function:
    """Add --project."""
    return click.option(
        "--project", metavar="ID", help="Google Cloud project; default: $GOOGLE_CLOUD_PROJECT, else the credentials'."
    )(function)


def location(function: Function) -> Function:
    """Add --location; without it the cluster is looked for everywhere in the project."""
    return click.option(
        "--location",
        metavar="PLACE",
        help="Region or zone of the cluster; default: wherever the name is found.",
        default=configured("location"),
    )(function)


def cluster_name(function: Function) -> Function:
    """Add the cluster's name: an argument, or XPK's --cluster; passed to the verb as `name`."""
    function = click.option("--cluster", "cluster_flag", metavar="NAME", help="Same as NAME; XPK's flag.")(function)
    return click.argument("name", required=False)(function)


def one_name(name: str | None, cluster_flag: str | None) -> str:
    """Return the name from the argument or the flag. Raises UsageError for none or two."""
    if bool(name) == bool(cluster_flag):
        raise click.UsageError(
            "NAME and --cluster are both set; accepted: one of them" if name else "Missing argument 'NAME'.",
            click.get_current_context(),
        )
    return name or cluster_flag or ""


def install_options(function: Function) -> Function:
    """Add the cluster (of GKE by its name, else the kubeconfig's) and what an installation is made of."""
    function = context_options(function)
    for option in (
        click.option(
            "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Format of --dry-run."
        ),
        click.option("--dry-run", is_flag=True, help="Print every object and apply none."),
        click.option("--kueue-manifests", metavar="FILE|URL", help="Kueue's release, applied if Kueue is missing."),
        click.option("--jobset-manifests", metavar="FILE|URL", help="JobSet's release, applied if JobSet is missing."),
        click.option("--queue-namespace", multiple=True, metavar="NS", help="Namespace with a queue [default]."),
        click.option(
            "--quota", multiple=True, metavar="TYPE=SLICES", help="Chips for Kueue's queue `posttrain`; repeatable."
        ),
        click.option("--node-service-account", default="", metavar="EMAIL", help="Google account of new nodes."),
        click.option("--operator-service-account", default="", metavar="EMAIL", help="Google account of the operator."),
        click.option("--gpu-networks", default="", metavar="LIST", help="Networks of GPUs' NICs, NAME=VPC/SUBNET, …."),
        click.option("--gpu-trainer-image", default="", metavar="IMAGE", help="Image of jobs on GPUs that name none."),
        click.option("--trainer-image", required=True, metavar="IMAGE", help="Image of jobs that name none."),
        click.option("--image", required=True, metavar="IMAGE", help="Image of the operator."),
        location,
        project,
        click.option("--cluster", "cluster_flag", metavar="NAME", help="Same as NAME; XPK's flag."),
        click.argument("name", required=False),
    ):
        function = option(function)
    return function
