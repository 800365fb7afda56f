"""The documentation site builds without the network, whole, and loads nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import posttrain

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it: a link to nowhere, or a page that no menu names, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    for document in DOCS.rglob("*.md"):
        path = document.relative_to(DOCS).with_suffix("")
        assert (site / (path.parent if path.name == "README" else path) / "index.html").exists(), path


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|img|iframe|link rel="(?:stylesheet|preconnect)")[^>]*(?:src|href)="(https?://[^"]*)"""
    )
    assert [address for page in site.rglob("*.html") for address in loads.findall(page.read_text())] == []


def test_the_reference_is_filled_in_from_the_code(site: Path) -> None:
    assert "--max-restarts" in (site / "reference/ptctl/index.html").read_text()
    page = (site / "reference/python/index.html").read_text()
    assert 'id="posttrain.client.Client.submit"' in page
    public = [getattr(posttrain, name) for name in posttrain.__all__ if name != "spec"]
    assert [one for one in public if f'id="{one.__module__}.{one.__name__}"' not in page] == []


def test_a_list_that_follows_a_sentence_is_a_list(site: Path) -> None:
    assert re.search(r"<p>Understand:</p>\s*<ul>", (site / "index.html").read_text())


def test_links_to_source_files_lead_to_the_repository(site: Path) -> None:
    page = (site / "concepts/one-grpo-step/index.html").read_text()
    assert "https://github.com/posttrain/posttrain/blob/main/" in page
