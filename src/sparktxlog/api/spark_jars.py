"""JARs of Spark sessions: Delta's, and Hadoop's connectors to object stores; resolved once.

The wheel of delta-spark contains no JARs, and Spark none of a connector.  Spark's own resolver
gets them, with a network, a JVM and a page of text.  So that runs once for each set of stores, and
a list of the resolved files is kept next to the cache.  `spark-submit.sh` asks this module, too:
`python -m sparktxlog.api.spark_jars --spark 4.2 --stores s3` prints the JARs in one line, then a
line for each setting.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparktxlog.errors import ConfigError, InvalidRequestError, MissingDependencyError, TxLogError
from sparktxlog.files.durability import write_at_once
from sparktxlog.files.stores.store_settings import region_of, requester_pays
from sparktxlog.model.buckets import SCHEMES, Provider

#: Directory in which Spark's resolver keeps the JARs.
IVY_VARIABLE = "SPARKTXLOG_IVY"
#: Local JARs, comma separated, used instead of resolving anything.
JARS_VARIABLE = "SPARKTXLOG_JARS"
#: Object stores of all sessions, comma separated.
STORES_VARIABLE = "SPARKTXLOG_STORES"

_DELTA = "4.4.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    """What goes with a minor version of Spark: a connector must be of the same Hadoop."""

    hadoop: str
    #: Of the AWS SDK v2, and of `wildfly-openssl`: what that Hadoop was built with.
    aws: str
    wildfly: str
    #: Since Hadoop 3.5.0 S3A opens no file without it, also where its streams are not used.
    analytics: str = ""


_RELEASES = {
    "4.1": _Release(hadoop="3.4.2", aws="2.29.52", wildfly="2.1.4.Final"),
    "4.2": _Release(
        hadoop="3.5.0", aws="2.35.4", wildfly="2.2.5.Final", analytics="1.3.1"
    ),
}  # fmt: skip
#: Modules of the AWS SDK that S3A uses, of the 400 in its bundle of 600 MB.
_AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client")

#: Store → schemes of its URLs.
STORES = {
    store: tuple(scheme for scheme, provider in SCHEMES.items() if provider.value == store)
    for store in sorted(provider.value for provider in Provider)
}
_NAMES = {scheme: provider.value for scheme, provider in SCHEMES.items()}

_S3A = "org.apache.hadoop.fs.s3a"
_RESOLVE = """
import sys
from pathlib import Path
from pyspark import SparkContext
Path(sys.argv[1]).write_text(SparkContext("local[1]", "resolve").getConf().get("spark.jars"))
"""


def delta_package(spark: str) -> str:
    """Return Delta's Maven coordinates for a minor version of Spark, such as `4.2`."""
    return f"io.delta:delta-spark_{spark}_2.13:{_DELTA}"


