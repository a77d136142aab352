"""constraints.txt: every package that is needed, at one release, with the hashes of its files."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.architecture.source_tree import ROOT

import sparktxlog

_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^ ]+)( ; [^\\]+)?")


def pins(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return the pinned packages of a file: name → version and the lines of hashes."""
    text = (ROOT / name).read_text()
    found = {}
    for block in re.split(r"\n(?=[^ #])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)):
        lines = [line.strip().removesuffix("\\").strip() for line in block.strip().splitlines()]
        match = _PIN.fullmatch(lines[0])
        assert match is not None, lines[0]
        found[canonicalize_name(match[1])] = (match[2], lines[1:])
    return found


def test_every_pin_has_hashes() -> None:
    files = sorted(path.name for path in ROOT.glob("constraints*.txt"))
    assert len(files) == 13
    for file in files:
        found = pins(file)
        assert found
        for name, (_, hashes) in found.items():
            assert hashes, name
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), name


def test_each_integration_is_of_this_release_and_needs_what_was_tested() -> None:
    tested = pins("constraints-orchestration.txt")
    found = sorted((ROOT / "integrations").glob("*/pyproject.toml"))
    assert len(found) == 3
    for path in found:
        project = tomllib.loads(path.read_text())["project"]
        release = sparktxlog.__version__
        other, own = (Requirement(text) for text in project["dependencies"])
        assert (project["version"], str(own)) == (release, f"sparktxlog=={release}")
        assert other.specifier.contains(tested[canonicalize_name(other.name)][0]), other


def test_all_that_the_package_needs_is_pinned_as_it_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]
    extras_of_project = project["optional-dependencies"]
    traced = pins("constraints-tracing.txt")
    for part in (Requirement(text) for text in extras_of_project.pop("otel")):
        assert part.specifier.contains(traced[canonicalize_name(part.name)][0]), part
    locked = pins("constraints.txt")
    assert all(traced[name][0] == locked[name][0] for name in traced.keys() & locked.keys())
    wanted += [Requirement(t) for part in extras_of_project.values() for t in part]
    found, seen = pins("constraints.txt"), set()
    while wanted:
        needed = wanted.pop()
        name = canonicalize_name(needed.name)
        if name == "sparktxlog" or (name, *sorted(needed.extras)) in seen:
            continue
        seen.add((name, *sorted(needed.extras)))
        pinned = found[name][0]
        assert needed.specifier.contains(pinned, prereleases=True), needed
        assert version(name) == pinned
        for text in requires(name) or ():
            further = Requirement(text)
            marker = further.marker
            extras = needed.extras or {""}
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(further)
    assert len(seen) > 50
