"""Build what a release is made of, and check it: wheel, source, image, chart.

`make release` runs it.  Nothing is signed and nothing is uploaded.  It builds from the committed
files, so it refuses a tree with changes.  What cannot be done here (neither Docker nor Podman, no
registry, no Helm, no such Python) is left out, and the table says so.  Exit code 1 if a check
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import images

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: What the source distribution has beside the package.
IN_SOURCE = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")
FOLDERS_IN_SOURCE = ("conf", "deploy", "docs", "jobs", "notebooks", "src")
#: It has 1.8 MB; a picture or a data set that slips in is found.
MOST_WHEEL_BYTES = 2_000_000
#: Without extras, what it needs included.
MOST_INSTALLED_BYTES = 60_000_000
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")

#: Extra → what must run where it is installed and no other is; "" = the package alone.
SMOKE = {
    "": "import sparktxlog as s; s.Client; s.Level; s.TableDefinition",
    "arrow": "import sparktxlog as s, pyarrow; s.Client; "
    "from sparktxlog.api.given_data import arrow_table; arrow_table(pyarrow.table({'a': [1]}))",
    "node": "import sparktxlog.service.application, sparktxlog.runtime.node",
    "spark": "import sparktxlog as s; s.connect; s.build_session; s.register",
    "s3": "from sparktxlog.files.stores.opening import store_at; store_at('s3://lake/a')",
    "azure": "from sparktxlog.files.stores.opening import store_at; "
    "store_at('abfss://lake@account.dfs.core.windows.net/a')",
    "gcs": "from sparktxlog.files.stores.opening import store_at; store_at('gs://lake/a')",
    "otel": "from sparktxlog.tracing import span_provider; "
    "span_provider('a', 'b', 'http://127.0.0.1:1').shutdown()",
}
#: They install one library, which reaches the buckets of all three.
BUCKETS = ("s3", "azure", "gcs")
#: Extras that bring what another one does.
WITH = {"arrow": ("node", "spark"), "s3": BUCKETS}
#: Extra → command that must name it where it is missing, and what is run.
REFUSALS = {
    "arrow": ["-c", "import sparktxlog as s; s.Client('http://127.0.0.1:1').background()"],
    "node": ["-m", "sparktxlog.cli", "serve"],
    "spark": ["-c", "import sparktxlog; sparktxlog.connect"],
    "s3": ["-c", "from sparktxlog.files.stores.opening import store_at; store_at('s3://lake/a')"],
}


@dataclass
class Report:
    """What was checked, with what came out."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def check(self, what: str, work: Callable[[], str]) -> bool:
        """Do a check and note its result; an exception is a failure."""
        begun = time.monotonic()
        try:
            said, verdict = work(), "good"
        except LeftOutError as error:
            said, verdict = str(error), "left out"
        except Exception as error:  # noqa: BLE001 - the table has all of them
            said, verdict = " ".join(str(error).split())[-300:], "FAILED"
        self.rows.append((what, verdict, said))
        seconds = time.monotonic() - begun
        print(f"{verdict:8}  {what}: {said}  ({seconds:.0f} s)", flush=True)
        return verdict == "good"

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(verdict == "FAILED" for _, verdict, _ in self.rows)

    def table(self) -> str:
        """Return the table in Markdown."""
        lines = ["| checked | result | |", "|---|---|---|"]
        return "\n".join(lines + [f"| {' | '.join(row)} |" for row in self.rows])


class LeftOutError(Exception):
    """A check cannot be made here."""


def linked(readme: str, home: str) -> str:
    """Return a README whose links also lead somewhere outside the repository.

    Args:
        home: Where the files of this release are shown, without a slash at its end; empty =
            nowhere: a link to a file of the repository becomes its text, a picture its description.
    """

    def place(match: re.Match[str]) -> str:
        sign, text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        if home:
            return f"{sign}[{text}]({home}/{target})"
        return text

    return _LINK.sub(place, readme)


def urls_of(home: str) -> str:
    """Return the part of pyproject.toml that says where a release is shown; see `linked`."""
    pages = {"Homepage": "README.md", "Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return "\n[project.urls]\n" + "".join(
        f'{name} = "{home}/{page}"\n' for name, page in pages.items()
    )


