"""What the jobs of a replica refuse before Spark starts and before they ask a node."""

from __future__ import annotations

from argparse import Namespace

import pytest

from sparktxlog.api.jobs.job import JobContext
from sparktxlog.api.jobs.replica_jobs import catch_up
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