def packages(spark: str, stores: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the Maven coordinates to resolve: Delta's, and those of the stores' connectors.

    `ivysettings.xml` leaves out what the POMs of the connectors ask for; so all of it is here.

    Raises:
        MissingDependencyError: There are no such artifacts for that Spark (definite).
    """
    if (release := _RELEASES.get(spark)) is None:
        raise MissingDependencyError(
            f"Delta {_DELTA} has no JARs for Spark {spark}",
            hint="Run: pip install 'sparktxlog[spark]', which has Spark "
            f"{' or '.join(_RELEASES)}; or set {JARS_VARIABLE} to JARs of your own.",
            release=spark,
        )
    wildfly = f"org.wildfly.openssl:wildfly-openssl:{release.wildfly}"
    accelerator = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3"
    connectors = {
        "azure": (f"org.apache.hadoop:hadoop-azure:{release.hadoop}", wildfly),
        "gcs": ("com.google.cloud.bigdataoss:gcs-connector:4.0.0",),
        "s3": (
            f"org.apache.hadoop:hadoop-aws:{release.hadoop}",
            *(f"software.amazon.awssdk:{module}:{release.aws}" for module in _AWS_MODULES),
            *((f"{accelerator}:{release.analytics}",) if release.analytics else ()),
            wildfly,
        ),
    }
    found = [delta_package(spark)]
    for store in stores:
        found += connectors[store]
    return tuple(dict.fromkeys(found))


def stores_of(given: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted names of the stores that are named, or that URLs lie in.

    Args:
        given: Names, several in one separated by commas, and URLs or paths; those of disks and of
            other file systems are of no store.

    Raises:
        InvalidRequestError: A name is unknown (definite).
    """
    found = set()
    for text in given:
        scheme, url, _ = text.partition("://")
        names = [_NAMES.get(scheme.lower(), "")] if url or "/" in text else text.split(",")
        for name in filter(None, map(str.strip, names)):
            if name not in STORES:
                raise InvalidRequestError(
                    f"there is no object store {name[:50]!r}",
                    hint=f"Known are {', '.join(STORES)}; for example --stores s3,azure.",
                    field="stores",
                    value=name[:50],
                )
            found.add(name)
    return tuple(sorted(found))


def store_settings(stores: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for the stores; none has a key, a secret or a token.

    Args:
        environ: Endpoint and region come from the variables that the AWS SDK knows.

    Raises:
        ConfigError: The endpoint has a password, which Spark would show (definite).
    """
    found = {}
    if "gcs" in stores:
        package = "com.google.cloud.hadoop.fs.gcs"
        found["fs.gs.impl"] = f"{package}.GoogleHadoopFileSystem"
        found["fs.AbstractFileSystem.gs.impl"] = f"{package}.GoogleHadoopFS"
        # Hadoop 3.5.0 says 64m, which this connector cannot read:
        # findings/gcs_connector_with_hadoop_3_5.sh.
        found["fs.gs.block.size"] = str(64 * 1024 * 1024)
    if "s3" in stores:
        # Keys in the session's own settings first; then what AWS's tools look for, in their order.
        providers = [f"{_S3A}.{kind}AWSCredentialsProvider" for kind in ("Temporary", "Simple")]
        providers.append("software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider")
        found |= {
            "fs.s3.impl": f"{_S3A}.S3AFileSystem",
            "fs.s3a.aws.credentials.provider": ",".join(providers),
            # The streams of both releases of Hadoop.
            "fs.s3a.input.stream.type": "classic",
        }
        found |= _place_settings(environ)
    return {f"spark.hadoop.{key}": value for key, value in found.items()}


def _place_settings(environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    if endpoint := environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL"):
        if "@" in urlsplit(endpoint).netloc:
            raise ConfigError(
                "AWS_ENDPOINT_URL has a user or a password, which Spark would show",
                hint="Give them as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
                field="AWS_ENDPOINT_URL",
            )
        hosted = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
        found["fs.s3a.endpoint"] = endpoint
        # Stores other than Amazon's rarely have a host name for each bucket.
        found["fs.s3a.path.style.access"] = "false" if hosted else "true"
    if region := region_of(environ):
        found["fs.s3a.endpoint.region"] = region
    if requester_pays(environ):
        found["fs.s3a.requester.pays.enabled"] = "true"
    if environ.get("AWS_SERVER_SIDE_ENCRYPTION", "").lower() == "aws:kms":
        found["fs.s3a.encryption.algorithm"] = "SSE-KMS"
        if key := environ.get("AWS_SSE_KMS_KEY_ID"):
            found["fs.s3a.encryption.key"] = key
    return found


def jar_cache() -> Path:
    """Return the resolver's directory: SPARKTXLOG_IVY, else `~/.cache/sparktxlog/ivy`."""
    given = os.environ.get(IVY_VARIABLE)
    if given:
        return Path(given)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "sparktxlog" / "ivy"


def jar_list(spark: str, stores: Iterable[str] = ()) -> Path:
    """Return the file with the JARs of these stores, one line, comma separated."""
    _, artifact, version = delta_package(spark).split(":")
    return jar_cache() / f"{'+'.join((f'{artifact}-{version}', *stores))}.jars"


def known_jars(spark: str, stores: Iterable[str] = ()) -> str:
    """Return the JARs to start with, comma separated; empty = they must be resolved first."""
    local = os.environ.get(JARS_VARIABLE)
    if local:
        return local
    listed = jar_list(spark, stores)
    jars = listed.read_text().strip() if listed.is_file() else ""
    there = {_path_of(jar) for jar in jars.split(",")}
    names = {path.name for path in there}
    # A list of another release has other versions.
    wanted = {"{}_{}-{}.jar".format(*one.split(":")) for one in packages(spark, stores)}
    return jars if wanted <= names and all(path.is_file() for path in there) else ""


def lost_jars() -> list[str]:
    """Return the local files that SPARKTXLOG_JARS names and that are not here."""
    named = os.environ.get(JARS_VARIABLE, "").split(",")
    local = [jar for jar in named if jar and (jar.startswith("file:") or "://" not in jar)]
    return [jar for jar in local if not _path_of(jar).is_file()]


def _path_of(jar: str) -> Path:
    """Return the path of a local JAR; a URL, as Spark names it, has quoted characters."""
    return Path(unquote(urlsplit(jar).path) if jar.startswith("file:") else jar)


def resolved_jars(spark: str, stores: Iterable[str] = ()) -> str:
    """Return the JARs as `known_jars`, resolved now if need be, by a JVM of its own.

    One process resolves at a time; others wait for it, and take what it has found.

    Raises:
        MissingDependencyError: They are neither here nor to be had (definite).
    """
    stores = tuple(stores)
    if lost := lost_jars():
        raise MissingDependencyError(
            f"{JARS_VARIABLE} names files that are not here: {', '.join(lost)}",
            hint=f"Name local JARs of {', '.join(packages(spark, stores))} and what they need, or "
            f"unset {JARS_VARIABLE}.",
        )
    if jars := known_jars(spark, stores):
        return jars
    try:
        with _resolving_alone():
            # Another process may have resolved them meanwhile.
            return known_jars(spark, stores) or _resolved_now(spark, stores)
    except OSError as error:
        raise _unresolved(spark, stores, str(error)) from error


@contextmanager
def _resolving_alone() -> Iterator[None]:
    """Let one process at a time fill the cache: the resolver itself does not see to that."""
    cache = jar_cache()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "resolving").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolved_now(spark: str, stores: tuple[str, ...]) -> str:
    cache, wanted = jar_cache(), packages(spark, stores)
    home = os.environ.get("SPARK_HOME") or _pyspark_home()
    settings = resources.files("sparktxlog.api").joinpath("ivysettings.xml")
    sys.stderr.write(f"sparktxlog: resolving {', '.join(wanted)} into {cache} (once) …\n")
    with tempfile.TemporaryDirectory() as directory:
        program, found = Path(directory, "resolve.py"), Path(directory, "found")
        program.write_text(_RESOLVE)
        command = [
            f"{home}/bin/spark-submit",
            *("--master", "local[1]", "--packages", ",".join(wanted)),
            *("--conf", f"spark.jars.ivy={cache}"),
            *("--conf", f"spark.jars.ivySettings={settings}"),
            *("--conf", "spark.ui.enabled=false"),
            *(str(program), str(found)),
        ]
        environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        # SPARK_HOME has a PySpark of its own.
        environ.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, errors="replace", check=False
        )
        if not found.is_file():
            raise _unresolved(spark, stores, done.stdout + done.stderr)
        jars = found.read_text()
    _remember(jar_list(spark, stores), jars)
    return jars