def wheel_problems(names: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Return what is wrong with the files of a wheel.

    Args:
        names: Paths in the wheel.
        sources: Committed files below `src/`, as paths below it.
    """
    metadata = [name for name in names if ".dist-info/" in name]
    files = set(names) - set(metadata)
    lost, foreign = sorted(set(sources) - files), sorted(files - set(sources))
    problems = [f"lacks {name}" for name in lost] + [f"has {name}" for name in foreign]
    if not any(name.endswith("/licenses/LICENSE") for name in metadata):
        problems.append("lacks the license")
    return problems


def source_problems(names: Sequence[str], committed: Sequence[str]) -> list[str]:
    """Return what a source distribution lacks of the committed files that users need."""
    there = {name.partition("/")[2] for name in names}
    wanted = [
        name
        for name in committed
        if name in IN_SOURCE or name.partition("/")[0] in FOLDERS_IN_SOURCE
    ]
    return [f"lacks {name}" for name in wanted if name not in there]


def committed_files() -> list[str]:
    """Return the committed files, as paths below the repository."""
    return _run("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")


def found_pythons() -> dict[str, str | None]:
    """Return release → interpreter, None where there is none of that release."""
    found: dict[str, str | None] = {}
    for release in PYTHONS:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        paths = sorted(pyenv.glob(f"{release}.*/bin/python"))
        names = [shutil.which(f"python{release}"), *map(str, paths)]
        found[release] = next((name for name in names if name and _is(name, release)), None)
    return found


def _is(interpreter: str, release: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == release


def _run(*command: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARKTXLOG_"))}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=kept | (environ or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:120]}: {(done.stdout + done.stderr)[-900:]}")
    return done.stdout


def build(work: Path, out: Path, home: str) -> tuple[Path, Path]:
    """Build the source distribution of the committed files, and the wheel of that; return both."""
    tree = work / "tree"
    tree.mkdir()
    archive = work / "tree.tar"
    _run("git", "archive", "--output", str(archive), "HEAD", cwd=ROOT)
    with tarfile.open(archive) as source:
        source.extractall(tree, filter="data")
    readme = tree / "README.md"
    readme.write_text(linked(readme.read_text(), home))
    if home:
        with (tree / "pyproject.toml").open("a") as project:
            project.write(urls_of(home))
    backend = "import setuptools.build_meta as b; print(b.build_{}({!r}))"
    sdist = _run(sys.executable, "-c", backend.format("sdist", str(out)), cwd=tree).split()[-1]
    with tarfile.open(out / sdist) as source:
        source.extractall(work, filter="data")
    unpacked = work / sdist.removesuffix(".tar.gz")
    wheel = _run(sys.executable, "-c", backend.format("wheel", str(out)), cwd=unpacked).split()[-1]
    return out / sdist, out / wheel


def check_contents(sdist: Path, wheel: Path) -> str:
    """Check that wheel and source have what they must; return their sizes."""
    committed = committed_files()
    sources = [name.removeprefix("src/") for name in committed if name.startswith("src/")]
    with zipfile.ZipFile(wheel) as file:
        problems = wheel_problems(file.namelist(), sources)
    with tarfile.open(sdist) as file:
        problems += source_problems(file.getnames(), committed)
    size = wheel.stat().st_size
    if size > MOST_WHEEL_BYTES:
        problems.append(f"the wheel has {size:,} B, more than {MOST_WHEEL_BYTES:,}")
    if problems:
        raise ValueError("; ".join(problems[:10]))
    return f"wheel {size / 1e6:.2f} MB, source {sdist.stat().st_size / 1e6:.2f} MB"


def package_version() -> str:
    """Return the version of the package."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src/sparktxlog/__init__.py").read_text())
    assert found is not None
    return found[1]


def check_urls(wheel: Path, home: str) -> str:
    """Check that a wheel names the pages of its release; return how many.

    Raises:
        LeftOutError: Nobody said where they are, and it names none.
    """
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        text = file.read(name).decode()
    named = re.findall(r"^Project-URL: \w+, (\S+)$", text, re.MULTILINE)
    wanted = re.findall(r'= "(\S+)"', urls_of(home)) if home else []
    if named != wanted:
        raise ValueError(f"the wheel names {named}, not {wanted}")
    if not home:
        raise LeftOutError(
            "the package names no pages, and the links of its README are text: "
            'make release RELEASE_ARGS="--home URL", where URL/README.md is that of this release'
        )
    return f"{len(named)} pages below {home}"


