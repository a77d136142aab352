"""What this node knows for the verdict on losses: what each site holds, and which nodes vote.

It follows from what this node holds and from what the others said in their last posts.  Only the
site itself knows what it accepted since its last post.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sparktxlog.errors import NotFoundError
from sparktxlog.health import survival
from sparktxlog.health.survival import KnownSites, Site
from sparktxlog.model.answers import OperatorWarning, Survival
from sparktxlog.model.ids import NodeId
from sparktxlog.model.site_data import SiteData
from sparktxlog.model.tables.groups import sites_of
from sparktxlog.runtime.commit_tables.table_overview import TableOverview
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.runtime.membership.unseen_transactions import held_when_forced
from sparktxlog.runtime.replicas.all_replicas import AllReplicas

#: Seconds between two looks at what this site holds; each post carries it in any case.
_LOOK_S = 1.0


class SitesData:
    """What this site and the others hold of the data; belongs to the event loop."""

    def __init__(
        self,
        base: Foundation,
        membership: Membership,
        all_replicas: AllReplicas,
        commit_tables: TableOverview,
    ) -> None:
        self._base = base
        self._membership = membership
        self._all_replicas = all_replicas
        self.commit_tables = commit_tables
        #: What was sent to the peers last, without waiting for another post.
        self._sent: SiteData | None = None
        #: End of the queue at which somebody looked for tables with rows, and whether there are.
        self._looked = (("", -1), False)
        membership.own_data = self.own

    def own(self) -> SiteData | None:
        """Return what this site holds, None = it does not know the log yet, or is a witness."""
        if self._base.config.is_witness or self._membership.joining.ignorance():
            return None
        return SiteData.of(self._base.kept_after.value, self.commit_tables.lacking())

    async def watch(self) -> None:
        """Send the peers soon what changed in what this site holds; until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if (own := self.own()) != self._sent:
                self._sent = own
                self._membership.tell_data()

    def lacks(self) -> list[str]:
        """Return what this site lacks of what the others count on it to have; empty = nothing."""
        if self._base.config.is_witness:
            return []
        if ignorance := self._membership.joining.ignorance():
            return [ignorance]
        return survival.lacks(self._own_site(self._in_sync()), self._any_rows())

    def others_lack(self) -> dict[str, list[str]]:
        """Return the same of the sites of peers that answer; only of those that lack something."""
        if self._base.config.is_witness or self._membership.joining.ignorance():
            return {}
        _, *others = self._sites()
        any_rows = self._any_rows()
        found = {one.name: survival.lacks(one, any_rows) for one in others if one.data is not None}
        return {site: lacks for site, lacks in found.items() if lacks}

    def shown(self) -> dict[str, Any]:
        """Return what the status says that sites lack."""
        return {"lacks": self.lacks(), "others_lack": self.others_lack()}

    def warnings(self) -> list[OperatorWarning]:
        """Return the warning of a site that is no copy of the data yet."""
        lacks = self.lacks()
        if not lacks:
            return []
        text = (
            f"This site does not have all data: {'; '.join(lacks)}.  Lose or replace no other disk "
            "before `/readyz?data` is ok here."
        )
        return [{"code": "site-not-whole", "text": text}]

    def has_commit_table(self, uuid: str) -> dict[str, bool | None]:
        """Return other site → whether it has all of a commit table; None = it does not answer."""
        found = dict[str, bool | None]()
        for name, link in sorted(self._base.links.items()):
            seat = self._base.master.view.seat(NodeId(name))
            if seat is None or seat.witness:
                continue
            data = self._membership.data_of.get(name) if link.up else None
            found[name] = None if data is None else data.has_table(uuid)
        return found

    def survivals(self) -> list[Survival]:
        """Return what the loss of each node with a place would mean.

        Raises:
            NotFoundError: This node is a witness, which hears of no transactions (definite).
            FollowerError: This node is a follower, to which nobody says what it holds (definite).
        """
        self._membership.epochs.check_no_follower()
        base = self._base
        if base.config.is_witness:
            raise NotFoundError(
                f"node {base.config.node_id!r} is a witness: it does not know what only a site has",
                hint="Ask another node; `sparktxlog peer list` says which ones are no witnesses.",
                witness=base.config.node_id,
            )
        master = base.master
        cluster = KnownSites(
            position=master.status().position,
            ordered=master.member_state().watermarks,
            sites=self._sites(),
            voters=voters_without(base),
            any_rows=self._any_rows(),
            commit_tables={uuid: one.name for uuid, one in master.commit_tables.items()},
            grouped={t.name: at for t in master.tables.values() if (at := sites_of(t))},
        )
        return survival.survivals(cluster)

    def _any_rows(self) -> bool:
        """Return whether there are row tables with rows."""
        master = self._base.master
        end = (master.view.log_id, master.base.position)
        if self._looked[0] != end:  # a status asks several times, and there may be 10,000 tables
            counted = (master.writes(table) for table in master.tables)
            self._looked = (end, any(writes.version > 0 for writes in counted))
        return self._looked[1]

    def _in_sync(self) -> dict[str, int]:
        """Return site → furthest position of a replica with all tables that is in sync."""
        found = dict[str, int]()
        for line in self._all_replicas.status(self._base.clock.now(), tables=False):
            if line["verdict"] == "IN_SYNC" and not line.get("contested") and not line["only"]:
                site = line["node_id"]
                found[site] = max(found.get(site, 0), int(line["position"]))
        return found

    def _own_site(self, replicas: Mapping[str, int]) -> Site:
        own = str(self._base.config.node_id)
        return Site(
            name=own,
            transactions=held_when_forced(self._base.master.member_state(), None),
            data=self.own(),
            position=self._base.master.status().position,
            replica=replicas.get(own),
        )

    def _sites(self) -> list[Site]:
        """Return this site and those of the peers that are no witnesses and no followers."""
        master, status, replicas = self._base.master, self._base.master.status(), self._in_sync()
        state = master.member_state()
        found = [self._own_site(replicas)]
        for peer in status.peers:
            seat = master.view.seat(peer.peer)
            if seat is None or not seat.may_be_member:
                continue
            name = str(peer.peer)
            shown = {str(origin): last for origin, last in peer.acquired.items()}
            shown[name] = max(shown.get(name, 0), peer.last_seq)
            # A site that has ordered a position holds what is before it.
            if peer.position >= status.position:
                for origin, last in state.watermarks.items():
                    shown[str(origin)] = max(shown.get(str(origin), 0), last)
            answers = self._base.links[name].up if name in self._base.links else False
            found.append(
                Site(
                    name=name,
                    transactions=shown,
                    data=self._membership.data_of.get(name) if answers else None,
                    position=peer.position,
                    replica=replicas.get(name) if answers else None,
                )
            )
        return found


def voters_without(base: Foundation) -> dict[str, tuple[list[str], bool]]:
    """Return for each node the others that answer, witnesses too, and if they are a majority.

    Followers have no vote, and their loss changes nothing.
    """
    status, view = base.master.status(), base.master.view
    answering = {str(status.node_id), *(name for name, link in base.links.items() if link.up)}
    seats = [str(seat.node_id) for seat in view.roster if not seat.follower]
    answering = (answering & set(seats)) - set(map(str, status.suspects))
    left = {site: sorted(answering - {site}) for site in seats}
    return {site: (voters, view.elects(voters)) for site, voters in left.items()}
