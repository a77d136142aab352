"""All tables of a replica of the site at one position, and the error when it is not applied yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparktxlog.api.spark_paths import spark_url
from sparktxlog.errors import DivergedError, NotAppliedError
from sparktxlog.model.ids import find_table, table_name
from sparktxlog.model.shown import html_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All tables of a replica of this site at the versions of one position."""

    #: The last transaction that is visible; 0 = nothing was applied yet.
    position: int
    chain_hash: str
    #: Table → Delta version.
    versions: Mapping[str, int] = field(default_factory=dict)
    #: Table → signature as text.
    signatures: Mapping[str, str] = field(default_factory=dict)
    #: Name of the replica; empty = nothing was applied yet.
    replica: str = ""
    #: Table → why it stands still; it is not what the log says at the position.
    diverged: Mapping[str, str] = field(default_factory=dict)
    _uris: Mapping[str, str] = field(default_factory=dict, repr=False)
    _spark: SparkSession = field(repr=False)
    #: Says why a table is not there at a position, or raises that it is unknown.
    _absent: Callable[[str, int], NotAppliedError] = field(repr=False)

    def _repr_html_(self) -> str:
        rows = [
            (name, version, self.signatures[name], self.diverged.get(name, ""))
            for name, version in sorted(self.versions.items())
        ]
        head = ("table", "Delta version", "signature", "stands still")
        return f"<p>Snapshot at position {self.position:,}</p>{html_table(head, rows)}"

    @classmethod
    def of(
        cls,
        answer: Mapping[str, Any],
        spark: SparkSession,
        absent: Callable[[str, int], NotAppliedError],
    ) -> Snapshot:
        """Read what `GET /v1/snapshot` answers."""
        tables: Mapping[str, Any] = answer["tables"]
        return cls(
            position=int(answer["position"]),
            chain_hash=str(answer["chain_hash"]),
            replica=str(answer.get("replica") or ""),
            versions={name: int(table["version"]) for name, table in tables.items()},
            signatures={name: str(table["signature"]) for name, table in tables.items()},
            diverged={n: t["diverged"] for n, t in tables.items() if t.get("diverged")},
            _uris={name: str(table["uri"]) for name, table in tables.items()},
            _spark=spark,
            _absent=absent,
        )

    def table(self, name: str) -> DataFrame:
        """Return a table as it stands at the snapshot's position.

        Raises:
            UnknownTableError: The log has no such table (definite).
            NotAppliedError: No worker had applied it at the position (definite).
            DivergedError: It stands still, as somebody wrote to it past the log (definite).
        """
        name = self.name_of(name)
        if name not in self._uris:
            raise self._absent(name, self.position)
        if name in self.diverged:
            raise DivergedError(
                f"table {name!r} of this site stands still: {self.diverged[name]}",
                hint=f"Repair it: sparktxlog repair {name}.  Other tables go on, and "
                "log.snapshot(position=…) shows this one as it was before.",
                table=name,
                position=self.position,
            )
        uri = self._uris[name]
        location = spark_url(uri) if uri.startswith("/") else uri
        reader = self._spark.read.format("delta").option("versionAsOf", self.versions[name])
        return reader.load(location)

    def place_of(self, name: str) -> tuple[str, int] | None:
        """Return a table's directory and version, None = the snapshot does not have it."""
        name = self.name_of(name)
        return (self._uris[name], self.versions[name]) if name in self._uris else None

    def name_of(self, text: str) -> str:
        """Return the log's name of a table, spelled as in the snapshot if that has the table.

        Raises:
            InvalidNameError: No table can have this name (definite).
        """
        return find_table(text, self._uris) or table_name(text)


def reached_answer(
    ask: Callable[[str | None], Mapping[str, Any]], replica: str | None, table: str = ""
) -> Mapping[str, Any]:
    """Return what `GET /v1/snapshot` answers for a replica whose files are here.

    Args:
        ask: Asks for a replica by its name, None = the most current one.
        replica: None = the most current one whose files this process sees.
        table: Which files are looked for; empty = those of any table.

    Raises:
        TxLogError: As `ask`.
    """
    first = answer = ask(replica)
    for other in (None,) if replica else (*(first.get("others") or ()), None):
        if other is None or is_here(answer, table):
            break
        answer = ask(other)
    # If none is here, the error of its reader names the first one's files.
    return answer if answer is first or is_here(answer, table) else first


def is_here(answer: Mapping[str, Any], table: str = "") -> bool:
    """Return whether a directory of a snapshot is there; a bucket is reached by its reader."""
    tables: Mapping[str, Any] = answer["tables"]
    found = tables.get(table) or next(iter(tables.values()), None)
    return found is None or not str(found["uri"]).startswith("/") or Path(found["uri"]).exists()
