"""`ptctl image build`: a base image and a directory, pushed without a Docker daemon."""

from pathlib import Path

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl image build . --base my-registry/trainer:v1 --tag us-docker.pkg.dev/my-project/images/trainer:mine
ptctl image build src --base python:3.12-slim --tag ghcr.io/me/rewards:1 --path /app --env PYTHONPATH=/app
ptctl image build . --base IMAGE --tag IMAGE --with cloud-build --project my-project
"""


@click.command("build", cls=Verb, examples=_EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--base", required=True, metavar="IMAGE", help="The image that the directory is added to.")
@click.option("--tag", required=True, metavar="IMAGE", help="Where the image is pushed: REGISTRY/NAME:TAG.")
@click.option("--path", default="/app", metavar="PATH", help="Where the files lie in the image; its directory (/app).")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable of the image; repeatable.")
@click.option("--platform", default="linux/amd64", metavar="OS/ARCH", help="Of a base for several (linux/amd64).")
@click.option(
    "--with", "builder", type=click.Choice(("podman", "docker", "cloud-build")), help="Let this one build it."
)
@click.option("--project", metavar="ID", help="With cloud-build: the project; default: GOOGLE_CLOUD_PROJECT.")
@click.option("--dry-run", is_flag=True, help="Print the digest; push nothing.")
@pass_app
def build(
    app: App,
    directory: Path,
    base: str,
    tag: str,
    path: str,
    env: tuple[str, ...],
    platform: str,
    builder: str | None,
    project: str | None,
    dry_run: bool,
) -> None:
    """Build an image of a base and a directory, and push it.

    Without a Docker daemon: the directory is one layer, and what the registry has already is not sent. The same files
    on the same base have the same digest. .dockerignore is heeded; .git and __pycache__ stay out. The image's name by
    digest is printed. Who may push: Docker's config.json and its helpers; for Google's registries also gcloud's login.
    """
    from ptctl.cluster.images.action import build_image, recipe

    plan = recipe(directory, base, tag, path, env, platform)
    build_image(app, plan, builder, project, pushes=not dry_run)