def check_versions() -> str:
    """Check that package, chart, integrations and changelog say one version; return it."""
    version = package_version()
    chart = (ROOT / "deploy/helm/sparktxlog/Chart.yaml").read_text()
    said = re.findall(r'^(?:version|appVersion): "?([^"\n]+)"?$', chart, re.MULTILINE)
    for path in (ROOT / "integrations").glob("*/pyproject.toml"):
        said.append(tomllib.loads(path.read_text())["project"]["version"])
    for path in (ROOT / "integrations").glob("*/dbt_project.yml"):
        said += re.findall(r'^version: "?([^"\n]+)"?$', path.read_text(), re.MULTILINE)
    dated = re.findall(
        r"^## ([\d.]+) – \d{4}-\d{2}-\d{2}$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    said += dated[:1] or ["no dated section of the changelog"]
    if set(said) != {version}:
        raise ValueError(f"the package is {version}, others say {sorted(set(said))}")
    return version


def check_installation(python: str, wheel: Path, extra: str, work: Path) -> str:
    """Install the wheel with one extra into an empty environment, and try it; return its size."""
    place = work / "environment"
    shutil.rmtree(place, ignore_errors=True)
    try:
        _run(python, "-m", "venv", str(place))
        own = str(place / "bin/python")
        before = _size(place)
        wanted = f"sparktxlog[{extra}] @ {wheel.as_uri()}" if extra else wheel.as_uri()
        _run(own, "-m", "pip", "install", "--quiet", wanted)
        _run(own, "-m", "pip", "check")
        size = _size(place) - before
        for one in extra.split(","):
            _run(own, "-c", SMOKE[one], cwd=work)
        if extra in ("node", "spark", "node,spark"):
            _run(str(place / "bin/sparktxlog"), "--help", cwd=work)
        if not extra and size > MOST_INSTALLED_BYTES:
            raise ValueError(f"{size:,} B installed, more than {MOST_INSTALLED_BYTES:,}")
        for missing, command in REFUSALS.items():
            if not {missing, *WITH.get(missing, ())} & set(extra.split(",")):
                _refused(own, command, missing, work)
        said = f"{size / 1e6:.0f} MB installed"
        if "node" in extra.split(","):
            said += f"; {demo_of(place / 'bin/sparktxlog', work, extra)}"
        return said
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _refused(own: str, command: Sequence[str], extra: str, work: Path) -> None:
    plain = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [own, *command], cwd=work, env=plain, capture_output=True, text=True, check=False
    )
    if done.returncode == 0 or f"sparktxlog[{extra}]" not in done.stderr:
        raise RuntimeError(f"{command[-1]} does not name sparktxlog[{extra}]: {done.stderr[-300:]}")


def demo_of(program: Path, work: Path, extra: str) -> str:
    """Play the demo of an installation; return what was seen.

    Raises:
        RuntimeError: It failed, or its tables were not made although Spark and Java are there.
    """
    found = json.loads(_run(str(program), "demo", "--json", cwd=work).splitlines()[-1])
    if not found["equal"] or set(found["exit_codes"].values()) != {0}:
        raise RuntimeError(f"the demo says {found}")
    orders = [step["order"] for step in found["steps"] if step["step"] == "order"]
    said = f"demo: two sites, {len(orders[-1])} positions"
    if found["spark"] is not None:
        said += f", equal tables by Spark {found['spark']}"
    elif "spark" in extra.split(",") and shutil.which("java"):
        raise RuntimeError(f"the demo made no tables: {found['steps'][-1]['said']}")
    return f"{said}, {found['seconds']:.0f} s"


def _size(place: Path) -> int:
    return sum(path.lstat().st_size for path in place.rglob("*") if not path.is_dir())


def check_image(version: str, base: str = "") -> str:
    """Build the images of node and worker, and run them; return what was seen.

    Args:
        base: See `images.Builder.build`.

    Raises:
        LeftOutError: Neither Docker nor Podman can build here, or neither this machine nor a
            registry has the pinned base.
    """
    try:
        builder = images.Builder.found()
        if not base:
            builder.get_pinned()
    except images.NoBuilderError as error:
        raise LeftOutError(str(error)) from error
    return images.check_images(builder, f"sparktxlog:{version}", version, base)


