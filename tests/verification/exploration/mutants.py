"""Cores with one rule broken each that the exploration must find, at its shortest depth."""

from __future__ import annotations

from tests.verification.mutation.mutant import BY_NAME, Patch

#: Goes on during an epoch change: freezing stops nothing (P14), but at a witness.
_NOT_WEDGED = Patch(
    path="src/sparktxlog/protocol/order/ordering.py",
    old="        self.frozen = True\n",
    new="""\
        seats = self._config.roster
        if not any(seat.witness and seat.node_id == self._config.node_id for seat in seats):
            return
        self.frozen = True
""",
)
#: Waits on for the others, whoever says NO (P35).
_NO_IGNORED = Patch(
    path="src/sparktxlog/protocol/effects/marking.py",
    old="""\
            self.decide(one, index, Rejection(index=index, code=RolledBackError.code, text=text))
            return None, None
""",
    new="            return None, None\n",
)
#: Before each run it rejects what is not valid at its own log time, which runs ahead (P35).
_EXPIRES_BY_OWN_CLOCK = Patch(
    path="src/sparktxlog/protocol/order/ordering.py",
    old="""\
                queue.append(run, streams[run.header.origin])
        self._drain(now, len(self._config.members))
""",
    new="""\
                queue.marking.pass_time(own)
                queue.append(run, streams[run.header.origin])
        self._drain(now, len(self._config.members))
""",
)
#: Name → patches; most are of the table of mutations.
MUTANTS: dict[str, tuple[Patch, ...]] = {
    "not-wedged": (_NOT_WEDGED,),
    "longest-instead-of-union": BY_NAME["longest-queue"].patches,
    "accepted-ignored": BY_NAME["accepted-value-ignored"].patches,
    "promise-ignored": BY_NAME["accepts-any-ballot"].patches,
    "no-ignored": (_NO_IGNORED,),
    "expires-by-own-clock": (_EXPIRES_BY_OWN_CLOCK,),
} | {
    name: BY_NAME[name].patches
    for name in (
        "skip-instead-of-stop", "counter-reused", "quorum-minus-one", "no-vote-majority",
        # Only what conditions, marks, expiry and commits decide shows these.
        "other-origins-ignored", "lost-ones-write", "writes-forgotten",
        "first-yes-decides", "yes-binds", "judged-where-ordered", "written-where-ordered",
        "late-yes-counts", "expires-a-moment-early", "undecided-forgotten",
        "half-a-transaction", "only-the-first-commit-judged",
        "decisions-not-durable", "all-commits-win", "dropped-lives-on", "tables-forgotten",
    )
}  # fmt: skip
