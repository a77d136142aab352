"""Lists in commit tables, appended to by Delta's Java client at three sites: is it serializable?

Sessions read lists and append to them (`tests/java/sparktxlog/ListAppender.java`); what they saw is
judged as that of row tables (`torture.list_append`), against the order of the log.

make list-appends                                  # 100,000 commits
python -m tests.verification.rivals.list_appends --commits 2000 --pause 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.java_programs import class_path, compile_java
from tests.support.node_processes import NodeProcess
from tests.verification.places import Places, places_in, store_options
from tests.verification.rivals.__main__ import KINDS, SETTINGS, SETTLE_S
from tests.verification.rivals.placed_tables import added, read, versions
from tests.verification.rivals.writers import Rivals
from tests.verification.torture.faults import Faults, TorturedCluster
from tests.verification.torture.list_append import Anomaly, ListTransaction, Seen, anomalies

_JVM = ("-Xmx1g", "-XX:+UseSerialGC", "-Xshare:auto")


@dataclass(frozen=True, kw_only=True)
class Appended:
    """What a run left."""

    transactions: list[ListTransaction]
    #: List → its elements in the order of the log, at each site.
    orders: list[dict[str, list[int]]]
    faults: Counter[str]
    seconds: float

    def judged(self) -> list[Anomaly]:
        """Return what is wrong with the history."""
        found = anomalies(self.transactions, self.orders[0])
        if any(order != self.orders[0] for order in self.orders):
            found.append(Anomaly("sites", "lists differ between sites"))
        return found

    @property
    def told(self) -> Counter[str]:
        """How transactions ended."""
        return Counter(one.told for one in self.transactions)


def run(
    directory: Path,
    *,
    commits: int,
    tables: int,
    sessions: int,
    seed: int,
    pause: float | None,
    most_seconds: float = 86_400.0,
    store: str = "disk",
    faulty: float = 0.0,
) -> Appended:
    """Let sessions append at three sites.

    Args:
        sessions: At each site.
        pause: Seconds between two faults; None = none happen.
        most_seconds: They end then, also if there are fewer commits.
        store: As in `places_in`; `faulty` too.
    """
    with places_in(directory, store, faulty, seed) as places:
        asked = {"commits": commits, "sessions": sessions, "seed": seed, "seconds": most_seconds}
        return _run(directory, places, asked, tables, pause)


def _run(
    directory: Path, places: Places, wanted: dict[str, Any], tables: int, pause: float | None
) -> Appended:
    seed = wanted["seed"]
    classes = compile_java("sparktxlog/ListAppender.java", directory / "classes")
    cluster = TorturedCluster(directory, "ABC", settings=SETTINGS)
    cluster.places = places
    faults = Faults(cluster, seed, lambda line: None, kinds=KINDS)
    lines = directory / "transactions"
    try:
        cluster.start()
        rivals = Rivals(cluster.masters(), tables, 0, 0, seed, places)
        asyncio.run(rivals.create())
        begin = time.monotonic()
        with lines.open("w") as told:
            asked = wanted | _sites(cluster.masters(), rivals)
            appending = _start(classes, asked, places, told)
            while appending.poll() is None:
                if pause is not None:
                    faults.next()
                try:
                    appending.wait(pause)
                except subprocess.TimeoutExpired:
                    continue
        seconds = time.monotonic() - begin
        cluster.settle(SETTLE_S)
        rivals.wait_until_equal(SETTLE_S)
        orders = [_orders(node, rivals) for node in cluster.masters()]
    finally:
        cluster.stop()
    transactions = list(_transactions(lines))
    return Appended(transactions=transactions, orders=orders, faults=faults.count, seconds=seconds)


def _sites(nodes: list[NodeProcess], rivals: Rivals) -> dict[str, Any]:
    return {
        "keys": 4,
        "hadoop": rivals.places.hadoop(),
        "sites": [
            {
                "name": node.name,
                "uri": node.url,
                "root": rivals.places.of(node).location("").removeprefix("file:").rstrip("/"),
            }
            for node in nodes
        ],
        "tables": [{"name": name, "id": uuid} for name, uuid in rivals.tables.items()],
    }


def _start(
    classes: Path, asked: dict[str, Any], places: Places, told: Any
) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    environ |= places.environment()
    process = subprocess.Popen(
        [
            "java",
            *_JVM,
            "-cp",
            class_path(classes, stores=places.stores),
            "sparktxlog.ListAppender",
        ],
        stdin=subprocess.PIPE,
        stdout=told,
        stderr=(classes / "stderr").open("w"),
        text=True,
        env=environ,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.close()
    return process


def _transactions(lines: Path) -> Iterator[ListTransaction]:
    """Yield what the sessions told, each read with the copy that it was made from."""
    copies: defaultdict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
    told = []
    for text in lines.read_text().splitlines():
        line = json.loads(text)
        assert "failed" not in line, line
        if "lists" in line:
            copies[line["session"], line["table"]] = line["lists"]
        else:
            told.append(line)
    for number, line in enumerate(told):
        table, copy = line["table"], copies[line["session"], line["table"]]
        yield ListTransaction(
            name=f"{line['session']}:{number}",
            began=line["began"],
            ended=line["ended"],
            told=line["told"],
            session=line["session"],
            reads={
                f"{table}/{key}": Seen(copy.get(key, []), length)
                for key, length in line["reads"].items()
            },
            appends={
                f"{table}/{key}": (element,) for key, element in line.get("appends", {}).items()
            },
        )


def _orders(node: NodeProcess, rivals: Rivals) -> dict[str, list[int]]:
    """Return the lists as a site has them."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    place = rivals.places.judged(node)
    for name, uuid in rivals.tables.items():
        for version in versions(place, uuid):
            for add in added(read(place, f"{uuid}/_delta_log/{version:020}.json")):
                key, element = read(place, f"{uuid}/{add['path']}").decode().split(" ")
                found[f"{name}/{key}"].append(int(element))
    return dict(found)


def main() -> int:
    """Run it; 0 = no anomaly."""
    parser = argparse.ArgumentParser(prog="make list-appends", description=__doc__.split("\n")[0])
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=48)
    parser.add_argument("--sessions", type=int, default=16, help="at each site")
    parser.add_argument("--seconds", type=float, default=86_400, help="end then at the latest")
    parser.add_argument("--pause", type=float, help="seconds between two faults; default: none")
    store_options(parser)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lists-") as directory:
        found = run(
            Path(directory),
            commits=given.commits,
            tables=given.tables,
            sessions=given.sessions,
            seed=given.seed,
            pause=given.pause,
            most_seconds=given.seconds,
            store=given.store,
            faulty=given.faulty,
        )
        # A directory of a long run takes minutes to remove.
        wrong = _told(found, given.seed)
    return 1 if wrong else 0


def _told(found: Appended, seed: int) -> int:
    """Print what is wrong with a run, and what it did; return how much is wrong."""
    wrong = found.judged()
    for anomaly in wrong[:20]:
        print(f"{anomaly.kind}: {anomaly.text}")
    told = ", ".join(f"{name} {n:,}" for name, n in sorted(found.told.items()))
    print(f"{found.seconds:.0f} s, seed {seed}, faults {found.faults.total()}; {told}")
    print(f"commits {found.told['ordered']}, anomalies {len(wrong)}", flush=True)
    return len(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
