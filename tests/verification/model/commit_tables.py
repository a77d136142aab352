"""A small model of commit tables: Delta tables whose next version the log decides.

Two sites, `A` and `B`, or three, have a node, a directory of the table, and a Spark writer each.  A
writer reads the newest version that its node shows, stages a commit for the next one, and asks its
node.  A design says what nodes and the fold do.  All histories of a few steps are made, so a design
that breaks a promise has its shortest history here (docs/decisions/0047-commit-tables.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

SITES = "ABC"


class Commit(NamedTuple):
    """A staged commit, or what takes the table's place."""

    #: Its site, and a number.
    name: str
    #: Identity of the table that its writer has read.
    table: str
    version: int


#: Drops the table, and creates another one of its name.
REPLACED = Commit("replaced", "", 0)


class Request(NamedTuple):
    """What a writer waits for."""

    commit: Commit
    #: `asked`, `200`, or `unknown`: no answer came, and it may ask again.
    state: str


class Place(NamedTuple):
    """A commit file `<version>.json` in the directory of a table."""

    table: str
    version: int
    name: str


class Table(NamedTuple):
    """The table at the end of a log."""

    identity: str = "t1"
    #: Commits by version; version 0 comes with the table.
    history: tuple[str, ...] = ("created",)

    @property
    def version(self) -> int:
        """Its newest version."""
        return len(self.history) - 1


@dataclass(frozen=True, slots=True)
class Site:
    """What one site has."""

    #: Commits that its node took, and that are not ordered yet.
    waiting: tuple[Commit, ...] = ()
    #: How many words of the log it knows.
    known: int = 0
    placed: frozenset[Place] = frozenset({Place("t1", 0, "created")})
    request: Request | None = None
    #: Commits that its writer has staged.
    staged: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """One moment."""

    sites: tuple[Site, ...] = (Site(), Site())
    #: What each site takes for the log: one, or after a forced decision another one at B, until
    #: it gives way.
    logs: tuple[tuple[Commit, ...], ...] = ((), ())
    is_split: bool = False
    #: Words that both logs have, once they were split.
    common: int | None = None
    told: frozenset[tuple[str, str]] = frozenset()
    #: Faults that may still happen, each once.
    left: frozenset[str] = frozenset({"lose", "give up", "replace", "split"})

    def with_site(self, at: int, **changes: object) -> World:
        """Return the world with another site."""
        sites = list(self.sites)
        sites[at] = replace(sites[at], **changes)  # type: ignore[arg-type]
        return replace(self, sites=tuple(sites))


class Design:
    """The rules as they were decided."""

    # -- the fold ----------------------------------------------------------------------------------

    def folded(self, log: Iterable[Commit]) -> tuple[Table, dict[str, str]]:
        """Return the table at the end of a log, and what each commit is told."""
        table, told = Table(), dict[str, str]()
        for commit in log:
            if commit == REPLACED:
                table = Table("t2")
            elif commit.name not in told or not self.knows_repeats():
                code = self.misfit(table, commit)
                told[commit.name] = code or "200"
                if not code:
                    table = table._replace(history=(*table.history, commit.name))
        return table, told

    def misfit(self, table: Table, commit: Commit) -> str:
        """Return why a commit takes no effect, empty = it does."""
        if commit.table != table.identity:
            return "404"
        return "" if commit.version == table.version + 1 else "409"

    def knows_repeats(self) -> bool:
        """Return whether a commit that is ordered again is the same transaction."""
        return True

    # -- a site ------------------------------------------------------------------------------------

    def known(self, world: World, at: int) -> tuple[Commit, ...]:
        """Return the part of the log that a site knows."""
        return world.logs[at][: world.sites[at].known]

    def take(self, world: World, at: int, commit: Commit) -> World:
        """Let a node take a commit that its writer asks for; one that it took before only once."""
        site = world.sites[at]
        request = Request(commit, "asked")
        if self.knows_repeats() and commit in (*site.waiting, *world.logs[at]):
            return world.with_site(at, request=request)
        return world.with_site(at, waiting=(*site.waiting, commit), request=request)

    def placeable(self, world: World, at: int) -> Iterator[Place]:
        """Yield what a site may place next."""
        table, _ = self.folded(self.known(world, at))
        placed = world.sites[at].placed
        for version, name in enumerate(table.history):
            if Place(table.identity, version, name) not in placed:
                yield Place(table.identity, version, name)
                return

    def shown(self, world: World, at: int) -> Place | None:
        """Return the newest version that a node shows of the table, None = there is none yet."""
        table, _ = self.folded(self.known(world, at))
        placed = [place for place in world.sites[at].placed if place.table == table.identity]
        return max(placed, default=None, key=lambda place: place.version)

    def answer(self, world: World, at: int) -> str:
        """Return what a node can tell its writer now, empty = nothing yet."""
        site = world.sites[at]
        assert site.request is not None
        commit = site.request.commit
        told = self.folded(self.known(world, at))[1].get(commit.name, "")
        if told == "409" and not self.has_winner(site, commit):
            return ""
        return told

    def has_winner(self, site: Site, commit: Commit) -> bool:
        """Return whether the commit that has its version is there for its writer to read."""
        places = {(place.table, place.version) for place in site.placed}
        return (commit.table, commit.version) in places

    def give_up(self, world: World, at: int) -> str:
        """Return what a writer is told whose node does not know the outcome in time."""
        return "unknown"

    def lost(self, world: World, at: int) -> World:
        """Let a node withdraw what it took and is not ordered: its client is told so."""
        site = world.sites[at]
        told = world.told | {(commit.name, "withdrawn") for commit in site.waiting}
        return replace(world.with_site(at, waiting=(), request=None), told=told)

    def may_publish(self, request: Request) -> bool:
        """Return whether a writer may publish its commit itself."""
        return request.state == "200"

    def after_split(self, site: Site, common: Iterable[Commit]) -> frozenset[Place]:
        """Return what stays in the directory of a site that gives way.

        Args:
            common: The words that both logs have.
        """
        table, _ = self.folded(common)
        kept = {Place(table.identity, version, name) for version, name in enumerate(table.history)}
        first = Place("t1", 0, "created")
        return frozenset(place for place in site.placed if place in kept or place == first)


