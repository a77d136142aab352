"""A small model of vacuum at one site (K9): which files of a commit table may be removed, and when.

Versions are ordered elsewhere; the site places them, perhaps late.  A version adds one file and
removes that of the version before, as a compaction does.  Readers open the newest version that is
placed, and read its file for a while.  A writer of the site writes its file first, and asks then.
All histories of a few steps are made, so a rule that breaks a promise has its shortest one here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

#: Ticks that a version can be read after it was replaced, and that a name is young.
RETENTION, GRACE = 4, 2


class Version(NamedTuple):
    """A version of the table in the log."""

    file: str
    #: When it was committed: its in-commit timestamp.
    at: int


class Name(NamedTuple):
    """A file in the site's directory."""

    file: str
    #: When it got this name here, and when its bytes were written, anywhere.
    named: int
    written: int


@dataclass(frozen=True, slots=True)
class World:
    """One moment at a site."""

    now: int = 0
    log: tuple[Version, ...] = (Version("f0", 0),)
    #: Versions that are placed, by number.
    placed: int = 0
    names: frozenset[Name] = frozenset({Name("f0", 0, 0)})
    #: File that the placer has just named, whose version is the next that it places.
    placing: str = ""
    began: int = 0
    #: The writer's file, and when it was written; empty = it writes nothing.
    written: tuple[str, int] | None = None
    #: When a reader opened a version, and which.
    open: tuple[int, int] | None = None
    vacuumed: bool = False

    @property
    def placing_since(self) -> int:
        """When the placer named the file that it is about to place; now = it places nothing."""
        return self.began if self.placing else self.now

    def has(self, file: str) -> bool:
        """Whether a file is there."""
        return any(name.file == file for name in self.names)


class Vacuum:
    """The rules as they are: decision 51.

    Args:
        late: How late a version is placed here at most, ticks.
    """

    def __init__(self, late: int) -> None:
        self.late = late

    def removable(self, world: World, name: Name) -> bool:
        """Return whether vacuum removes a file."""
        is_old = name.written < world.now - RETENTION and name.named < world.now - GRACE
        return is_old and name.file not in self.needed(world) | self.staged(world)

    def needed(self, world: World) -> set[str]:
        """Return the files of versions that were the newest one within the retention."""
        files = set()
        for number, version in enumerate(world.log[: world.placed + 1]):
            following = world.log[number + 1 : world.placed + 1]
            until = following[0].at if following else world.now
            if until >= world.now - RETENTION:
                files.add(version.file)
        return files

    def staged(self, world: World) -> set[str]:
        """Return the files of commits that were staged here for versions that are not placed."""
        later = world.log[world.placed + 1 :]
        return {version.file for version in later if version.file.startswith("w")}

    def named(self, world: World, written: int) -> int:
        """Return how old the name of a placed file looks."""
        return world.now


class NewestOnly(Vacuum):
    """Keeps the newest version's files, and what is young."""

    def needed(self, world: World) -> set[str]:
        """Forget those that were replaced."""
        return {world.log[world.placed].file}


class AnyAge(Vacuum):
    """Removes what no version needs, however young it is."""

    def removable(self, world: World, name: Name) -> bool:
        """Look at versions only."""
        return name.file not in self.needed(world)


class AgeOfBytes(Vacuum):
    """Looks at the age of a file's bytes, as linked files keep it."""

    def named(self, world: World, written: int) -> int:
        """Keep the time of the writer's site."""
        return written


class StagedForgotten(Vacuum):
    """Does not look into staged commits."""

    def staged(self, world: World) -> set[str]:
        """Know none."""
        return set()


class LogEnd(Vacuum):
    """Reckons with the end of the log, placed here or not."""

    def needed(self, world: World) -> set[str]:
        """Take the newest version that is ordered for the one that is read."""
        ahead = replace(world, placed=len(world.log) - 1)
        return super().needed(ahead)


def steps(rules: Vacuum, world: World) -> Iterator[tuple[str, World]]:
    """Yield what may happen next, with its name."""
    pending = len(world.log) - 1 - world.placed
    oldest = world.log[world.placed + 1].at if pending else world.now
    # Who is killed between the two steps of placing does both again.
    if world.now - oldest < rules.late and world.now - world.placing_since < GRACE:
        yield "time", replace(world, now=world.now + 1)
    if len(world.log) < 4 and world.log[-1].at < world.now and world.written is None:
        version = Version(f"f{len(world.log)}", world.now)
        yield "other site commits", replace(world, log=(*world.log, version))
    if pending and not world.placing:
        version = world.log[world.placed + 1]
        if world.has(version.file):
            yield "file is here", replace(world, placing=version.file, began=world.now)
        else:
            name = Name(version.file, rules.named(world, version.at), version.at)
            yield (
                "names a file",
                replace(world, names=world.names | {name}, placing=version.file, began=world.now),
            )
    if world.placing:
        yield "places", replace(world, placed=world.placed + 1, placing="", began=0)
    if world.written is None and world.placed == len(world.log) - 1 and len(world.log) < 4:
        file = f"w{len(world.log)}"
        names = world.names | {Name(file, world.now, world.now)}
        yield "writes a file", replace(world, names=names, written=(file, world.now))
    if world.written is not None:
        file, at = world.written
        if world.now - at > GRACE:
            yield "writer ends", replace(world, written=None)
        elif world.has(file) and world.log[-1].at < world.now and not pending:
            log = (*world.log, Version(file, world.now))
            yield "writer commits", replace(world, log=log, written=None)
    if world.open is None:
        yield "opens", replace(world, open=(world.now, world.placed))
    else:
        yield "closes", replace(world, open=None)
    kept = frozenset(name for name in world.names if not rules.removable(world, name))
    if kept != world.names:
        yield "vacuum", replace(world, names=kept, vacuumed=True)


def broken_promise(rules: Vacuum, world: World) -> str:
    """Return what is broken, empty = nothing."""
    newest = world.log[world.placed].file
    if not world.has(newest):
        return f"whole: the newest version {world.placed} lacks {newest}"
    if world.placing and not world.has(world.placing):
        return f"placed: {world.placing} was removed before its version was placed"
    if world.written is not None:
        file, at = world.written
        if world.now - at <= GRACE and not world.has(file):
            return f"staged: {file} was removed before its writer asked"
    if world.open is not None:
        since, version = world.open
        # A version that is placed late was replaced before it could be read here.
        if world.now - since <= RETENTION - rules.late and not world.has(world.log[version].file):
            return f"read: version {version} lost its file while somebody read it"
    return ""


def shortest_counterexample(rules: Vacuum, most: int) -> tuple[list[str], str] | None:
    """Return the first history of so many steps in which a promise is broken, and which."""
    start = World()
    seen = {start}
    front: list[tuple[World, tuple[str, ...]]] = [(start, ())]
    for _ in range(most):
        grown: list[tuple[World, tuple[str, ...]]] = []
        for world, names in front:
            for name, then in steps(rules, world):
                if then in seen:
                    continue
                if broken := broken_promise(rules, then):
                    return [*names, name], broken
                seen.add(then)
                grown.append((then, (*names, name)))
        front = grown
    return None
