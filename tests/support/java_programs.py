"""Java programs of `tests/java/`, compiled when tests need them, and run beside a node."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sparktxlog.api.session import SPARK_RELEASE
from sparktxlog.api.spark_jars import known_jars, resolved_jars

_NO_COMPILER = "javac is missing: install openjdk-17-jdk-headless"
SOURCES = Path(__file__).parents[1] / "java"
#: The JAR of Unity Catalog's connector that tests take instead of the small Spark catalog.
_CONNECTOR = "SPARKTXLOG_CONNECTOR"
#: Short programs: compiling hot code a second time costs more than it gives.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def class_path(*classes: Path, stores: Sequence[str] = ()) -> str:
    """Return a class path with PySpark's own JARs, and Delta's of the project's cache.

    Spark's come first: Delta was made for its versions of the libraries that both have.

    Args:
        stores: Object stores whose connectors are there, too, as `spark_jars.STORES`.
    """
    jars = resolved_jars(SPARK_RELEASE, stores) if stores else known_jars(SPARK_RELEASE)
    delta = [jar.removeprefix("file://") for jar in jars.split(",") if jar]
    return ":".join([*map(str, classes), str(Path(pyspark.__file__).parent / "jars" / "*"), *delta])


def compile_java(source: str, target: Path) -> Path:
    """Compile a program, or a folder of classes, of `tests/java/`; return the directory `target`.

    The test is skipped where there is no Java compiler; a skip fails a run with CI=true.
    """
    if not _compiled(source, target):
        pytest.skip(_NO_COMPILER)
    return target


def _compiled(source: str, target: Path) -> bool:
    """Compile sources; return whether there is a compiler."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin" if home else None)
    if found is None:
        return False
    path = SOURCES / source
    files = [path] if path.is_file() else sorted(path.glob("*.java"))
    command = [found, *(f"-J{option}" for option in _QUICK), "-nowarn", "-proc:none"]
    command += ["-d", str(target), "-cp", class_path(), *map(str, files)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return True


def make_jar(source: str, jar: Path) -> bool:
    """Compile sources into a JAR; return whether there is a compiler."""
    with tempfile.TemporaryDirectory() as classes:
        if not _compiled(source, Path(classes)):
            return False
        jar.parent.mkdir(parents=True, exist_ok=True)
        part = jar.with_suffix(".part")
        with zipfile.ZipFile(part, "w") as archive:
            for path in sorted(Path(classes).rglob("*.class")):
                archive.write(path, path.relative_to(classes))
        part.replace(jar)  # a JVM may have the old one open
    return True


def make_plugin(jar: Path) -> None:
    """Make the JAR of the small Spark catalog, for sessions that are no tests."""
    if not make_jar("io/unitycatalog/spark", jar):
        sys.exit(f"{_NO_COMPILER}, or set {_CONNECTOR} to Unity Catalog's connector")


def connector_jar(directory: Path) -> Path:
    """Return the connector that the environment names, else the small Spark catalog, made there.

    The test is skipped where there is neither it nor a Java compiler.
    """
    if given := os.environ.get(_CONNECTOR):
        return Path(given)
    jar = directory / "connector.jar"
    if not jar.exists() and not make_jar("io/unitycatalog/spark", jar):
        pytest.skip(_NO_COMPILER)
    return jar


class JavaContract:
    """`ContractClient`, running: Delta's own Java clients, one request after the other."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process, self._errors = process, errors

    def __call__(self, what: str, **asked: Any) -> dict[str, Any]:
        """Send a request; return the answer, with the key `failed` if the client failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **asked}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()[-3000:]
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def contract_client(classes: Path, uri: str, token: str) -> Iterator[JavaContract]:
    """Run `ContractClient` against a node."""
    program = ["-cp", class_path(classes), "sparktxlog.ContractClient", uri, token]
    environ = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    process = subprocess.Popen(
        ["java", *_QUICK, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(classes / "stderr").open("w"),
        text=True,
        env=environ,
    )
    try:
        yield JavaContract(process, classes / "stderr")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    make_plugin(Path(sys.argv[1]))