def _remember(listed: Path, jars: str) -> None:
    with suppress(OSError):  # the next start resolves again
        write_at_once(listed, f"{jars}\n".encode())


def _unresolved(spark: str, stores: tuple[str, ...], said: str) -> MissingDependencyError:
    telling = re.compile("unresolved|not found|access error|denied|exception", re.IGNORECASE)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = list(dict.fromkeys(line for line in lines if telling.search(line))) or lines[-8:]
    named = f"{STORES_VARIABLE}={','.join(stores)} " if stores else ""
    return MissingDependencyError(
        f"JARs could not be resolved: {', '.join(packages(spark, stores))}; looked in "
        f"{jar_cache()}, ~/.m2/repository and Maven Central.  {'; '.join(reasons[:8])[:1500]}",
        hint=f"With a network run: {named}./spark-submit.sh --resolve.  Without one copy the cache "
        f"that this filled and set {IVY_VARIABLE} to it, or set {JARS_VARIABLE} to local JARs, "
        "comma separated.",
    )


def _pyspark_home() -> str:
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(
            "there is no PySpark", hint="Run: pip install 'sparktxlog[spark]'."
        )
    return found.submodule_search_locations[0]


def main() -> int:
    """Print JARs and settings for `spark-submit.sh`; return its exit code."""
    parser = argparse.ArgumentParser(prog="sparktxlog.api.spark_jars")
    parser.add_argument("--spark", required=True, choices=tuple(_RELEASES))
    parser.add_argument("--stores", default=os.environ.get(STORES_VARIABLE, ""))
    parser.add_argument("--known", action="store_true", help="resolve nothing")
    given = parser.parse_args()
    try:
        stores = stores_of([given.stores])
        settings = store_settings(stores, os.environ)
        jars = (known_jars if given.known else resolved_jars)(given.spark, stores)
    except TxLogError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    print(jars or f"$(cat {jar_list(given.spark, stores)})")
    for name, value in settings.items():
        print(f"{name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