def check_chart(out: Path, version: str) -> str:
    """Pack the chart, with Helm if it is there; return what was made."""
    chart = ROOT / "deploy/helm/sparktxlog"
    own = ROOT / ".venv/test-helm/helm"
    helm = os.environ.get("SPARKTXLOG_TEST_HELM") or shutil.which("helm")
    helm = helm or (str(own) if own.is_file() else None)
    packed = out / f"sparktxlog-chart-{version}.tgz"
    if helm is None:
        with tarfile.open(packed, "w:gz") as target:
            target.add(chart, arcname="sparktxlog")
        raise LeftOutError(f"{packed.name} is packed, and not linted: there is no helm")
    # What each release of the chart must say; without it the schema refuses the defaults.
    given = ("--set", "node.id=A,secrets.existingSecret=sparktxlog")
    _run(helm, "lint", str(chart), "--strict", *given)
    _run(helm, "package", str(chart), "--destination", str(out / "chart"))
    (made,) = (out / "chart").iterdir()
    made.rename(packed)
    (out / "chart").rmdir()
    return f"{packed.name}, linted"


def installations(pythons: dict[str, str | None]) -> Iterator[tuple[str, str, str]]:
    """Yield release, interpreter and extra of what is installed, and a node with Spark."""
    for release, path in pythons.items():
        if path is not None:
            for extra in (*SMOKE, "node,spark"):
                yield release, path, extra


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, check, print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="tools.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="gets what is built")
    parser.add_argument(
        "--home", default="", metavar="URL", help="where the files of this release will be shown"
    )
    parser.add_argument(
        "--python", action="append", choices=PYTHONS, help="try this release only; may be repeated"
    )
    parser.add_argument(
        "--base",
        default=os.environ.get("BASE", ""),
        metavar="IMAGE",
        help="image to build those of node and worker on; default: the environment's BASE, "
        "else the pinned one",
    )
    parser.add_argument("--only-build", action="store_true", help="install nothing")
    given = parser.parse_args(arguments)
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if changed := _run("git", "status", "--porcelain", cwd=ROOT):
        print(f"There are changes that are not committed:\n{changed}", file=sys.stderr)
        return 1
    report, version, home = Report(), package_version(), given.home.rstrip("/")
    with tempfile.TemporaryDirectory(prefix="sparktxlog-release-") as directory:
        work = Path(directory)
        made: list[Path] = []

        def built() -> str:
            made.extend(build(work, out, home))
            return " and ".join(path.name for path in made)

        report.check("one version", check_versions)
        if report.check("wheel and source", built):
            sdist, wheel = made
            report.check("what they have", lambda: check_contents(sdist, wheel))
            report.check("project URLs", lambda: check_urls(wheel, home))
            report.check("twine check", lambda: _twine(sdist, wheel))
            if not given.only_build:
                _check_installations(report, wheel, work, given.python or PYTHONS)
        report.check("chart", lambda: check_chart(out, version))
        if not given.only_build:
            report.check("images of node and worker", lambda: check_image(version, given.base))
    print(f"\n{report.table()}\n\nIn {out}; nothing was signed or uploaded.")
    return int(report.failed)


def _twine(*files: Path) -> str:
    program = os.environ.get("SPARKTXLOG_TWINE") or shutil.which("twine")
    if program is None:
        raise LeftOutError("there is no twine")
    _run(program, "check", "--strict", *map(str, files))
    return "the descriptions can be shown"


def _check_installations(report: Report, wheel: Path, work: Path, wanted: Sequence[str]) -> None:
    pythons = {one: path for one, path in found_pythons().items() if one in wanted}
    for release, interpreter in pythons.items():
        if interpreter is None:
            report.rows.append((f"Python {release}", "left out", "there is no such interpreter"))
    for release, interpreter, extra in installations(pythons):
        name = f"Python {release}, " + (f"[{extra}]" if extra else "no extra")
        report.check(
            name,
            lambda python=interpreter, one=extra: check_installation(python, wheel, one, work),  # type: ignore[misc]
        )


if __name__ == "__main__":
    sys.exit(main())
