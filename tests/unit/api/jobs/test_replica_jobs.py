"""What the jobs of a replica refuse before Spark starts and before they ask a node."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.api.jobs.job import JobContext
from sparktxlog.api.jobs.job_options import JOBS
from sparktxlog.api.jobs.replica_jobs import catch_up, repair
from sparktxlog.errors import InvalidNameError, InvalidRequestError, TxLogError


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"name": "re ports"}, InvalidNameError, "name"),
        ({"tables": ["*"]}, InvalidRequestError, "tables"),
    ],
)
def test_names_and_patterns_are_checked_first(
    given: dict[str, object], error: type[TxLogError], field: str
) -> None:
    arguments = Namespace(force=None, no_verify=False, history=False, donor="", url="", **given)
    with pytest.raises(error) as caught:
        catch_up(JobContext(arguments=arguments))
    assert caught.value.fields["field"] == field


class _Context(JobContext):
    """Asks a node that has the row table `orders` and the commit table `shop.orders`."""

    def open_source(self) -> Any:
        table = self.arguments.table
        found = ([], [table]) if "." in table else ([table], [])
        return SimpleNamespace(
            info=lambda: None, rows_and_commits=lambda *_: found, close=lambda: None
        )

    def lake_of(self, info: object) -> str:
        return "lake"


@pytest.mark.parametrize(
    ("table", "field", "way_out"),
    [
        ("orders", "right", "catch-up --force copy --donor B"),
        ("shop.orders", "local", "from other sites only"),
    ],
)
def test_an_option_of_repair_that_means_nothing_is_refused(
    table: str, field: str, way_out: str
) -> None:
    """It was passed over, as if the repair had done what it says."""
    given = {"right": "", "local": False, field: "B"}
    with pytest.raises(InvalidRequestError) as caught:
        repair(_Context(arguments=Namespace(table=table, dry_run=True, **given)))
    assert caught.value.fields["field"] == field and way_out in caught.value.hint


def test_a_comparison_alone_takes_no_table_and_no_replica() -> None:
    conflict = JOBS["verify"].conflict
    assert conflict is not None
    given: dict[str, Any] = {"lake": None, "replica": None, "table": [], "since": 0, "peer_url": []}
    for name, value in (("table", ["t"]), ("replica", "reports")):
        for recount in (True, False):
            asked = Namespace(**{**given, name: value, "compare": True, "recount": recount})
            assert bool(conflict(asked)) is not recount
    assert not conflict(Namespace(**given, compare=True, recount=False))
