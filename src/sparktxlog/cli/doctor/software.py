"""Checks of what is installed here: Python, Java, Spark and what goes with it, Delta's JARs.

Nothing of Spark is started.  A node and a client need none of it, so it is no problem if it is
missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from sparktxlog.api.spark_jars import (
    JARS_VARIABLE,
    STORES_VARIABLE,
    delta_package,
    jar_cache,
    known_jars,
    lost_jars,
    stores_of,
)
from sparktxlog.api.tested_releases import TESTED, python_release, untested
from sparktxlog.cli.doctor.findings import Finding, good, problem, warning
from sparktxlog.errors import InvalidRequestError

_PYTHON = TESTED["Python"][0]
_JAVA = 17
_TIMEOUT_S = 30.0


def check_software() -> Iterator[Finding]:
    """Yield what is found of Python, and of Spark if it is installed."""
    yield check_python()
    if (spark := _installed("pyspark")) is None:
        yield good(
            "spark",
            "PySpark is not installed, and no Java is needed: a node and a client do without; "
            "commands that read or write rows need pip install 'sparktxlog[spark]'",
        )
        return
    yield from check_packages()
    yield check_spark_home(spark)
    yield check_java()
    yield check_jars()


def check_python() -> Finding:
    """Check this interpreter, and that of Spark's Python workers."""
    here = sys.version_info[:2]
    shown = ".".join(str(part) for part in sys.version_info[:3])
    if here < _PYTHON:
        fix = "Install Python 3.11 or newer, and make the environment with it."
        return problem("python", f"Python {shown} is too old", fix)
    workers = os.environ.get("PYSPARK_PYTHON")
    if workers:
        said = _answer_of(workers, "-c", "import sys; print('%d %d' % sys.version_info[:2])")
        if said.split() != [str(part) for part in here]:
            return problem(
                "python",
                f"Python {shown}, and PYSPARK_PYTHON={workers} is "
                + (f"Python {'.'.join(said.split())}" if said[:1].isdigit() else f"none: {said}"),
                f"Unset PYSPARK_PYTHON, or set it to {sys.executable}.",
            )
    with_spark = _installed("pyspark") is not None
    if line := untested([python_release(with_spark=with_spark)]):
        return warning("python", line, "Use a Python that was tested, or try yours first.")
    return good("python", f"Python {shown}, {sys.executable}")


def check_packages() -> Iterator[Finding]:
    """Check the releases of Spark's packages against those that sparktxlog names."""
    for name, wanted in sorted(wanted_releases("spark").items()):
        found = _installed(name)
        if found is None:
            fix = "Run: pip install 'sparktxlog[spark]'."
            yield problem("spark", f"{name} is not installed", fix)
        elif meets(found, wanted):
            yield good("spark", f"{name} {found}")
        else:
            text, fix = f"{name} {found}, {wanted} is wanted", f"Run: pip install '{name}{wanted}'."
            unknown = name == "pyspark" and untested([("Spark", found)])
            yield (problem if unknown else warning)("spark", text, fix)


def check_spark_home(spark: str) -> Finding:
    """Check that SPARK_HOME, which replaces the Spark of the package, is of the same release."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return good("spark", f"Spark {spark} of the Python package is used")
    jars = (Path(home) / "jars").glob("spark-core_*.jar")
    releases = sorted(jar.stem.rpartition("-")[2] for jar in jars)
    if releases == [spark]:
        return good("spark", f"SPARK_HOME={home} has Spark {spark}, as the Python package")
    has = f"Spark {', '.join(releases)}" if releases else "no Spark"
    text = f"SPARK_HOME={home} has {has}, the Python package is of {spark}"
    return problem("spark", text, "Unset SPARK_HOME, or install the same release in both places.")


def check_java() -> Finding:
    """Check the Java that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin" if home else None)
    fix = (
        "Install Java 17 (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME, or put "
        "its bin directory on PATH."
    )
    if path is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        return problem("java", f"Spark needs Java {_JAVA} or newer, and {where}", fix)
    said = _answer_of(path, "-version")
    release = re.search(r'version "(\d+)([^"]*)"', said)
    if release is None or int(release[1]) < _JAVA:
        return problem("java", f"Spark needs Java {_JAVA} or newer, and {path} says: {said}", fix)
    return good("java", f"Java {release[1]}{release[2]}, {path}")


def check_jars() -> Finding:
    """Check that Spark's JARs are here; without them its first start needs a network."""
    try:
        from sparktxlog.api.session import SPARK_RELEASE
    except ImportError as error:
        text = f"PySpark cannot be imported: {error}"
        return problem("jars", text, "Run: pip install --force-reinstall 'sparktxlog[spark]'.")

    if lost := lost_jars():
        text = f"{JARS_VARIABLE} names files that are not here: {', '.join(lost)}"
        return problem("jars", text, f"Name Delta's JARs, or unset {JARS_VARIABLE}.")
    try:
        stores = stores_of([os.environ.get(STORES_VARIABLE, "")])
    except InvalidRequestError as error:
        return problem("jars", f"{STORES_VARIABLE}: {error}", "Name known stores, or none.")
    jars = known_jars(SPARK_RELEASE, stores)
    wanted = " and ".join([delta_package(SPARK_RELEASE), *stores])
    if not jars:
        return warning(
            "jars",
            f"{wanted} is not in {jar_cache()}: Spark fetches it when it first starts",
            f"Start Spark once while there is a network, or set {JARS_VARIABLE} to local JARs.",
        )
    where = JARS_VARIABLE if os.environ.get(JARS_VARIABLE) else str(jar_cache())
    return good("jars", f"{len(jars.split(',')):,} JARs for {wanted}, of {where}")


def wanted_releases(extra: str) -> dict[str, str]:
    """Return name → releases, such as `>=2.2,<3`, of the packages of one of our extras.

    An extra of ours that it names, as `sparktxlog[arrow]`, counts with its packages.
    """
    found = {}
    for line in metadata.requires("sparktxlog") or ():
        text, _, marker = line.partition(";")
        named = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?(.*)", text)
        if named is None or not re.search(rf"extra == ['\"]{extra}['\"]", marker):
            continue
        name, extras, releases = named.groups()
        if name != "sparktxlog":
            found[name] = releases.strip()
            continue
        for other in (extras or "").split(","):
            found |= wanted_releases(other.strip())
    return found


def meets(found: str, wanted: str) -> bool:
    """Return whether a release is one of those that are wanted."""
    have = _numbers(found)
    for part in filter(None, wanted.split(",")):
        limit = _numbers(part.strip("<>=! "))
        one = have[: len(limit)]
        if not {
            "==": one == limit,
            "<=": one <= limit,
            ">=": have >= limit,
            "<": have < limit,
        }[part.rstrip("0123456789. ")]:
            return False
    return True


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release.partition("+")[0]))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _answer_of(*command: str) -> str:
    """Return what a command printed, in one line, or why it did not run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be started ({error})"
    return " ".join((done.stdout + done.stderr).split())[:300]
