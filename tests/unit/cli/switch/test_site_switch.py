"""What a switch of sites refuses, by answers of nodes; with real ones: `service/`."""

from __future__ import annotations

from typing import Any

import pytest

from sparktxlog.cli.common_options import NodeApi
from sparktxlog.cli.switch.site_switch import SiteSwitch
from sparktxlog.errors import LocalProtocolError, NotFoundError, TxLogError, UnreachableError

#: What nobody lost: as `/v1/views/survival` says it.
NOTHING = {
    "site": "A",
    "ordered": 9,
    "ordered_only_there": 0,
    "accepted_only_there": 0,
    "rows_held_by": ["F"],
    "tables_only_there": [],
}


class Answers:
    """A cluster of A, which goes, F, which comes, and a witness W; what is asked of it is listed.

    Args:
        of_a, of_f: What the statuses of A and F have else than those of a cluster at rest.
        lost: What the loss of A would mean, else than nothing.
    """

    def __init__(
        self,
        of_a: dict[str, Any] | None = None,
        of_f: dict[str, Any] | None = None,
        lost: dict[str, Any] | None = None,
        own: int = 0,
    ) -> None:
        self.asked: list[tuple[str, str, str, Any]] = []
        self.incoming = [{"origin": "A", "n": own}] * bool(own) + [{"origin": "F", "n": 4}]
        self.loss = NOTHING | (lost or {})
        self.seats: dict[str, dict[str, Any]] = {
            name: {
                "id": name,
                "url": f"http://{name}",
                "weight": 2 if name == "A" else 0,
                "witness": name == "W",
                "follower": name == "F",
                "member": name == "A",
            }
            for name in "AWF"
        }
        well = {
            "phase": "NORMAL",
            "log_id": "l",
            "epoch": 3,
            "position": 9,
            "published": 9,
            "rows_until": 0,
            "lacks": [],
            "replicas": [],
            "halted": None,
            "disk_full": False,
            "paused": False,
            "following": None,
            "unstamped_runs": 0,
        }
        self.statuses = {"A": well | (of_a or {}), "F": well | (of_f or {})}
        self.gone: set[str] = set()
        self.groups: list[dict[str, Any]] = []

    def connect(self, url: str, **_: Any) -> NodeApi:
        """Return a link to a node."""
        name, cluster = url.removeprefix("http://"), self

        class Link(NodeApi):
            def get(self, path: str, **_: Any) -> Any:
                return cluster.answer(name, path)

            def send(self, method: str, path: str, value: Any) -> Any:
                cluster.change(name, method, path, value)

        return Link("http://127.0.0.1:1")

    def answer(self, name: str, path: str) -> Any:
        """Return what a node answers."""
        if name in self.gone:
            raise UnreachableError(f"{name} does not answer")
        members = [one for one, seat in self.seats.items() if seat["member"]]
        found = {
            "/v1/epochs": {"phase": "NORMAL", "roster": list(self.seats.values())},
            "/v1/info": {"node_id": name},
            "/v1/epochs/history": [{"members": ["A"]}],
            "/v1/incoming": self.incoming,
            "/v1/groups": self.groups,
            "/v1/views/survival": [self.loss],
        }
        if path == "/v1/status":
            return self.statuses[name] | {"members": members}
        return found[path]

    def change(self, name: str, method: str, path: str, value: Any) -> None:
        """Do what a node is asked for, at once."""
        self.asked.append((name, method, path, value))
        seat = self.seats.get(path.split("/")[3] if path.startswith("/v1/peers") else "")
        if path == "/v1/settings":
            self.statuses[name] |= value
        elif path.endswith("/promote"):
            names = sorted(self.seats, key=lambda one: one != "F")
            self.seats = {one: self.seats[one] for one in names}
        elif method == "DELETE":
            self.seats.pop("A")
        elif seat is not None:
            seat |= value
            seat["member"] = not seat["follower"]

    def switch(self, old: str = "A", new: str = "F", *, keep: bool = False) -> SiteSwitch:
        """Return a switch that waits for nothing."""
        return SiteSwitch("http://A", old, new, keep=keep, wait_s=0, connect=self.connect)


