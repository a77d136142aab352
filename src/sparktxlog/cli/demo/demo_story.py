"""The story of `sparktxlog demo`: each step is said as it begins, and kept for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

import typer

from sparktxlog.cli.common_options import local_spark
from sparktxlog.cli.demo.demo_sites import DemoSite
from sparktxlog.cli.doctor.findings import Grade
from sparktxlog.cli.doctor.software import check_java
from sparktxlog.cli.example import example_sites, write_examples
from sparktxlog.cli.printing import is_terminal, wrapped
from sparktxlog.errors import CommitStateUnknownError, MissingDependencyError

#: How many sites there are.
SITES = 2
#: Seconds for which the demo waits for what must not happen.
_ALONE_S = 2.0
_COLUMNS = {"id": "bigint", "customer": "string", "amount": "double"}


class DemoStory:
    """Two sites A and B in one directory.

    Args:
        root: An empty directory.
        port: Of A; B has the next one.
        as_json: Whether a program reads stdout; all sentences go to stderr then.
    """

    def __init__(self, root: Path, port: int, *, as_json: bool) -> None:
        self._root, self._as_json = root, as_json
        self._written = example_sites(root, SITES, port=port)
        self.sites = self._a, self._b = [DemoSite(site, root) for site in self._written]
        self._began = monotonic()
        #: What is shown to programs; `equal`: whether all that was compared was.
        self.found: dict[str, Any] = {"equal": False, "spark": None, "steps": []}

    def play(self) -> None:
        """Play all of it; raises the errors of nodes, clients and Spark."""
        self._begin()
        equal = [self._write_at_both(), self._lose_one()]
        why_not = _why_no_spark()
        with self._step("tables", "Spark makes the tables of both sites.") as step:
            try:
                if not why_not:
                    equal.append(self._make_tables(step))
            except MissingDependencyError as error:  # Spark did not start, or gets no JARs
                why_not = str(error)
            if why_not:
                step["said"] = f"Left out: {why_not}"
        self.found["equal"] = all(equal)

    def _begin(self) -> None:
        with self._step("sites", f"Two sites are written into {self._root}, as by init --sites 2."):
            write_examples(self._written, secret_file=self._root / "cluster.secret")
        where = " and ".join(f"{site.name} at {site.url}" for site in self.sites)
        with self._step("nodes", f"Their nodes start: {where}."):
            for site in self.sites:
                site.start()
            for site in self.sites:
                site.wait_until_ready()

    def _write_at_both(self) -> bool:
        a, b = self._a.client, self._b.client
        with self._step("table", "Site A makes the table orders, with the key id.") as step:
            made = a.create_table("orders", _COLUMNS, keys=["id"])
            step["said"] = f"It is position {made.position} of the order, at both sites."
        text = "A writes order 1 of ada; then B writes order 2 of bob, and changes order 1."
        with self._step("writes", text) as step:
            first = a.upsert("orders", [_order(1, "ada", 10.0)])
            b.after(first)  # what B does next comes after it
            last = b.upsert("orders", [_order(2, "bob", 20.0), _order(1, "ada", 12.5)])
            a.after(last)
            step["said"] = f"They are positions {first.position} and {last.position}."
        return self._compare_orders()

    def _lose_one(self) -> bool:
        a, b = self._a.client, self._b.client
        with self._step("kill", "The node of B is killed, as by a loss of power (SIGKILL)."):
            self._b.kill()
        with self._step("alone", "A writes order 3 of cyd, at level accepted.") as step:
            alone = a.upsert("orders", [_order(3, "cyd", 30.0)], level="accepted")
            try:
                waits = a.wait(alone, timeout=_ALONE_S).position is None
            except CommitStateUnknownError:
                waits = True
            step["waits"] = waits
            step["said"] = (
                f"A has it on disk, and it has no position after {_ALONE_S:g} s: two equal sites "
                "do not go on alone, since A cannot know whether B is dead or only cut off."
                if waits
                else "It has a position although B is dead, which must not be."
            )
        with self._step("back", "The node of B starts again.") as step:
            self._b.start()
            self._b.wait_until_ready()
            late = a.wait(alone, timeout=120.0)
            b.after(late)
            step["said"] = f"Order 3 got position {late.position}, and takes effect at both sites."
        return self._compare_orders() and waits

    def _compare_orders(self) -> bool:
        with self._step("order", "Both nodes are asked for their order.") as step:
            keys = ("position", "origin", "chain_hash")
            queues = [
                [{key: run[key] for key in keys} for run in site.client.queue()]
                for site in self.sites
            ]
            equal = bool(queues[0]) and queues[0] == queues[1]
            listed = ", ".join(f"{run['position']} from {run['origin']}" for run in queues[0])
            verdict = "Equal, hash by hash" if equal else "They DIFFER"
            step |= {"equal": equal, "order": queues[0], "said": f"{verdict}: {listed}."}
        return equal

    def _make_tables(self, step: dict[str, Any]) -> bool:
        with local_spark("demo") as spark:
            from sparktxlog.api.connect import connect

            logs = [connect(spark, s.url, s.token, apply="inline") for s in self.sites]
            for log in logs:
                log.apply()
            tables = [log.table("orders").orderBy("id").collect() for log in logs]
            one, other = (log.snapshot().signatures for log in logs)
        rows = [row.asDict() for row in tables[0]]
        equal = bool(rows) and tables[0] == tables[1] and one == other
        verdict = "Equal rows and signatures" if equal else "The tables DIFFER"
        shown = "; ".join(" ".join(map(str, row.values())) for row in rows)
        step |= {"equal": equal, "rows": rows, "said": f"{verdict}: {shown}."}
        self.found["spark"] = spark.version
        return equal

    def stop(self) -> None:
        """Stop the nodes that run."""
        self.found["exit_codes"] = {site.name: site.stop() for site in self.sites}
        self.found["seconds"] = round(monotonic() - self._began, 1)

    def say_end(self, *, kept: bool) -> None:
        """Say what came out, and how to go on with a directory that is kept."""
        verdict = "Both sites are equal" if self.found["equal"] else "The sites DIFFER"
        self._say(f"{verdict}.  {self.found['seconds']:.0f} s")
        if kept:
            self._say(f"All is kept in {self._root}.  To go on:")
            serve = (f"sparktxlog serve --config {site.config.name} &" for site in self.sites)
            for command in (f"cd {self._root}", *serve, f"sparktxlog status --url {self._a.url}"):
                self._say(command, "    ")
            self._say(
                f"Their console is at {self._a.url}/ (any name, and as password the token in "
                f"client.token).  To end: kill %1 %2; rm -r {self._root}"
            )

    @contextmanager
    def _step(self, name: str, text: str) -> Iterator[dict[str, Any]]:
        self._say(text, "• ")
        begun, step = monotonic(), dict[str, Any](step=name)
        yield step
        step["seconds"] = round(monotonic() - begun, 2)
        self.found["steps"].append(step)
        self._say(f"{step.get('said', 'Done.')}  ({step['seconds']:.1f} s)", "  ")

    def _say(self, text: str, first: str = "") -> None:
        shown = wrapped(text, len(first), first) if is_terminal() else first + text
        typer.echo(shown, err=self._as_json)


def _order(number: int, customer: str, amount: float) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount}


def _why_no_spark() -> str:
    """Return why Spark makes no tables here; empty = it can."""
    if find_spec("pyspark") is None:
        return (
            "PySpark is not installed.  pip install 'sparktxlog[node,spark]' brings it: then each "
            "site gets a Delta table, and signatures show that the tables are equal."
        )
    found = check_java()
    return f"{found.text}.  {found.fix}" if found.grade is Grade.PROBLEM else ""
