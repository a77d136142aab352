"""Switches a site step by step; what is done is read from the cluster, so a killed one goes on.

    copy        the follower has all data, and is at the end of the log
    promote     it becomes a member, with the votes of the old site
    precedence  it stands before the old site: what is on duty stays so
    pause       the old site takes no more transactions; clients go on at other nodes
    drain       all that it took is ordered, published at the new site, and held by others
    remove      the old site loses its place, or becomes a follower
    confirm     the new site orders, and the old one has nothing that the log lacks

Nothing keeps a journal of it: each step looks first whether it is done.  What would lose anything
is refused before the first change, and again before the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from time import monotonic, time_ns
from typing import Any
from urllib.parse import quote

from sparktxlog.cli.common_options import NodeApi
from sparktxlog.cli.switch.switch_report import BEFORE, DONE, OPEN, SwitchReport, SwitchStep
from sparktxlog.errors import (
    InvalidRequestError,
    LocalProtocolError,
    NotFoundError,
    PeerTimeoutError,
    TransportError,
    TxLogError,
)
from sparktxlog.health.survival import losses
from sparktxlog.http.link import GrowingPause
from sparktxlog.model.tables.groups import check_places

#: A decision is answered within 60 s; one that takes longer is reported as unknown.
_DECISION_S = 70.0
#: Pauses between two looks, seconds; and between two lines about what a step waits for.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LINES_S = 0.05, 1.0, 5.0
#: Runs in negotiation that are looked at.
_LISTED = 1_000
#: Phases of a node that orders; and of one that knows the places in force.
_ORDERS = ("NORMAL", "SUSPECT")
_KNOWS = (*_ORDERS, "FOLLOWING", "WEDGED", "WITNESS")
_Work = tuple[SwitchStep, Callable[[], bool], Callable[[], None]]


class SiteSwitch:
    """One switch of sites.

    Args:
        url: A node that knows the others.
        old: The member that goes out.
        new: The follower that comes in; it may be a member already.
        keep: The old site becomes a follower, instead of losing its place.
        wait_s: Longest that a step waits.
        tell: Gets lines about progress.
        connect: Makes the link to a node's URL.

    Raises:
        TransportError: The node at `url` does not answer (definite).
    """

    def __init__(
        self,
        url: str,
        old: str,
        new: str,
        *,
        keep: bool,
        wait_s: float,
        tell: Callable[[str], None] = lambda text: None,
        connect: Callable[..., NodeApi] = NodeApi,
    ) -> None:
        self._old, self._new, self._keep, self._wait_s = old, new, keep, wait_s
        self._tell, self._connect = tell, connect
        self._entry = connect(url, timeout_s=_DECISION_S)
        #: Node → the address that answered.
        self._reached: dict[str, NodeApi] = {}
        self.report = SwitchReport(old=old, new=new, began_at=time_ns() // 1000)
        #: What the new site must reach before the first change; it never rests on a busy log.
        self._aim = 0
        #: Whether this run paused the old site: it is taken back if the switch ends before.
        self._paused_here = False
        self._work: list[_Work] = []
        for name, what, is_done, do in (
            ("copy", f"{new} has all data, and is at the end", self._is_copied, self._copy),
            ("promote", f"{new} becomes a member", self._is_in, self._promote),
            ("precedence", f"{new} stands before {old}", self._is_before, self._move),
            ("pause", f"{old} takes no more transactions", self._is_paused, self._pause),
            ("drain", f"nothing is at {old} alone", self._is_out, self._drain),
            ("remove", f"{old} {'follows' if keep else 'goes out'}", self._is_out, self._remove),
            ("confirm", f"{new} orders, {old} held nothing back", lambda: False, self._confirm),
        ):
            self._work.append((SwitchStep(name=name, what=what), is_done, do))
        self.report.steps = [step for step, _, _ in self._work]

    # -- plan and run ------------------------------------------------------------------------------

    def plan(self) -> SwitchReport:
        """Return what there is to do, and why it would be refused; changes nothing.

        Raises:
            NotFoundError: A site has no place (definite).
            LocalProtocolError: They are no sites that can be switched (definite).
            TransportError: One of them does not answer.
        """
        self._check_places()
        for step, is_done, _ in self._work:
            step.state = BEFORE if is_done() else OPEN
        if not self._is_out():
            new, old = self._status(self._new), self._status(self._old)
            self.report.problems = [*self._problems(new, old), *self._not_copied(new, old)]
        self.report.dry_run = True
        self._conclude()
        return self.report

    def run(self) -> SwitchReport:
        """Do all steps that are to do; errors as `plan`.

        Raises:
            LocalProtocolError: Something would be lost (definite: the old site goes on).
            PeerTimeoutError: A step took too long (not definite): the same command goes on.
            TransportError: A node did not answer: the same command goes on.
        """
        begun = monotonic()
        self._check_places()
        if not self._is_out():
            new, old = self._status(self._new), self._status(self._old)
            if problems := list(self._problems(new, old)):
                raise self._refusal(problems)
        try:
            for step, is_done, do in self._work:
                if is_done():
                    step.state = BEFORE
                    continue
                self._tell(f"{step.name}: {step.what} …")
                started = monotonic()
                do()
                step.seconds, step.state = round(monotonic() - started, 3), DONE
                self._tell(f"{step.name}: done after {step.seconds:,.1f} s")
        except BaseException:
            self._take_back()
            raise
        self._conclude()
        self.report.seconds = round(monotonic() - begun, 3)
        return self.report

    def _take_back(self) -> None:
        """Let the old site take transactions again, if this run paused it and it stays."""
        if not self._paused_here:
            return
        try:
            if not self._is_out():
                self._at(self._old).send("PATCH", "/v1/settings", {"paused": False})
                self._tell(f"{self._old} takes transactions again")
        except TxLogError as error:
            self._tell(f"{self._old} is still paused: `sparktxlog peer continue` there ({error})")

    def _conclude(self) -> None:
        found, report = self._status(self._new), self.report
        report.epoch, report.members = found["epoch"], list(found["members"])
        report.position = found["position"]

    # -- what there is -----------------------------------------------------------------------------

    def _seats(self) -> dict[str, Mapping[str, Any]]:
        """Return all places: as the new site knows them, which stays; else as the asked node."""
        for api in (self._reached.get(self._new), self._entry):
            if api is None:
                continue
            found = api.get("/v1/epochs")
            if found["phase"] in _KNOWS:
                break
        return {str(seat["id"]): seat for seat in found["roster"]}

    def _at(self, name: str) -> NodeApi:
        """Return a node, at the address that answers."""
        if name in self._reached:
            return self._reached[name]
        failed: TransportError | None = None
        for address in str(self._seats()[name]["url"]).split(","):
            api = self._connect(address, timeout_s=_DECISION_S)
            try:
                api.get("/v1/epochs")
            except TransportError as error:
                failed = failed or error
                continue
            self._reached[name] = api
            return api
        assert failed is not None
        failed.hint = (
            f"Both sites must answer.  If {name} is lost, `sparktxlog survival {name}` says what "
            f"only it had, and `sparktxlog peer remove {name}` takes it out."
        )
        raise failed

    def _status(self, name: str) -> Any:
        return self._at(name).get("/v1/status")

    def _check_places(self) -> None:
        """Refuse sites that are not there, or that hold no data; errors as `plan`."""
        old, new = self._old, self._new
        if old == new:
            raise LocalProtocolError(f"{old} is one site", hint="Name two sites.", node=old)
        self._reached[self._entry.get("/v1/info")["node_id"]] = self._entry
        if new in (seats := self._seats()):
            self._at(new)
            seats = self._seats()
        # One that is out already has no place, or the place of a follower.
        for name in (new,) if self._is_out() or self._had(old) else (new, old):
            if name not in seats:
                add = f"  Add it: `sparktxlog peer add {name} ITS-URL --follower`."
                raise NotFoundError(
                    f"node {name!r} has no place",
                    hint=f"Nodes: {', '.join(seats)}.{add if name == new else ''}",
                    node=name,
                )
            if seats[name]["witness"]:
                raise LocalProtocolError(
                    f"{name} is a witness, which holds no data",
                    hint="Replace a witness by `sparktxlog peer replace`.",
                    node=name,
                )
        if not self._is_out() and seats[old]["follower"]:
            raise LocalProtocolError(
                f"{old} is a follower: nobody waits for it, so there is nothing to switch",
                hint=f"`sparktxlog peer set {new} --role master` makes the other one a member, "
                f"`sparktxlog peer remove {old}` takes this one out.",
                node=old,
            )

    def _is_out(self) -> bool:
        """Return whether the old site is out, and the new one is in: nothing is left to do."""
        seats = self._seats()
        old, new = seats.get(self._old), seats.get(self._new)
        if new is None or not new["member"]:
            return False
        return self._keep and bool(old["follower"]) if old is not None else self._had(self._old)

    def _had(self, name: str) -> bool:
        """Return whether a node without a place was a member: its name is no slip of the pen."""
        if name in self._seats() or self._new not in self._reached:
            return False
        epochs = self._at(self._new).get("/v1/epochs/history", limit=_LISTED)
        return any(name in one["members"] for one in epochs)

    def _problems(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[str]:
        """Yield why the switch is refused, whatever it waits for; notes what should be known.

        Args:
            new, old: Statuses of the sites.
        """
        for name, found in ((self._new, new), (self._old, old)):
            if found["halted"]:
                yield f"{name} has halted: {found['halted']}"
        if new["log_id"] != old["log_id"]:
            yield f"{self._new} has the log {new['log_id']}, {self._old} has {old['log_id']}"
        if new["paused"]:
            yield f"{self._new} is paused: no writer could go there"
        if new["disk_full"]:
            yield f"the disk of {self._new} is full"
        if (new["following"] or {"circle": ()})["circle"]:
            yield f"{', '.join(new['following']['circle'])} follow each other, and no member"
        lines = new["replicas"]
        in_sync = {one["node_id"] for one in lines if one["verdict"] == "IN_SYNC"}
        if new["rows_until"] and self._new not in in_sync:
            text = f"{self._new} has no replica in sync: readers find no row tables there yet"
            self.report.warnings.append(text)
        yield from self._groups_without()

    def _groups_without(self) -> Iterator[str]:
        """Yield which group would be without sites; notes which would have fewer than copies."""
        places = {
            name
            for name, seat in self._seats().items()
            if not (seat["witness"] or seat["follower"]) and name != self._old
        }
        groups = self._at(self._old).get("/v1/groups")
        try:
            check_places(groups, places)
        except InvalidRequestError as error:
            yield error.message
        for line in groups:
            left = sorted(places & set(line["sites"]))
            if line["tables"] and left and len(left) < line["copies"]:
                text = (
                    f"group {line['name']!r} needs {line['copies']} copies, and would have the "
                    f"sites {', '.join(left)}: it takes no writes until `sparktxlog group alter "
                    f"{line['name']} --copies {len(left)}`"
                )
                self.report.warnings.append(text)

    def _not_copied(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[str]:
        """Yield what the new site lacks of the data; as `_problems`."""
        yield from (f"{self._new} lacks data: {one}" for one in new["lacks"])
        self._aim = self._aim or int(old["position"])
        yield from self._short_of(new, self._aim)

    def _short_of(self, new: Mapping[str, Any], aim: int) -> Iterator[str]:
        """Yield what the new site lacks of the queue up to a position, and of its table."""
        for end, what in (("position", "has"), ("published", "has published")):
            if new[end] < aim:
                yield f"{self._new} {what} {new[end]:,} of {aim:,} positions"

    # -- the steps ---------------------------------------------------------------------------------

    def _is_copied(self) -> bool:
        return self._is_out() or not self._uncopied()

    def _uncopied(self) -> list[str]:
        return list(self._not_copied(self._status(self._new), self._status(self._old)))

    def _copy(self) -> None:
        self._wait("copy", self._uncopied, self._refusal)

    def _is_in(self) -> bool:
        seat = self._seats()[self._new]
        return bool(seat["member"]) and self._status(self._new)["phase"] in _ORDERS

    def _promote(self) -> None:
        seats = self._seats()
        if seats[self._new]["follower"]:
            votes = seats[self._old]["weight"]
            self._decide("PATCH", self._new, "", {"follower": False, "weight": votes})
        awaited = [f"{self._new} waits to be admitted"]
        self._wait("promote", lambda: [] if self._is_in() else awaited, self._late)

    def _is_before(self) -> bool:
        names = list(self._seats())
        if self._is_out() or self._old not in names:
            return True
        return names.index(self._new) < names.index(self._old)

    def _move(self) -> None:
        while not self._is_before():
            self._decide("POST", self._new, "/promote", {})

    def _is_paused(self) -> bool:
        return self._is_out() or bool(self._status(self._old)["paused"])

    def _pause(self) -> None:
        self._paused_here = True
        self._at(self._old).send("PATCH", "/v1/settings", {"paused": True})

    def _drain(self) -> None:
        end = 0

        def left() -> list[str]:
            nonlocal end
            if held := list(self._held_back()):
                return held
            end = end or int(self._status(self._old)["position"])  # the others go on meanwhile
            return list(self._short_of(self._status(self._new), end))

        self._wait("drain", left, self._refusal)

    def _held_back(self) -> Iterator[str]:
        """Yield what is at the old site only, or lacks at the new one."""
        yield from self._unordered(self._status(self._old), self._at(self._old))
        new = self._status(self._new)
        yield from (f"{self._new} lacks data: {one}" for one in new["lacks"])
        said = self._at(self._new).get("/v1/views/survival")
        # Whether the rest has a majority is not asked: the old site votes on its own removal.
        yield from losses(next(one for one in said if one["site"] == self._old))

    def _unordered(self, old: Mapping[str, Any], api: NodeApi) -> Iterator[str]:
        """Yield what the old site accepted and nobody ordered."""
        if old["unstamped_runs"]:
            yield f"{old['unstamped_runs']:,} runs of {self._old} have no timestamp yet"
        listed = api.get("/v1/incoming", limit=_LISTED)
        own = [one for one in listed if one["origin"] == self._old]
        if own:
            count = sum(one["n"] for one in own)
            yield f"{count:,} transactions of {self._old} are not ordered yet"

    def _remove(self) -> None:
        # Nothing came since: it takes none.  Looked at again, because only this step is final.
        if problems := list(self._held_back()):
            raise self._refusal(problems)
        if self._keep:
            self._decide("PATCH", self._old, "", {"follower": True})
        else:
            self._decide("DELETE", self._old, "", {})

    def _confirm(self) -> None:
        def open_ends() -> list[str]:
            found = self._status(self._new)
            if found["phase"] not in _ORDERS or self._old in found["members"]:
                return [f"{self._new} is {found['phase']} in epoch {found['epoch']:,}"]
            return []

        self._wait("confirm", open_ends, self._late)
        held: list[str] | None = None
        with suppress(KeyError, TransportError):  # it has no place any more, or was stopped
            api = self._at(self._old)
            held = list(self._unordered(api.get("/v1/status"), api))
        if held is None:
            text = f"{self._old} was not asked after it was out, whether it held anything back"
            self.report.warnings.append(text)
            return
        if held:
            raise PeerTimeoutError(
                f"{self._old} is out, and holds what the log lacks: {'; '.join(held)}",
                hint=f"Do not stop it.  `sparktxlog peer add {self._old} ITS-URL` takes it in, and "
                "it orders that.  Then switch again.",
                old=self._old,
                problems=held,
            )
        if self._keep:  # as a follower it takes none, and promoted again it should
            self._at(self._old).send("PATCH", "/v1/settings", {"paused": False})

    # -- how ---------------------------------------------------------------------------------------

    def _decide(self, method: str, node: str, act: str, body: dict[str, Any]) -> None:
        """Have a change of the roster decided, at the new site once it is a member."""
        seats = self._seats()
        members = [name for name, seat in seats.items() if seat["member"]]
        at = self._new if self._new in members else self._old
        self._at(at).send(method, f"/v1/peers/{quote(node, safe='')}{act}", body)

    def _wait(
        self, step: str, lacks: Callable[[], list[str]], error: Callable[[list[str]], TxLogError]
    ) -> None:
        """Wait until nothing is missing any more; raise an error of what is when that is late."""
        until, pause = monotonic() + self._wait_s, GrowingPause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        told = monotonic()
        while missing := lacks():
            if monotonic() >= until:
                raise error(missing)
            if monotonic() - told >= _LINES_S:
                told = monotonic()
                self._tell(f"{step}: {'; '.join(missing)}")
            pause.wait()

    def _late(self, problems: list[str]) -> PeerTimeoutError:
        return PeerTimeoutError(
            f"the switch of {self._old} to {self._new} is not done after {self._wait_s:g} s: "
            f"{'; '.join(problems)}",
            hint="Run the same command again: it goes on.",
            old=self._old,
            new=self._new,
            problems=problems,
        )

    def _refusal(self, problems: list[str]) -> LocalProtocolError:
        return LocalProtocolError(
            f"site {self._old} cannot be switched off for {self._new}: {'; '.join(problems)}",
            hint="`sparktxlog status` at both sites says more; `--dry-run` lists what is missing.",
            old=self._old,
            new=self._new,
            problems=problems,
        )