def changes(cluster: Answers) -> list[str]:
    return [f"{name} {method} {path}" for name, method, path, _ in cluster.asked]


def test_each_step_is_asked_for_where_it_can_be_done() -> None:
    cluster = Answers()
    report = cluster.switch().run()
    assert report.finished and report.members == ["F"] and not report.warnings
    assert changes(cluster) == [
        "A PATCH /v1/peers/F",
        "F POST /v1/peers/F/promote",
        "A PATCH /v1/settings",
        "F DELETE /v1/peers/A",
    ]
    assert cluster.asked[0][3] == {"follower": False, "weight": 2}, "the votes of the old site"
    assert "F is in and A is out" in report.markdown() and "F is in and A" in report.html()


def test_a_site_that_is_kept_follows_and_takes_transactions_once_promoted() -> None:
    cluster = Answers()
    cluster.switch(keep=True).run()
    assert cluster.asked[-2:] == [
        ("F", "PATCH", "/v1/peers/A", {"follower": True}),
        ("A", "PATCH", "/v1/settings", {"paused": False}),
    ]
    assert cluster.switch(keep=True).plan().finished is False
    assert [one.state for one in cluster.switch(keep=True).plan().steps[:-1]] == ["done before"] * 6


def test_a_site_that_is_kept_takes_transactions_although_the_switch_was_killed_before() -> None:
    """The second run asks the new site only, which knows where the old one is."""
    cluster = Answers()
    change = cluster.change

    def killed(name: str, method: str, path: str, value: Any) -> None:
        change(name, method, path, value)
        if value == {"follower": True}:
            raise KeyboardInterrupt

    cluster.change = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        cluster.switch(keep=True).run()
    assert cluster.statuses["A"]["paused"]
    cluster.change = change  # type: ignore[method-assign]
    again = SiteSwitch("http://F", "A", "F", keep=True, wait_s=0, connect=cluster.connect).run()
    assert not cluster.statuses["A"]["paused"] and not again.warnings


@pytest.mark.parametrize(
    ("of_f", "text"),
    [
        ({"halted": "a contradiction"}, "F has halted: a contradiction"),
        ({"log_id": "other"}, "F has the log other, A has l"),
        ({"paused": True}, "F is paused"),
        ({"disk_full": True}, "the disk of F is full"),
        ({"following": {"circle": ["F", "G"]}}, "F, G follow each other"),
        ({"lacks": ["3 commit tables are not whole"]}, "F lacks data: 3 commit tables"),
        ({"position": 7}, "F has 7 of 9 positions"),
        ({"published": 8}, "F has published 8 of 9 positions"),
    ],
)
def test_a_site_that_is_not_fit_is_refused_before_any_change(
    of_f: dict[str, Any], text: str
) -> None:
    cluster = Answers(of_f=of_f)
    assert text in "; ".join(cluster.switch().plan().problems)
    with pytest.raises(LocalProtocolError, match=text) as caught:
        cluster.switch().run()
    assert caught.value.definite and caught.value.fields["problems"]
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"own": 5}, "5 transactions of A are not ordered yet"),
        ({"of_a": {"unstamped_runs": 2}}, "2 runs of A have no timestamp yet"),
        ({"lost": {"ordered_only_there": 3}}, "3 of 9 ordered positions are only at A"),
        ({"lost": {"accepted_only_there": 3}}, "3 accepted transactions are only at A"),
        ({"lost": {"rows_held_by": []}}, "no other site that answers has all rows"),
        ({"lost": {"tables_only_there": ["t"]}}, "has all of 1 commit tables: t"),
    ],
)
def test_what_would_be_lost_is_refused_and_the_old_site_goes_on(
    given: dict[str, Any], text: str
) -> None:
    cluster = Answers(**given)
    with pytest.raises(LocalProtocolError, match=text):
        cluster.switch().run()
    assert "A" in cluster.seats and not cluster.statuses["A"]["paused"]
    assert cluster.asked[-1] == ("A", "PATCH", "/v1/settings", {"paused": False})


