"""Command lines of helm, carried out by Helm's own code: the Go SDK of the wheel, which comes without the program.

Only the flags that our pages use are known. `typed` refuses a line that the guides to install and upgrade lack.
"""

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

import helm_python
from helm_python import _native  # the wheel's own methods leave out take_ownership and server_side_apply

from ptapi.spec import API_GROUP, PLURAL

CRD = f"{PLURAL}.{API_GROUP}"
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "posttrain"
GUIDES = ROOT / "docs" / "guides"
PAGES = (GUIDES / "install.md", GUIDES / "upgrade.md")
FLAGS = ("create_namespace", "take_ownership", "force_conflicts", "reset_then_reuse_values")
Refused = helm_python.HelmError


def lines_of(page: Path) -> list[str]:
    """Its commands, each in one line, without comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [" ".join(line.partition("  #")[0].split()) for line in lines if line]


def typed_lines() -> list[str]:
    """The lines of the pages that the tests type."""
    return [line for page in PAGES for line in lines_of(page)]


class Helm:
    """is_server_side: as Helm 4 installs (server-side apply); False: as Helm 3 does. An upgrade does as the install."""

    def __init__(self, kubeconfig: Path, *, is_server_side: bool = True) -> None:
        self._kubeconfig = kubeconfig
        self._is_server_side = is_server_side

    def typed(self, line: str, *more: str, chart: Path = CHART) -> None:
        """A line of the pages, and what this test adds to it."""
        assert line in typed_lines(), f"{line}: no line of {', '.join(page.name for page in PAGES)}"
        self.run(shlex.join([*shlex.split(line), *more]), chart=chart)

    def run(self, line: str, *, chart: Path = CHART) -> None:
        """chart: stands for charts/posttrain of the line. Raises Refused with Helm's words."""
        command = _parser().parse_args(shlex.split(line)[1:])
        with helm_python.Config(kubeconfig_path=self._kubeconfig, namespace=command.namespace) as config:
            match command.verb:
                case "uninstall":
                    config.uninstall(command.name)
                case "rollback":
                    config.rollback(command.name)
                case _:
                    self._install_or_upgrade(config, command, chart)

    def releases(self) -> list[tuple[str, str]]:
        """(name, namespace) of all that are there, in whatever state."""
        with helm_python.Config(kubeconfig_path=self._kubeconfig) as config:
            listed = config.list(all_states=True, all_namespaces=True)
        return [(each["name"], each["namespace"]) for each in listed]

    def _install_or_upgrade(self, config: helm_python.Config, command: argparse.Namespace, chart: Path) -> None:
        assert command.chart == "charts/posttrain", command.chart
        options: dict[str, Any] = {flag: True for flag in FLAGS if getattr(command, flag, False)}
        options["namespace"] = command.namespace
        if command.verb == "install":
            options["server_side_apply"] = self._is_server_side
        values = helm_python.parse_set_string(",".join(command.set)) if command.set else {}
        none = _native.HANDLE(0)
        handles = (config._raw(), none, none)
        call = f"helm_{command.verb}"
        _native.call_string(call, *handles, str(chart), command.name, json.dumps(values), json.dumps(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("helm", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("install", "upgrade", "uninstall", "rollback"):
        of_verb = verbs.add_parser(verb, allow_abbrev=False)
        of_verb.add_argument("name")
        of_verb.add_argument("--namespace", "-n", default="default")
        if verb in ("install", "upgrade"):
            of_verb.add_argument("chart")
            of_verb.add_argument("--set", action="append", default=[])
            of_verb.add_argument("--take-ownership", action="store_true")
            of_verb.add_argument("--force-conflicts", action="store_true")
        if verb == "install":
            of_verb.add_argument("--create-namespace", action="store_true")
        if verb == "upgrade":
            of_verb.add_argument("--reset-then-reuse-values", action="store_true")
    return parser