# -- rejected designs ------------------------------------------------------------------------------


class JudgedByTheNode(Design):
    """A node compares versions when it takes a commit; the fold takes all of them."""

    def misfit(self, table: Table, commit: Commit) -> str:
        """Take what the node took."""
        return "" if commit.table == table.identity else "404"


class JudgedByName(Design):
    """A commit names the table by its name."""

    def misfit(self, table: Table, commit: Commit) -> str:
        """Look at the version only."""
        return "" if commit.version == table.version + 1 else "409"


class EachRequestCounts(Design):
    """A repeated request is another transaction."""

    def knows_repeats(self) -> bool:
        """Judge each."""
        return False


class AnsweredBeforePlaced(Design):
    """A conflict is told as soon as it is known."""

    def has_winner(self, site: Site, commit: Commit) -> bool:
        """Let the writer look by itself."""
        return True


class ShownBeforePlaced(Design):
    """A node shows the newest version that it knows of."""

    def shown(self, world: World, at: int) -> Place | None:
        """Do not look at the directory."""
        table, _ = self.folded(self.known(world, at))
        return Place(table.identity, table.version, table.history[-1])


class ConflictIfLate(Design):
    """Who waits too long is told that it lost."""

    def give_up(self, world: World, at: int) -> str:
        """Let the writer try another version."""
        return "conflict"


class PublishedBeforeAnswer(Design):
    """A writer publishes its commit while it asks."""

    def may_publish(self, request: Request) -> bool:
        """Do not wait."""
        return True


class PlacedWhenTaken(Design):
    """A node places what its own writer asks for at once, and orders it then."""

    def take(self, world: World, at: int, commit: Commit) -> World:
        """Place it, too."""
        place = Place(commit.table, commit.version, commit.name)
        placed = world.sites[at].placed | {place}
        return super().take(world, at, commit).with_site(at, placed=placed)


class PlacedInAnyOrder(Design):
    """A site places each commit as soon as its files are there."""

    def placeable(self, world: World, at: int) -> Iterator[Place]:
        """Yield all that are not placed."""
        table, _ = self.folded(self.known(world, at))
        for version, name in enumerate(table.history):
            place = Place(table.identity, version, name)
            if place not in world.sites[at].placed:
                yield place


class KeptAfterForce(Design):
    """A site that gives way keeps the directory as it is."""

    def after_split(self, site: Site, common: Iterable[Commit]) -> frozenset[Place]:
        """Remove nothing."""
        return site.placed


# -- histories -------------------------------------------------------------------------------------

#: Commits that each writer stages at most.
_STAGED = 2
#: The site that decides by itself, and gives way.
_PARTED = 1


def steps(design: Design, world: World) -> Iterator[tuple[str, World]]:
    """Yield what may happen next, with its name."""
    for at, name in enumerate(SITES[: len(world.sites)]):
        yield from ((f"{name} {what}", then) for what, then in _site_steps(design, world, at))
    yield from _faults(design, world)


def _site_steps(design: Design, world: World, at: int) -> Iterator[tuple[str, World]]:
    site = world.sites[at]
    request = site.request
    if request is None and site.staged < _STAGED and (shown := design.shown(world, at)):
        name = f"{SITES[at]}{site.staged + 1}"
        commit = Commit(name, shown.table, shown.version + 1)
        yield "asks", design.take(world.with_site(at, staged=site.staged + 1), at, commit)
    if site.waiting:
        log = (*world.logs[at], site.waiting[0])
        rest = world.with_site(at, waiting=site.waiting[1:])
        logs = tuple(
            log if not world.is_split or (of == _PARTED) == (at == _PARTED) else old
            for of, old in enumerate(world.logs)
        )
        yield "orders", replace(rest, logs=logs)
    if site.known < len(world.logs[at]):
        yield "learns", world.with_site(at, known=site.known + 1)
    for place in design.placeable(world, at):
        if not any(p[:2] == place[:2] for p in site.placed):
            yield "places", world.with_site(at, placed=site.placed | {place})
    if request is None:
        return
    commit, state = request
    if state == "asked" and (told := design.answer(world, at)):
        after = Request(commit, "200") if told == "200" else None
        then = world.with_site(at, request=after)
        yield f"answers {told}", replace(then, told=world.told | {(commit.name, told)})
    if state == "unknown":
        yield "asks again", design.take(world, at, commit)
    if design.may_publish(request):
        place = Place(commit.table, commit.version, commit.name)
        if not any(p[:2] == place[:2] for p in site.placed):
            yield "publishes", world.with_site(at, placed=site.placed | {place})
    if state == "200":
        yield "ends", world.with_site(at, request=None)