def test_a_site_that_was_paused_before_stays_paused() -> None:
    cluster = Answers(of_a={"paused": True}, own=5)
    with pytest.raises(LocalProtocolError):
        cluster.switch().run()
    assert cluster.statuses["A"]["paused"]


def test_what_the_old_site_held_back_after_all_is_said() -> None:
    """It comes between the last look and the decision; the old site has it still."""
    cluster = Answers()
    change = cluster.change

    def late(name: str, method: str, path: str, value: Any) -> None:
        change(name, method, path, value)
        if method == "DELETE":
            cluster.statuses["A"]["unstamped_runs"] = 1

    cluster.change = late  # type: ignore[method-assign]
    with pytest.raises(
        TxLogError, match="A is out, and holds what the log lacks: 1 runs"
    ) as caught:
        cluster.switch().run()
    assert not caught.value.definite and "Do not stop it" in caught.value.hint


def test_a_site_that_was_stopped_after_the_switch_is_a_warning() -> None:
    cluster = Answers()
    cluster.switch().run()
    cluster.gone.add("A")
    done = SiteSwitch("http://F", "A", "F", keep=False, wait_s=0, connect=cluster.connect).run()
    assert done.finished and "A was not asked after it was out" in done.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("A", "A", LocalProtocolError, "A is one site"),
        ("A", "W", LocalProtocolError, "W is a witness"),
        ("W", "F", LocalProtocolError, "W is a witness"),
        ("F", "A", LocalProtocolError, "F is a follower: nobody waits for it"),
        ("A", "X", NotFoundError, "node 'X' has no place"),
        ("X", "F", NotFoundError, "node 'X' has no place"),
    ],
)
def test_sites_that_cannot_be_switched_are_named(
    old: str, new: str, error: type[TxLogError], text: str
) -> None:
    cluster = Answers()
    for work in (cluster.switch(old, new).plan, cluster.switch(old, new).run):
        with pytest.raises(error, match=text):
            work()
    assert cluster.asked == []


def test_a_site_that_does_not_answer_is_no_case_for_a_switch() -> None:
    cluster = Answers()
    cluster.gone.add("F")
    with pytest.raises(UnreachableError) as caught:
        cluster.switch().run()
    assert "Both sites must answer" in caught.value.hint and cluster.asked == []


def test_the_last_site_of_a_group_is_not_switched_off() -> None:
    """Nothing is begun that the last step would refuse: F is of no group (P41)."""
    cluster = Answers()
    line = {"name": "eu", "sites": ["A", "W"], "copies": 1, "tables": ["t"]}
    cluster.groups = [line, line | {"name": "none", "tables": []}]
    for keep in (False, True):
        (problem,) = cluster.switch(keep=keep).plan().problems
        assert problem == "group 'eu' would be without sites: t would be lost"
        with pytest.raises(LocalProtocolError, match="'eu' would be without sites") as caught:
            cluster.switch(keep=keep).run()
        assert caught.value.definite
    assert cluster.asked == []


def test_a_group_that_would_take_no_writes_is_a_warning() -> None:
    cluster = Answers()
    cluster.seats["B"] = cluster.seats["A"] | {"id": "B", "url": "http://B"}
    line = {"name": "eu", "sites": ["A", "B"], "copies": 2, "tables": ["t"]}
    cluster.groups = [line, line | {"name": "one", "copies": 1}]
    report = cluster.switch().plan()
    (warned,) = report.warnings
    assert report.problems == []
    assert "'eu' needs 2 copies, and would have the sites B" in warned
    assert "`sparktxlog group alter eu --copies 1`" in warned


def test_readers_without_tables_are_a_warning() -> None:
    cluster = Answers(of_f={"rows_until": 4})
    assert "F has no replica in sync" in cluster.switch().plan().warnings[0]
    in_sync = {"rows_until": 4, "replicas": [{"node_id": "F", "verdict": "IN_SYNC"}]}
    assert Answers(of_f=in_sync).switch().plan().warnings == []
