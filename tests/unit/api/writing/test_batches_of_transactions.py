"""Runs of a batch: what is said of those that a node accepted, once it does not answer."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from sparktxlog.api.nodes import Doubt, Nodes
from sparktxlog.api.writing import batches_of_transactions as module
from sparktxlog.api.writing.batches_of_transactions import submit_runs
from sparktxlog.errors import CommitStateUnknownError, UnreachableError
from sparktxlog.http.link import Http
from sparktxlog.model.transactions.receipt import Level, Receipt


class _Run:
    """A run as it is posted."""

    payload, transaction_id = b"run", b"x" * 16


def test_a_run_that_was_accepted_is_not_refused_by_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str] = []

    def submit_once(link: Http, *_: Any, level: str, **__: Any) -> Receipt:
        answers.append(level)
        if level == "accepted":
            return Receipt(transaction_id=None, n=1, level=Level.ACCEPTED)
        raise UnreachableError("nobody")

    monkeypatch.setattr(Http, "submit_once", submit_once)
    monkeypatch.setattr(module, "send_runs", lambda post, runs: [post(run) for run in runs])
    with pytest.raises(CommitStateUnknownError, match="may have been taken"):
        submit_runs(
            Nodes(["http://a"], timeout_s=0.5),
            [_Run()],  # type: ignore[list-item]
            "ordered",
            0.5,
            defaultdict(Doubt),
        )
    assert answers[:2] == ["accepted", "ordered"]
