"""Hooks of mkdocs.yml: pages of the repository that are not below docs/ become pages of the site.

In the repository the links of all pages are right as they are; on the site README, ARCHITECTURE and
others are below `project/`, and files that pages name are below `repository/`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
#: Pages in the root of the repository.
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
#: Folders whose files pages link to.
_FOLDERS = ("conf", "notebooks", "benchmarks", "deploy")
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files outside docs/."""
    others = sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*"))
    for path in [*(ROOT / name for name in PAGES), ROOT / "LICENSE", *others]:
        if path.is_file() and "__pycache__" not in path.parts:
            place = _place(path.relative_to(ROOT).as_posix())
            is_page = path.name in PAGES and path.parent == ROOT
            listed = InclusionLevel.INCLUDED if is_page else InclusionLevel.NOT_IN_NAV
            file = File.generated(config, place, abs_src_path=str(path), inclusion=listed)
            files.append(file)
    return files


def on_config(config: Any) -> Any:
    """List the decisions: there are many, and each has a number."""
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    for section in config["nav"]:
        for title, entries in section.items():
            section[title] = [
                {"Decisions": [f"decisions/{name}" for name in names]}
                if isinstance(entry, dict) and "Decisions" in entry
                else entry
                for entry in entries
            ]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links of the repository lead to their places on the site."""
    own = page.file.src_uri
    source = _source(own)

    def place(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith(("mailto:", "/")):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / found).is_dir():  # a site shows no folders: its first file
            first = min(path for path in (ROOT / found).iterdir() if path.is_file())
            found = first.relative_to(ROOT).as_posix()
        link = posixpath.relpath(_place(found), posixpath.dirname(own))
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    return _LINK.sub(place, markdown)


def _place(path: str) -> str:
    """Return where a file of the repository is on the site, below docs/."""
    if path in PAGES:
        return f"project/{path.lower()}"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def _source(place: str) -> str:
    """Return the path in the repository of a page of the site."""
    if place.startswith("repository/"):
        return place.removeprefix("repository/")
    names = {_place(name): name for name in PAGES}
    return names.get(place, f"docs/{place}")
