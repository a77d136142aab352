"""What whole nodes must keep of commit tables, seen from their directories and writers (P36).

From the one queue follows which commit is which version of which table.  Then

- history: what a directory has as a version is that commit, byte by byte, with its files;
- gap: a directory has all versions up to its newest one;
- shown: who loads a table finds all versions that it is told of, with their files;
- told: 200 is that version, here and in the queue for ever; who lost reads who won, and is nowhere;
- safe: who orders a commit is not the only one to have it: the files are durable at the quorum.

In the end all sites have all versions of all tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sparktxlog.codec.delta_catalog.catalog_answers import ShownTable
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.commit_table import CommitKind, commit_file_name, commit_file_prefix
from sparktxlog.model.transactions.operation import RunManifest
from sparktxlog.protocol.messages.posts import QueueEntry

if TYPE_CHECKING:
    from tests.verification.nodes.node import SimulatedNode
    from tests.verification.nodes.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """A commit that takes effect."""

    identity: bytes
    #: Path below the table → digest; the commit file is among them.
    files: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class _History:
    """A commit table."""

    versions: list[_Version] = field(default_factory=list)
    is_dropped: bool = False


class PlacedTables:
    """Watches the commit tables of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: UUID → what the one queue says of the table.
        self._histories: dict[str, _History] = {}
        #: Commit and table → digest of the commit file, as its writer wrote it.
        self._staged: dict[tuple[bytes, str], str] = {}
        #: Commits that were told that they lost.
        self._lost: set[bytes] = set()
        #: Node and table → versions that were looked at already.
        self._seen: dict[tuple[str, str], int] = {}
        #: The same → newest version that is placed, as its journal says.
        self._placed: dict[tuple[str, str], int] = {}
        #: The same → newest version that anybody was told of, since the last power loss.
        self._told: dict[tuple[str, str], int] = {}
        #: The same → newest version of which nobody knows whether it is whole: somebody copied it,
        #: or the power went before the journal said that it is placed.
        self._unsure: dict[tuple[str, str], int] = {}
        #: Nodes whose machines lost power, and that did not start since.
        self._dark: set[str] = set()

    def _fail(self, story: str) -> None:
        self._world.checks.fail(f"P36: {story}")

    # -- the queue ---------------------------------------------------------------------------------

    def ordered(self, node: SimulatedNode, entry: QueueEntry, run: RunManifest) -> None:
        """See the one queue grow by a run; its outcomes are judged elsewhere."""
        rejected = {rejection.index for rejection in entry.rejections}
        for index, commit in run.commits:
            if index in rejected:
                continue
            if commit.uuid not in self._histories:
                # What was staged where the power was lost since may be torn there.
                self._unsure |= {(name, commit.uuid): 0 for name in self._dark}
            history = self._histories.setdefault(commit.uuid, _History())
            if commit.kind is CommitKind.DROP:
                history.is_dropped = True
                continue
            identity = run.transaction_id(index)
            prefix = commit_file_prefix(identity, commit.uuid)
            files = {
                file.path.removeprefix(prefix): file.digest
                for file in (*run.commit_files, *run.carried_files)
                if file.path.startswith(prefix)
            }
            if commit.kind is CommitKind.RENAME:
                continue
            history.versions.append(_Version(identity=identity, files=files))
            self._world.checks.happened(f"commit table: {commit.kind.value}")
            if files[commit_file_name(commit.version)] != self._staged.get((identity, commit.uuid)):
                self._fail(f"{commit} is not what its writer staged")
            if len(history.versions) != commit.version + 1:
                self._fail(f"{commit} follows version {len(history.versions) - 2}")
            if any(file.path.startswith(prefix) for file in run.commit_files):
                # Files that the run carries are durable where the run is.
                self._check_quorum(node, entry, commit.uuid, history.versions[-1])

    def _check_quorum(
        self, node: SimulatedNode, entry: QueueEntry, uuid: str, version: _Version
    ) -> None:
        """See that a commit that was just ordered is durable at a quorum, but for lost disks."""
        assert node.running is not None
        views = [node.running.base.master.view]
        views += [v for at, v in self._world.checks.views.items() if at >= entry.header.epoch]
        wanted = min(view.quorum for view in views)
        # A follower's copy counts once it is a member.
        members = {str(name) for view in views for name in view.members}
        promoted = [name for name in self._world.layout.followers if name in members]
        masters = [self._world.nodes[name] for name in (*self._world.layout.masters, *promoted)]
        masters += self._world.clones.values()
        lost = sum(one.disk.generation - 1 for one in masters)
        holders = [one.name for one in masters if self._holds(one, uuid, version)]
        if len(holders) + lost < wanted:
            self._fail(f"safe: {entry.header} is ordered, its files are durable at {holders} only,"
                       f" the quorum is {wanted}")  # fmt: skip

    def _holds(self, node: SimulatedNode, uuid: str, version: _Version) -> bool:
        """Return whether a power loss of a node would leave all files of a version."""
        disk, prefix = node.disk, commit_file_prefix(version.identity, uuid)
        return all(
            any(
                disk.keeps(path) and _digest(path) == digest
                for path in (disk.path / "payloads" / (prefix + file), _table(node, uuid) / file)
            )
            for file, digest in version.files.items()
        )

    # -- directories -------------------------------------------------------------------------------

    def started(self, node: SimulatedNode) -> None:
        """Look at all tables of a node that starts."""
        for uuid in self._histories:
            self._seen.pop((node.name, uuid), None)
            self.look(node, uuid)
        self._dark.discard(node.name)

    def look(self, node: SimulatedNode, uuid: str) -> int:
        """Look at a table's directory; return how many versions it has."""
        history, directory, key = self._histories.get(uuid), _table(node, uuid), (node.name, uuid)
        if history is None:
            return 0  # it is only staged
        found = {int(path.stem) for path in directory.glob("_delta_log/*.json")}
        count = next(number for number in range(len(found) + 1) if number not in found)
        if key in self._unsure:
            # What the journal says is on the disk; what was to be placed again may be torn.
            count = min(count, max(self._placed.get(key, -1), self._told.get(key, -1)) + 1)
        elif count < len(found):
            self._fail(f"gap: {node.name} has versions {sorted(found)} of {uuid}")
        for number in range(max(0, self._seen.get(key, 0) - 1), count):
            if number >= len(history.versions):
                self._fail(f"history: {node.name} has version {number} of {uuid}, the log has "
                           f"{len(history.versions)}")  # fmt: skip
                return 0
            for file, digest in history.versions[number].files.items():
                if _digest(directory / file) != digest:
                    self._fail(f"history: {node.name} has other bytes in version {number} of "
                               f"{uuid}: {file}")  # fmt: skip
        self._seen[key] = count
        return count

    def placed(self, node: SimulatedNode, uuid: str, version: int) -> None:
        """See a node's journal say that a version is placed."""
        key = (node.name, uuid)
        self._placed[key] = version
        if version >= self._unsure.get(key, 0):
            self._unsure.pop(key, None)
        if self.look(node, uuid) <= version and uuid in self._histories:
            self._fail(f"history: {node.name} says that version {version} of {uuid} is placed")

    def copied(self, node: SimulatedNode, uuid: str) -> None:
        """See somebody copy the directory of a table to a node's site."""
        self._unsure[node.name, uuid] = len(self._histories[uuid].versions) - 1

    def power_lost(self, node: SimulatedNode) -> None:
        """See a node's machine lose power."""
        self._dark.add(node.name)
        for uuid, history in self._histories.items():
            self._unsure[node.name, uuid] = len(history.versions) - 1
            self._seen.pop((node.name, uuid), None)
            self._told.pop((node.name, uuid), None)

    def forget(self, node: SimulatedNode) -> None:
        """See a node lose its disk."""
        for known in (self._unsure, self._placed, self._seen, self._told):
            for key in [key for key in known if key[0] == node.name]:
                del known[key]

    def cloned(self, node: SimulatedNode, clone: SimulatedNode) -> None:
        """See a copy of a disk made."""
        for known in (self._unsure, self._placed):
            known |= {(clone.name, key[1]): of for key, of in known.items() if key[0] == node.name}

    def whole_elsewhere(self, node: SimulatedNode, uuid: str) -> Path | None:
        """Return the directory of a table at the site that has most of it, None = nobody has."""
        others = [one for one in self._masters() if one is not node]
        most = max(others, key=lambda one: self.look(one, uuid), default=None)
        return None if most is None or not self.look(most, uuid) else _table(most, uuid)

    def spares(self, nodes: Iterable[SimulatedNode]) -> bool:
        """Return whether all versions are durable at other sites than these."""
        left = [one for one in self._masters() if one not in tuple(nodes)]
        return all(
            any(self._holds(one, uuid, version) for one in left)
            for uuid, history in self._histories.items()
            for version in history.versions
        )

    def _masters(self) -> Iterator[SimulatedNode]:
        return (self._world.nodes[name] for name in self._world.layout.masters)

    # -- writers -----------------------------------------------------------------------------------

    def staged(self, identity: bytes, uuid: str, content: bytes) -> None:
        """See a writer stage a commit of a table."""
        self._staged[identity, uuid] = hashlib.sha256(content).hexdigest()

    def shown(self, node: SimulatedNode, table: ShownTable) -> None:
        """See a node show a table to a writer."""
        self._tell(node, table.uuid, table.state.version)
        placed = self.look(node, table.uuid)
        if table.state.version >= placed:
            self._fail(f"shown: {node.name} tells version {table.state.version} of {table.uuid}, "
                       f"{placed} versions are there")  # fmt: skip

    def committed(
        self, node: SimulatedNode, table: ShownTable, version: int, identity: bytes
    ) -> None:
        """See a writer told 200."""
        self._world.checks.happened("commit table: told 200")
        self.shown(node, table)
        self._is_there(node, table.uuid, version, identity)

    def both_committed(
        self, node: SimulatedNode, versions: Mapping[str, int], identity: bytes
    ) -> None:
        """See a writer told that its transaction is a version of several tables."""
        self._world.checks.happened("commit table: several told 200")
        for uuid, version in versions.items():
            self._tell(node, uuid, version)
            if not self._histories[uuid].is_dropped:
                self._is_there(node, uuid, version, identity)

    def both_lost(self, identity: bytes) -> None:
        """See a writer told that its transaction is no version of any table."""
        self._world.checks.happened("commit table: several told 409")
        self._lost.add(identity)

    def _is_there(self, node: SimulatedNode, uuid: str, version: int, identity: bytes) -> None:
        if self.look(node, uuid) <= version:
            self._fail(f"told: {node.name} told 200, version {version} is not there")
        if (winner := self._winner(uuid, version)) != identity:
            text = transaction_id_to_text(identity)
            self._fail(f"told: {node.name} told {text} 200, version {version} is {winner!r}")

    def lost(self, node: SimulatedNode, uuid: str, version: int, identity: bytes) -> None:
        """See a writer told that another commit has its version."""
        self._world.checks.happened("commit table: told 409")
        self._lost.add(identity)
        history = self._histories[uuid]
        self._tell(node, uuid, version)
        if not history.is_dropped and self.look(node, uuid) <= version:
            self._fail(f"blind: {node.name} told of a winner of version {version} of {uuid} that "
                       f"is not there")  # fmt: skip

    def _tell(self, node: SimulatedNode, uuid: str, version: int) -> None:
        self._told[node.name, uuid] = max(version, self._told.get((node.name, uuid), -1))

    def _winner(self, uuid: str, version: int) -> bytes | None:
        history = self._histories.get(uuid)
        if history is None or version >= len(history.versions):
            return None
        return history.versions[version].identity

    # -- the end -----------------------------------------------------------------------------------

    def missing(self) -> str:
        """Return what is not placed yet, empty = nothing."""
        for uuid, history in self._histories.items():
            for node in self._masters():
                found = self.look(node, uuid)
                if not history.is_dropped and found < len(history.versions):
                    return f"{node.name} has {found} of {len(history.versions)} versions of {uuid}"
        return ""

    def check_end(self) -> None:
        """See that all directories are right from the first version on, and who lost is nowhere."""
        self._seen.clear()
        effects = [
            (one.identity, uuid) for uuid, h in self._histories.items() for one in h.versions
        ]
        if len(set(effects)) != len(effects):
            self._fail("told: a commit is two versions")
        for identity in self._lost.intersection(identity for identity, _ in effects):
            self._fail(f"told: {transaction_id_to_text(identity)} was told 409, and is a version")
        if missing := self.missing():
            self._fail(missing)


def _table(node: SimulatedNode, uuid: str) -> Path:
    return node.disk.path / "commit_tables" / uuid


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
