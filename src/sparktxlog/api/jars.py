"""Where Delta's JARs come from: resolved once by Spark's own mechanism, then started from a list.

The wheel of delta-spark holds no JARs.  Spark resolves them through `spark.jars.packages`, which
asks a network and prints a page of text at each start; so what it found is written down beside the
cache, and later starts take the files from there.  spark-submit.sh keeps the same list.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

#: Built for this exact Spark; a later patch release of either side has broken the pair before.
DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
#: Directory in which Spark's resolver keeps the JARs.
IVY_VARIABLE = "SPARKTXLOG_IVY"
#: Local JARs, comma separated, used instead of resolving anything.
JARS_VARIABLE = "SPARKTXLOG_JARS"

_LIST = "delta-spark_4.2_2.13-4.4.0.jars"


def jar_cache() -> Path:
    """Return the resolver's directory: SPARKTXLOG_IVY, else `~/.cache/sparktxlog/ivy`."""
    given = os.environ.get(IVY_VARIABLE)
    if given:
        return Path(given)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "sparktxlog" / "ivy"


def known_jars() -> str:
    """Return the JARs to start with, comma separated; empty = they must be resolved first."""
    local = os.environ.get(JARS_VARIABLE)
    if local:
        return local
    listed = jar_cache() / _LIST
    jars = listed.read_text().strip() if listed.is_file() else ""
    there = all(Path(jar.removeprefix("file://")).is_file() for jar in jars.split(","))
    return jars if there else ""


def remember_jars(jars: str) -> None:
    """Keep what Spark resolved for later starts; a cache that cannot be written is no error."""
    listed = jar_cache() / _LIST
    part = listed.with_name(f"{_LIST}.{os.getpid()}")
    try:
        part.write_text(jars + "\n")
        part.replace(listed)
    except OSError:
        return  # the next start resolves again


def jar_settings() -> dict[str, str]:
    """Return the Spark settings that bring in the JARs, or let Spark resolve them."""
    jars = known_jars()
    if jars:
        return {"spark.jars": jars}
    cache = jar_cache()
    cache.mkdir(parents=True, exist_ok=True)
    settings = resources.files("sparktxlog.api").joinpath("ivysettings.xml")
    return {
        "spark.jars.packages": DELTA_PACKAGE,
        "spark.jars.ivySettings": str(settings),
        "spark.jars.ivy": str(cache),
    }
