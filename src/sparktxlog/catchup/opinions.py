"""Decides by majority which site is right if sites report different tables (S3).

An **opinion** is a replica's report of its tables' signatures at a position.  The newest one of
each replica and position is kept.  Results depend only on the kept opinions, not on their order of
arrival:

    three or more sites, more than half of them with the same signature  →  it is the truth for the
        table there; a replica with another one is **convicted**
    otherwise, two replicas that differ  →  nobody can say which is right; both are **contested**

Signatures are sums: a wrong table stays wrong until it is copied.  So a replica is judged by the
newest position for which its opinion can be judged, not only by its present one.  A conviction ends
when a later majority includes the replica, or by a copy.  A replica that was copied or made again
counts as another one: the former one's opinions are kept, but they do not judge the new one.

A site is one voice, however many replicas it has: they share machines and staged files.  The
replica that is judged speaks for its site; those of another site speak if they agree.  Replicas
are compared only in the tables that both hold.

A copy repeats its donor's opinion, right or wrong.  It is an **echo**: it adds no voice to its
donor's until a third site has agreed with it.  So a fault that was copied before it was found does
not outvote the site that is right.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from sparktxlog.model.replicas import holds, site_of

#: Least number of sites for a majority.
LEAST_SITES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What a replica reported at a position."""

    #: The replica, as `model.replicas` has it: of a site's main one it is the site.
    site: str
    #: Names the site's tables by worker and copy; it changes with a copy, and with a new lake.
    replica: str
    position: int
    #: Chain hash there: opinions on different histories are not compared.
    chain_hash: str
    #: Table → signature as text.
    signatures: Mapping[str, str]
    #: Replica and position that it was copied from; empty = never copied.
    donor: str = ""
    copied_at: int = 0
    #: Patterns of the tables that it holds; empty = all.
    only: tuple[str, ...] = ()

    def shares(self, other: Opinion) -> bool:
        """Return whether both hold a table that they can be compared in."""
        all_of_it = not self.only and not other.only
        return all_of_it or not self.signatures.keys().isdisjoint(other.signatures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dissent:
    """Where a replica differs from others."""

    position: int
    #: Tables that differ there, ascending, at least one.
    tables: tuple[str, ...]
    #: The replica's signature of the first of them; empty = it has no such table.
    signature: str
    #: Site → its signature; for a conviction only sites of the majority.
    others: Mapping[str, str]
    #: Newest earlier position where it was equal to another replica, 0 = unknown.
    equal_to: int = 0


def majority(signatures: Mapping[str, str]) -> str | None:
    """Return the signature of more than half of at least three sites, None if there is none.

    Args:
        signatures: Site → its signature.
    """
    if len(signatures) < LEAST_SITES:
        return None
    opinion, votes = Counter(signatures.values()).most_common(1)[0]
    return opinion if 2 * votes > len(signatures) else None


def of_sites(judged: str, says: Mapping[str, str]) -> dict[str, str]:
    """Return one replica of each site with what it says; a site that contradicts itself has none.

    Args:
        judged: It speaks for its site.
    """
    found: dict[str, str] = {}
    torn = set[str]()
    own = site_of(judged)
    for replica, said in sorted(says.items()):
        site = site_of(replica)
        if site == own and replica != judged:
            continue
        first = found.setdefault(site, replica)
        if says[first] != said:
            torn.add(site)
    return {one: says[one] for site, one in found.items() if site not in torn}


def _tables_of(opinions: Collection[Opinion]) -> set[str]:
    return {table for opinion in opinions for table in opinion.signatures}


class Opinions:
    """The opinions on the latest positions.

    Args:
        limit: Positions kept; the one heard of first goes first.
        pinned: Returns positions that verdicts stand on now: they are kept beyond the limit.
        may_have: Returns whether the site of a replica holds the rows of a table (P41).
    """

    def __init__(
        self,
        limit: int,
        pinned: Callable[[], Collection[int]] = tuple,
        may_have: Callable[[str, str], bool] = lambda replica, table: True,
    ) -> None:
        self._limit = limit
        self._pinned = pinned
        self._may_have = may_have
        #: Position → site → opinion, in the order in which positions were heard of.
        self._held: OrderedDict[int, dict[str, Opinion]] = OrderedDict()
        #: Site → positions of its opinions, ascending.
        self._positions: dict[str, list[int]] = {}

    def add(self, opinion: Opinion) -> bool:
        """Add an opinion, instead of the site's former one there; return whether it is new."""
        there = self._held.setdefault(opinion.position, {})
        former = there.get(opinion.site)
        if former == opinion:
            return False
        for other in there.values():
            if other.signatures == opinion.signatures:
                # Sites mostly agree: equal signatures are held once.
                opinion = replace(opinion, signatures=other.signatures)
                break
        there[opinion.site] = opinion
        if former is None:
            insort(self._positions.setdefault(opinion.site, []), opinion.position)
        if len(self._held) > self._limit:
            self._expire()
        return True

    def _expire(self) -> None:
        pinned = set(self._pinned())
        for position in [p for p in self._held if p not in pinned]:
            if len(self._held) <= self._limit:
                return
            for site in self._held.pop(position):
                self._positions[site].remove(position)

    def at(self, position: int) -> list[Opinion]:
        """Return the opinions on a position, by site."""
        return [opinion for _, opinion in sorted(self._held.get(position, {}).items())]

    def __len__(self) -> int:
        return len(self._held)

    # -- judging -----------------------------------------------------------------------------------

    def conviction(self, site: str, replica: str, until: int) -> Dissent | None:
        """Return where a majority says that a replica is wrong, None if none does.

        Each table is judged by the newest position at which there is a majority on it.

        Args:
            until: Where the replica stands; its opinions on later positions are from before its
                files were put back to an older state.
        """
        settled: set[str] = set()
        for own, heard in self._heard_with(site, replica, until, LEAST_SITES):
            tables = {one for one in _tables_of(heard.values()) if self._holds(own, one)}
            wrong, truths = [], {}
            for table in sorted(tables - settled):
                truth = self._truth(site, heard, table)
                if truth is None:
                    continue
                settled.add(table)
                if truth != own.signatures.get(table, ""):
                    wrong.append(table)
                    truths[table] = truth
            if wrong:
                first = wrong[0]
                found = self._says(heard, first).items()
                return Dissent(
                    position=own.position,
                    tables=tuple(wrong),
                    signature=own.signatures.get(first, ""),
                    others={s: text for s, text in sorted(found) if text == truths[first]},
                )
            if tables <= settled:
                return None
        return None

    def began(self, site: str, replica: str, table: str, dissent: Dissent) -> Dissent:
        """Return a dissent about one table as it was when it began.

        Args:
            dissent: What `conviction` or `contest` found; `others` are the sites to compare with.
        """
        first = replace(dissent, tables=(table,), equal_to=0)
        for own, heard in self._heard_with(site, replica, dissent.position, 2):
            says = {s: t for s, t in self._says(heard, table).items() if s in dissent.others}
            text = own.signatures.get(table, "")
            if text in says.values():
                return replace(first, equal_to=own.position)
            if says:
                first = replace(first, position=own.position, signature=text, others=says)
        return first

    def contest(
        self, site: str, replica: str, until: int, sound: Mapping[str, str]
    ) -> Dissent | None:
        """Return where a replica differs from another one and no majority says which is right.

        It is judged by the newest position that it and another sound replica reported.

        Args:
            until: Where the replica stands.
            sound: Site → replica there, of those that nothing is wrong with so far.
        """
        found: Dissent | None = None
        for own, heard in self._heard_with(site, replica, until, 2):
            others = {
                other: opinion
                for other, opinion in heard.items()
                if other != site and sound.get(other) == opinion.replica and own.shares(opinion)
            }
            if not others:
                continue
            tables = self._contested_tables(own, heard, others)
            if found is not None and not tables:
                return replace(found, equal_to=own.position)
            if found is None:
                if not tables:
                    return None
                first = tables[0]
                text = own.signatures.get(first, "")
                says = self._says(others, first)
                found = Dissent(
                    position=own.position,
                    tables=tables,
                    signature=text,
                    others={s: said for s, said in sorted(says.items()) if said != text},
                )
        return found

    def _contested_tables(
        self, own: Opinion, heard: Mapping[str, Opinion], others: Mapping[str, Opinion]
    ) -> tuple[str, ...]:
        """Return the tables in which replicas differ and no majority decides."""
        return tuple(
            table
            for table in sorted(_tables_of([own, *others.values()]))
            if self._holds(own, table)
            and set(self._says(others, table).values()) - {own.signatures.get(table, "")}
            and self._truth(own.site, heard, table) is None
        )

    def _truth(self, judged: str, heard: Mapping[str, Opinion], table: str) -> str | None:
        """Return the majority's signature of a table at one position, without echoes.

        Args:
            judged: The replica that is judged.
        """
        says = of_sites(judged, self._says(heard, table))
        if len(set(says.values())) == 1:
            return majority(says)
        spoken = {site_of(replica): said for replica, said in says.items()}
        voices = {
            replica: said
            for replica, said in says.items()
            if (donor := site_of(heard[replica].donor)) == site_of(replica)
            or spoken.get(donor) != said
            or not self._is_echo(heard[replica], table)
        }
        # Two that copied each other are still one voice.
        for replica, said in says.items():
            if said not in voices.values():
                voices[replica] = said
        return majority(voices)

    def _is_echo(self, opinion: Opinion, table: str) -> bool:
        """Return whether no third site has agreed with a copied replica since it was copied."""
        apart = (site_of(opinion.site), site_of(opinion.donor))
        for position in reversed(self._positions[opinion.site]):
            if position < opinion.copied_at:
                break
            there = self._held[position]
            own = there[opinion.site]
            if position >= opinion.position or own.replica != opinion.replica:
                continue
            said = own.chain_hash, own.signatures.get(table, "")
            for other in there.values():
                third = site_of(other.site) not in apart and site_of(other.donor) not in apart
                if third and (other.chain_hash, other.signatures.get(table, "")) == said:
                    return False
        return True

    def _heard_with(
        self, site: str, replica: str, until: int, least: int
    ) -> Iterator[tuple[Opinion, dict[str, Opinion]]]:
        """Yield a replica's opinions, newest first, each with those of all sites on its position.

        Only where at least `least` sites have one.
        """
        for position in reversed(self._positions.get(site, ())):
            there = self._held[position]
            if position > until or len(there) < least or (own := there[site]).replica != replica:
                continue
            heard = {s: o for s, o in there.items() if o.chain_hash == own.chain_hash}
            if len(heard) >= least:
                yield own, heard

    def _says(self, opinions: Mapping[str, Opinion], table: str) -> dict[str, str]:
        return {
            site: opinion.signatures.get(table, "")
            for site, opinion in opinions.items()
            if self._holds(opinion, table)
        }

    def _holds(self, opinion: Opinion, table: str) -> bool:
        """Return whether a replica holds a table: by its set, and at its site."""
        return holds(opinion.only, table) and self._may_have(opinion.site, table)
