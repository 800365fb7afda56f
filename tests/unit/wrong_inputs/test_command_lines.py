"""Wrong command lines of every verb: the whole program in this process, on a cluster without jobs."""

import io
import shlex
from pathlib import Path
from typing import cast

import pytest
import yaml
from tests.unit.ptapi.test_wrong_manifests import GOOD
from tests.unit.ptctl.conftest import FakeKube
from tests.unit.wrong_inputs import tables

from ptctl.cli import COMMANDS, root
from ptctl.ui.app import App
from ptctl.ui.console import Console
from ptctl.ui.exit_codes import report
from ptkube.client import Kube

FILES = {
    "good.yaml": yaml.safe_dump(GOOD).encode(),
    "empty.yaml": b"",
    "binary.yaml": b"\x89PNG\xff\xfe",
    "list.yaml": b"- a\n",
    "pod.yaml": b"kind: Pod\n",
    "nul.yaml": b"a: \x00",
    "variables": b"A=b\nnonsense\n",
    "latin": b"A=\xe9\n",
    "rows.jsonl": b'{"a": 1}\n',
    "prices.yaml": b"v6e: cheap\n",
}


def test_golden_wrong_command_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "directory").mkdir()
    monkeypatch.chdir(tmp_path)
    tables.check("command_lines", _answer)


def _answer(line: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    app = App(Console(out, err, {}), lambda target: cast(Kube, FakeKube()))
    try:
        result = root.main(shlex.split(line), prog_name="ptctl", standalone_mode=False, obj=app)
        code = result if isinstance(result, int) else 0
    except BaseException as error:
        code = report(error, app.console)
    assert "a bug in ptctl" not in err.getvalue(), f"{line}: {err.getvalue()}"
    answer = err.getvalue().replace(", ".join(COMMANDS), "COMMANDS")
    return f"exit {code}\n{answer}" if code else tables.ACCEPTED