def _faults(design: Design, world: World) -> Iterator[tuple[str, World]]:
    for fault in sorted(world.left):
        after = replace(world, left=world.left - {fault})
        if fault == "split" and not world.is_split:
            yield "split", replace(after, is_split=True, common=len(world.logs[0]))
        elif fault == "replace" and not world.is_split:
            yield "replaced", replace(after, logs=tuple((*log, REPLACED) for log in world.logs))
        for at, name in enumerate(SITES[: len(world.sites)]):
            request = world.sites[at].request
            if request is None or request.state != "asked":
                continue
            if fault == "give up":
                told = design.give_up(world, at)
                then = Request(request.commit, "unknown") if told == "unknown" else None
                heard = after.told | ({(request.commit.name, told)} if told != "unknown" else set())
                yield f"{name} gives up", replace(after.with_site(at, request=then), told=heard)
            if fault == "lose" and world.sites[at].waiting:
                yield f"{name} withdraws", design.lost(after, at)
    if world.is_split:
        assert world.common is not None
        other = world.sites[_PARTED]
        common = world.logs[0][: world.common]
        given = world.with_site(
            _PARTED,
            known=min(other.known, world.common),
            placed=design.after_split(other, common),
            waiting=(),
            request=None,
        )
        yield "B gives way", replace(given, logs=(world.logs[0],) * len(world.logs), is_split=False)


# -- promises --------------------------------------------------------------------------------------


def broken_promise(design: Design, before: World, world: World) -> str:
    """Return what is broken after a step, empty = nothing."""
    for at, name in enumerate(SITES[: len(world.sites)]):
        site = world.sites[at]
        rightful = _rightful(world.logs[at])
        for table, version, commit in sorted(site.placed):
            if (there := rightful.get((table, version))) != commit:
                return f"history: {name} has {commit} as version {version}, the log has {there}"
        for table in {place.table for place in site.placed}:
            versions = sorted(place.version for place in site.placed if place.table == table)
            if versions != list(range(len(versions))):
                return f"gap: {name} shows versions {versions} of {table}"
    if world.is_split or world.common is not None:
        return ""  # what the other side told counts for that side alone
    effects = {commit: version for (_, version), commit in _rightful(world.logs[0]).items()}
    for commit, told in world.told:
        if told == "200" and commit not in effects:
            return f"told: {commit} was told 200, and is in no history"
        if told != "200" and commit in effects:
            return f"told: {commit} was told {told}, and is version {effects[commit]}"
    return _blind(before, world)


def _rightful(log: Sequence[Commit]) -> dict[tuple[str, int], str]:
    """Return which commit is which version of which table, by the rules."""
    plain, found = Design(), {("t1", 0): "created"}
    for end, word in enumerate(log, start=1):
        table, _ = plain.folded(log[:end])
        if word == REPLACED or table.history[-1] == word.name:
            found[table.identity, table.version] = table.history[-1]
    return found


def _blind(before: World, world: World) -> str:
    """Who begins can read what it builds on, and who is told that it lost can read who won."""
    for at, name in enumerate(SITES[: len(world.sites)]):
        site, request = world.sites[at], world.sites[at].request
        if request is not None and site.staged > before.sites[at].staged:
            commit = request.commit
            versions = {place.version for place in site.placed if place.table == commit.table}
            if commit.version - 1 not in versions:
                return f"blind: {name} builds on version {commit.version - 1}, which is not there"
    for lost, told in world.told - before.told:
        at = SITES.index(lost[0])
        request = before.sites[at].request
        if told == "409" and request is not None:
            commit = request.commit
            places = {(place.table, place.version) for place in world.sites[at].placed}
            if (commit.table, commit.version) not in places:
                return f"blind: {lost} lost version {commit.version}, which is not there"
    return ""


def shortest_counterexample(
    design: Design, most: int, sites: int = 2
) -> tuple[list[str], str] | None:
    """Return the first history of so many steps in which a design breaks a promise, and which."""
    start = World(sites=(Site(),) * sites, logs=((),) * sites)
    seen = {start}
    front: list[tuple[World, tuple[str, ...]]] = [(start, ())]
    for _ in range(most):
        grown: list[tuple[World, tuple[str, ...]]] = []
        for world, names in front:
            for name, then in steps(design, world):
                if broken := broken_promise(design, world, then):
                    return [*names, name], broken
                if then not in seen:
                    seen.add(then)
                    grown.append((then, (*names, name)))
        front = grown
    return None
