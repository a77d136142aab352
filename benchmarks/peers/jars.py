"""JARs of Kafka's servers and client, resolved by Spark's resolver and compared with their digests.

`python -m benchmarks.peers.jars DIRECTORY` puts them there; `make bench-peers` calls it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparktxlog.api.spark_jars import jar_cache

COORDINATES = "org.apache.kafka:kafka_2.13:4.1.2"
#: A digest and a name a line, as `sha256sum` prints them.
DIGESTS = Path(__file__).with_name("kafka-jars.sha256")
_RESOLVE = """
import sys
from pathlib import Path
from pyspark import SparkContext
Path(sys.argv[1]).write_text(SparkContext("local[1]", "resolve").getConf().get("spark.jars"))
"""


def resolve() -> list[Path]:
    """Return the JARs, as the resolver has them in its cache."""
    settings = resources.files("sparktxlog.api").joinpath("ivysettings.xml")
    with tempfile.TemporaryDirectory() as directory:
        program, found = Path(directory, "resolve.py"), Path(directory, "found")
        program.write_text(_RESOLVE)
        command = [
            _spark_submit(),
            *("--master", "local[1]", "--packages", COORDINATES),
            *("--conf", f"spark.jars.ivy={jar_cache()}"),
            *("--conf", f"spark.jars.ivySettings={settings}"),
            *("--conf", "spark.ui.enabled=false"),
            *(str(program), str(found)),
        ]
        environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if not found.is_file():
            sys.exit(
                f"{COORDINATES} could not be resolved:\n{(done.stdout + done.stderr)[-3_000:]}"
            )
        jars = found.read_text().split(",")
    return [Path(unquote(urlsplit(jar).path)) for jar in jars]


def _spark_submit() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


def digests_of(jars: list[Path]) -> dict[str, str]:
    """Return name, which begins with the group → SHA-256."""
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}


def pinned() -> dict[str, str]:
    """Return name → SHA-256 of what is allowed."""
    pairs = (line.split() for line in DIGESTS.read_text().splitlines())
    return {name: digest for digest, name in pairs}


def main() -> int:
    """Resolve, compare and copy; with another JAR than those that are pinned, nothing is copied."""
    target, jars = Path(sys.argv[1]), resolve()
    found, wanted = digests_of(jars), pinned()
    if found != wanted:
        for name in sorted(found.keys() | wanted.keys()):
            if found.get(name) != wanted.get(name):
                print(
                    f"{name}: found {found.get(name)}, wanted {wanted.get(name)}", file=sys.stderr
                )
        return 1
    target.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        shutil.copy(jar, target / jar.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
