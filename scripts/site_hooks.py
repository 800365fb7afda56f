"""Hooks of mkdocs, for pages that are read in the repository as well, where links to source files and folders work.

A link that leaves docs/ goes to the repository, a link to a folder of docs/ to its first page; a folder in the table of
contents stands for all its pages. A list may follow a paragraph without an empty line, as in the repository.
"""

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

_FENCES = re.compile(r"^(```.*?^```)$", re.DOTALL | re.MULTILINE)
_LIST_AFTER_TEXT = re.compile(r"^(?!\s*(?:[-*]|\d+\.) |\s*$)(\S.*)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Replace each folder in the table of contents by its pages; README.md, which comes first, is the folder's own."""
    docs = Path(config.docs_dir)

    def pages(folder: Path) -> list[str]:
        return [str(page.relative_to(docs)) for page in sorted(folder.glob("*.md"))]

    for part in config.nav:
        for title, entry in part.items():
            if isinstance(entry, str) and entry.endswith("/"):
                part[title] = pages(docs / entry)
    return config


def on_page_markdown(markdown: str, /, *, page: Any, config: Any, files: Any) -> str:
    """Return the page's text with links and lists as mkdocs takes them; its strict mode refuses links to nowhere."""
    docs = Path(config.docs_dir)

    def mended(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        path = Path(normpath(docs / Path(page.file.src_uri).parent / target))
        if not path.exists():
            return match[0]
        if docs not in path.parents:
            kind = "tree" if path.is_dir() else "blob"
            return f"]({config.repo_url}/{kind}/main/{path.relative_to(docs.parent)}{anchor})"
        return f"]({target.rstrip('/')}/README.md{anchor})" if path.is_dir() else match[0]

    parts = _FENCES.split(_LINK.sub(mended, markdown))
    return "".join(part if part.startswith("```") else _LIST_AFTER_TEXT.sub(r"\1\n\n", part) for part in parts)
