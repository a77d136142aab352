"""What became of a transaction, in sentences; of each way that a transaction can take."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.health import transaction_words
from sparktxlog.health.transaction_words import (
    entry_sentences,
    missing_sentences,
    receipt_sentences,
    sites_of,
    unseen_sentences,
)

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
WINNER = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let times be short: how they are written is tested beside `time_text`."""
    monkeypatch.setattr(transaction_words, "time_text", lambda at: f"t{at}")


def _status(**change: Any) -> dict[str, Any]:
    def seat(name: str, *, witness: bool = False) -> dict[str, Any]:
        return {"id": name, "witness": witness}

    return {
        "node_id": "A",
        "quorum": 2,
        "position": 1_300,
        "published": 1_250,
        "kept_after": 100,
        "incoming_transactions": 3,
        "roster": [seat("A"), seat("B"), seat("C"), seat("W", witness=True)],
        "waiting_for": [],
        "peers": [
            {"id": "B", "linked": True, "acquired": {"A": 9, "B": 9}},
            {"id": "C", "linked": False, "acquired": {"A": 7, "B": 7}},
            {"id": "W", "linked": True, "witness": True, "acquired": {}},
        ],
        "replicas": [
            _replica("A", 1_250, alive=True),
            _replica("B", 1_200, plan="copy", plan_reason="a replay is 3 times slower"),
        ],
    } | change


def _replica(site: str, position: int, **change: Any) -> dict[str, Any]:
    found = {"node_id": site, "worker_id": f"w{site}", "position": position, "verdict": "IN_SYNC"}
    return found | change


def _receipt(**change: Any) -> dict[str, Any]:
    return {
        "transaction_id": ID,
        "n": 1,
        "level": "ordered",
        "run": {"origin": "B", "incarnation": 1, "seq": 8},
        "position": 1_204,
        "outcome": "committed",
        "rejections": [],
        "ordered_at": 5,
    } | change


def _told(receipt: dict[str, Any], **change: Any) -> list[str]:
    return receipt_sentences(receipt, _status(**change))


def test_a_committed_transaction_names_the_sites_that_have_it_and_why_others_do_not() -> None:
    plan = "its plan is copy, because a replay is 3 times slower"
    ended = (
        f"Site B is at position 1,200 of 1,250, {plan}, and its worker does not run at the moment"
    )
    ended += ".  Start one: `sparktxlog apply --follow`."
    unknown = "Nothing is known of the tables of site C: its node does not answer."
    unknown += "  `sparktxlog peer list` says which nodes are linked."
    assert _told(_receipt()) == [
        "Node B accepted it.",
        "It has position 1,204, since t5 UTC.",
        "It took effect: every site applies it at this position.",
        "Site A has applied it.",
        f"Site B has not applied it.  {ended}",
        f"Site C has not applied it.  {unknown}",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"error": "no space left"}, "Worker wB of site B fails: no space left."),
        ({"silent": True}, "Worker wB of site B has been silent and did not end."),
        ({"alive": True}, "of 1,250, and its worker runs."),
        ({}, "and its worker does not run at the moment."),
        ({"verdict": "DIVERGED", "reason": "t at 7"}, "Site B, worker wB: DIVERGED: t at 7."),
        ({"contested": True, "position": 1_300}, "Site B, worker wB: contested."),
    ],
)
def test_a_site_says_why_it_is_behind(change: dict[str, Any], words: str) -> None:
    replica = _replica("B", 1_200) | change
    told = _told(_receipt(), replicas=[_replica("B", 900), replica])
    (said,) = (sentence for sentence in told if "site B" in sentence or "Site B" in sentence)
    assert words in said


def test_what_is_not_published_is_told() -> None:
    told = _told(
        _receipt(position=1_290), publish_failure="no space left", publish_lag_us=2_300_000
    )
    assert (
        "It is not published yet: workers see the log up to 1,250, and what comes after it has "
        "waited 2.3 s." in told
    )
    assert "Publishing fails: no space left." in told


def test_commit_tables_that_are_behind_are_told() -> None:
    assert "2 versions of commit tables are not placed at this site yet." in _told(
        _receipt(), commit_tables={"behind": 2}
    )


def test_a_rejection_names_the_winner() -> None:
    lost = {"code": "conflict", "text": "t was written.", "table": "t", "winner": 1_199}
    lost |= {"origin": "C", "winner_id": WINNER, "index": 0}
    place = "position 1,199, which node C accepted"
    assert _told(_receipt(outcome="rejected", rejections=[lost])) == [
        "Node B accepted it.",
        "It has position 1,204, since t5 UTC.",
        "It was rejected at every site, and changed nothing.",
        "Why: [conflict] t was written.",
        f"It lost to the write of table t at {place}: transaction {WINNER}.",
    ]


def test_what_was_withdrawn_changed_nothing() -> None:
    gone = {"code": "busy", "text": "too few members", "index": 0}
    receipt = _receipt(level=None, run=None, position=None, outcome="rejected", rejections=[gone])
    assert _told(receipt) == [
        "It was refused before it had a position, and changed nothing.",
        "Why: [busy] too few members.",
    ]


def test_what_waits_says_for_whom_and_why() -> None:
    receipt = _receipt(level="acquired", position=None, outcome=None, ordered_at=None)
    waits = [{"peer": "C", "why": "promise", "since_us": 3_000_000}]
    assert _told(receipt, waiting_for=waits) == [
        "Node B accepted it.",
        "A quorum of the members holds its data, and it has no position yet.",
        "The order waits for C: its timestamp counter (no post since), for 3.0 s.",
    ]
    restricted = {"waits_for": ["B", "C"], "since_us": 12_000_000, "levels": ["accepted"]}
    told = _told(receipt | {"level": "accepted"}, restricted=restricted, halted="broken")
    assert "It is durable there, and a quorum of 2 does not hold it yet." in told
    assert any(
        sentence.startswith("This node halted: broken.  Keep its data-dir") for sentence in told
    )
    (text,) = (
        sentence for sentence in told if sentence.startswith("Restricted: too few nodes answer")
    )
    assert "`sparktxlog peer force`" in text and text.endswith("what only they had is lost.")
    assert _told(receipt)[-1] == "Nothing holds it up: it is being ordered."


def test_a_run_in_negotiation_says_what_it_waits_for_itself() -> None:
    receipt = _receipt(level="accepted", position=None, outcome=None)
    waits = [{"peer": "C", "why": "acquired", "since_us": 3_000_000}]
    first = {"origin": "A", "incarnation": 1, "seq": 8, "waits": waits}
    own = {"origin": "B", "incarnation": 1, "seq": 8, "waits": waits}
    order = "The order waits for C: its confirmation that it holds the data, for 3.0 s."
    waits_itself = order.replace("The order", "It")

    def told(*incoming: Any) -> list[str]:
        status = _status(waiting_for=waits)
        return receipt_sentences(receipt, status, incoming)[2:]

    assert told(own) == [waits_itself]
    assert told(first, own) == [waits_itself, "1 runs are before it in the order.", order]
    assert told(first) == [order]


def test_what_is_prepared_says_whose_yes_is_missing() -> None:
    receipt = _receipt(outcome="prepared", position=None, prepared_at=1_204)
    prepared = [{"transaction_id": ID, "missing": ["stock"], "valid_until": 9}]
    assert _told(receipt, prepared=prepared)[1:] == [
        "It is prepared at position 1,204, and undecided: it has no effect yet.",
        "It waits for a YES of stock.",
        "What is undecided at t9 UTC is rejected.",
    ]
    assert "It was prepared at position 1,204, then decided." in _told(
        _receipt(prepared_at=1_204, position=1_210)
    )


def test_what_was_never_seen_is_looked_for_elsewhere() -> None:
    told = unseen_sentences(ID, _status())
    assert told[0] == f"Node A never saw transaction {ID}."
    assert told[-1] == "There is no link to C."


def test_a_position_inside_a_run_is_told_from_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_words, "time_text", str)
    rejected = [{"index": 4, "code": "conflict", "text": "lost"}]
    run = {"position": 1_200, "n": 10, "origin": "B", "first_id": ID, "ordered_at": 5}
    told = entry_sentences(1_204, run | {"rejected": rejected}, _status())
    assert told[0] == (
        "Position 1,204 is transaction 5 of 10 in a run of node B, ordered at 5 UTC."
    )
    assert ID in told[1] and told[-1] == "Why: [conflict] lost."
    told = entry_sentences(1_205, run | {"rejected": rejected}, _status())
    assert "Site A has applied it." in told


def test_a_position_that_is_not_there_is_explained() -> None:
    assert missing_sentences(1_400, _status())[:2] == [
        "Nothing has position 1,400 yet: the queue of node A ends at 1,300.",
        "3 transactions wait for a position.",
    ]
    assert "its log begins after 100" in missing_sentences(50, _status())[0]


def test_sites_are_those_with_data_and_each_has_its_furthest_replica() -> None:
    status = _status(replicas=[_replica("A", 1_300), _replica("A", 7), _replica("D", 1)])
    found = [(one["site"], one["position"], one["applied"]) for one in sites_of(1_204, status)]
    assert found == [("A", 1_300, True), ("B", None, False), ("C", None, False), ("D", 1, False)]
    assert not any(one["applied"] for one in sites_of(None, status))
