"""The table of mutations: rule by rule, how each is put in and what must find it."""

from __future__ import annotations

from tests.verification.mutation import (
    clocks,
    deciding,
    entering,
    ordinary,
    standing,
    versions,
    voiding,
)
from tests.verification.mutation.mutant import (
    Core,
    Killer,
    Mutant,
    forgetful,
    hasty,
    ordering,
    patched,
    plain,
)
from tests.verification.simulation.node import SimulatedNode

from sparktxlog.protocol import master as mastering
from sparktxlog.protocol.epoch import proposer as proposing
from sparktxlog.protocol.epoch import standing as standings
from sparktxlog.protocol.epoch import succession
from sparktxlog.protocol.epoch import suspicion as suspecting
from sparktxlog.protocol.epoch.changes import Changes
from sparktxlog.protocol.epoch.joining import Admission
from sparktxlog.protocol.epoch.proposer import Proposer
from sparktxlog.protocol.epoch.standing import Standings
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.epoch.suspicion import Suspicion
from sparktxlog.protocol.epoch.union import FinalQueue
from sparktxlog.protocol.epoch.voter import Voter
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.order import collecting, final_queue
from sparktxlog.protocol.order import ordering as orders
from sparktxlog.protocol.order.catalog import Catalog
from sparktxlog.protocol.order.collecting import Collecting
from sparktxlog.protocol.order.counter import TimestampCounter, WallClock
from sparktxlog.protocol.order.fetching import Fetching
from sparktxlog.protocol.order.idwindow import IdWindow
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.origin_queues import Stream
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.posting import Rounds, Snapshot
from sparktxlog.protocol.order.staging import Staging
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.protocol.words.action_order import ActionStream
from sparktxlog.protocol.words.actions import (
    PersistAnnouncement,
    PersistBallot,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    PersistView,
    PersistWithdrawal,
)
from sparktxlog.protocol.words.balloting import Flushed, Promise, Standing
from sparktxlog.protocol.words.outbox import Outbox
from sparktxlog.protocol.words.versions import Raising
from sparktxlog.protocol.words.view import View

_KILLERS = {"r": Killer.SCHEDULES, "s": Killer.SIMULATION, "t": Killer.TRACE}


def _m(
    rule: str,
    name: str,
    says: str,
    core: Core,
    killers: str,
    layouts: tuple[str, ...] = (),
    survives: str = "",
) -> Mutant:
    return Mutant(
        name=name, rule=rule, says=says, core=core, layouts=layouts, survives=survives,
        killers=tuple(_KILLERS[letter] for letter in killers),
    )  # fmt: skip


def _succession(mutant: type[Succession]) -> Core:
    return plain(type(mutant.__name__, (Master,), {"succession_class": mutant}))


_FORCED = ("two-alone",)
_RIVALS = ("two-rivals", "three-rivals", "five-rivals")

_ORDINARY = (
    _m("P1", "counter-reused", "stamps at the posted counter instead of above it",
       ordering(ordinary.ReusedCounter), "r"),
    _m("P1", "own-run-spoken-early", "tells and pushes an own run before it is durable",
       hasty(PersistOwnRun), "rst"),
    _m("P1", "speaks-before-persisting", "sends before every persist of the same batch",
       hasty(PersistOwnRun, PersistForeignRun, PersistReservation, PersistAnnouncement,
             PersistQueue), "r"),
    _m("P1", "own-runs-forgotten", "restarts without its own runs and gives their numbers again",
       forgetful(ordinary.forget_own), "rs"),
    _m("P1a", "session-overtaken", "stamps a small run before the bulk one of its session",
       patched((Staging, "must_wait", ordinary.no_waiting)), "s"),
    _m("P1a", "announcements-dropped", "restarts without what it accepted and did not stamp",
       forgetful(ordinary.forget_announcements), "s"),
    _m("P1a", "withdrawn-run-stamped", "rejects a run whose files are lost, and stamps it later",
       patched((Staging, "withdraw", ordinary.keep_withdrawn)), "t"),
    _m("P1a", "withdrawal-not-durable", "tells that a run is rejected before it is forgotten",
       hasty(PersistWithdrawal), "t"),
    _m("P1b", "run-continued", "stamps a later submit with the timestamp of a run that waits",
       patched((Stream, "register", ordinary.register_equal_timestamps),
               master=ordinary.ContinuingMaster), "r"),
    _m("P1b", "run-torn-in-add", "appends a run's first transaction, and the rest later",
       ordering(ordinary.TornAddition), "rs"),
    _m("P1b", "run-torn-in-union", "takes only half of the final queue's last run",
       patched((proposing, "final_queue", deciding.torn_union)), "st"),
    _m("P2", "reservation-forgotten", "restarts without H: the counter begins anew",
       plain(ordinary.ForgottenReservation), "r"),
    _m("P2", "reservation-late", "lets a counter out that H does not cover",
       patched((TimestampCounter, "reservation", ordinary.reservation_late)), "r"),
    _m("P2", "reservation-not-durable", "posts a counter before its H is durable",
       hasty(PersistReservation), "rt"),
    _m("P2", "newest-run-unpromised", "promises an n that leaves out the newest own run",
       ordering(ordinary.ForgottenNewest), "r"),
    _m("P3", "post-torn", "a post's counter is later than its headers",
       ordering(ordinary.TornPost), "r"),
    _m("P3", "cut-left-out", "promises nothing for the headers of a post that lacks room for all",
       patched((Snapshot, "_make", ordinary.uncut)), "t"),
    _m("P3a", "pause-waited-out", "fetches from one that is back no sooner than it planned without",
       patched((Fetching, "hurry", ordinary.no_hurry)), "t"),
    _m("P3a", "any-payload-ends-fetch", "takes whatever comes with a digest for its fetch's answer",
       patched((Fetching, "arrived", ordinary.any_payload_ends_a_fetch)), "t"),
    _m("P4", "claims-unacquired", "posts headers as acquired before their payload is here",
       ordering(ordinary.ClaimingUnacquired), "r"),
    _m("P4", "claims-beyond-gap", "posts as acquired what lies behind a gap",
       ordering(ordinary.ClaimingBeyondGap), "rs"),
    _m("P4", "acquired-not-durable", "posts a claim before the run is durable",
       hasty(PersistForeignRun), "rt"),
    _m("P4", "vector-too-far", "believes an acquired claim to cover one run more",
       patched((Peer, "record_acquired", ordinary.believe_more)), "r"),
    _m("P5", "promise-before-headers", "uses a promise whose headers are not held",
       patched((Peer, "record_promise", ordinary.promise_without_headers)), "r"),
    _m("P5", "promise-settled-early", "uses waiting promises once any header came",
       patched((Peer, "settle_promise", ordinary.settle_all)), "rs"),
    _m("P5", "no-epoch-tag", "counts promises and claims of earlier epochs in this one",
       plain(ordinary.AnyEpoch), "ts"),
    _m("P6", "log-clock-not-raised", "leaves the log clock behind the timestamps of others",
       patched((TimestampCounter, "learn", ordinary.learn_nothing)), "ts"),
    _m("P7", "skip-instead-of-stop", "skips a run that is not acquired yet",
       ordering(ordinary.Skipping), "r"),
    _m("P7", "quorum-minus-one", "appends with one holder fewer than configured",
       ordering(ordinary.SmallerQuorum), "r"),
    _m("P7", "greatest-promise", "cuts at the greatest counter instead of the least",
       ordering(ordinary.GreatestPromise), "r"),
    _m("P7", "self-not-needed", "appends without holding the payload itself",
       ordering(ordinary.IgnoredSelf), "r"),
    _m("P7", "own-counter-left-out", "cuts at the least promise of the others alone",
       patched((orders, "least_promise", ordinary.least_of_peers)), "rs",
       survives="receiving a header raises the own log clock, hence the own counter"),
    _m("P7", "queue-volatile", "forgets at each start what the present epoch appended",
       patched((SimulatedNode, "start", ordinary.start_without_queue)), "s",
       ("two-and-witness", "two-rivals", "three-rivals"),
       survives="permitted: others send it again; found where all forgot a base"),
    _m("P8", "no-heartbeat", "never repeats a post that was lost",
       patched((Rounds, "plan", ordinary.never)), "rs"),
    _m("P9", "tail-hash-unchecked", "appends a tail whatever its hashes say",
       patched((SynchronizedQueue, "continue_tail", ordinary.follow_blindly)), "t"),
    _m("P10", "tripwire-off", "does not notice a broken promise",
       patched((Stream, "breaks_promise", ordinary.unbroken),
               (Collecting, "_check_promise", ordinary.unchecked)), "t"),
    _m("P10", "halts-for-others", "stops when another node contradicts itself",
       plain(standing.HaltsForOthers), "t"),
    _m("P10", "believes-again", "goes on believing a node that contradicted itself",
       plain(standing.BelievesAgain), "t"),
    _m("P10", "halts-at-the-first", "stops when one member of many has another queue",
       plain(standing.HaltsAtTheFirst), "t"),
    _m("P10", "never-outvoted", "goes on although the others have another queue",
       plain(standing.NeverOutvoted), "t"),
)  # fmt: skip

_DECIDING = (
    _m("P11", "new-voters-decide", "counts votes by the view that is to come",
       patched((Proposer, "take_accepted", deciding.new_voters)), "ts", _RIVALS),
    _m("P12", "no-vote-majority", "lets one vote decide",
       patched((View, "elects", deciding.any_vote)), "s"),
    _m("P12", "half-the-votes", "lets half of the votes decide",
       patched((View, "elects", deciding.half)), "ts", _RIVALS),
    _m("P12", "no-data-quorum", "is content with what one answering member holds",
       patched((View, "preserves", deciding.any_member)), "st", ("three-and-two-witnesses",)),
    _m("P12", "new-quorum-counts", "counts the answers by the quorum that it changes to",
       patched((Proposer, "_suffice", deciding.new_quorum)), "t"),
    _m("P13", "no-probe", "starts a ballot without quorums in reach",
       patched((Suspicion, "allows", deciding.allows_always)), "t"),
    _m("P13", "duty-alone", "evicts nobody if the first in precedence is missing",
       _succession(deciding.DutyAlone), "s", ("three-hours",)),
    _m("P13", "deaf-kept", "keeps a member that promises and does not hear",
       ordering(clocks.ContentWithPromises), "t"),
    _m("P13", "complaint-of-it-ignored", "keeps a member that went deaf behind a header",
       patched((Suspicion, "deaf", clocks.nobody_is_deaf)), "t"),
    _m("P13", "deaf-for-long", "holds against a member that it was deaf, though it hears again",
       patched((Suspicion, "answered", clocks.deaf_for_long)), "t"),
    _m("P13", "useless-as-before", "holds against a node that came back what it promised before",
       patched((Suspicion, "link", clocks.useless_as_before)), "t"),
    _m("P13", "evicts-at-once", "takes a suspect for dead without having tried it",
       patched((Suspicion, "overdue", deciding.overdue_at_once)), "t"),
    _m("P13", "complaint-left-waiting", "waits out its own patience with whom others complain of",
       patched((Suspicion, "complaint", Suspicion.expect)), "t"),
    _m("P13", "retry-with-roster", "proposes a change behind a wedge, majority or not",
       patched((succession, "replace", deciding.retried_as_is)), "t"),
    _m("P14", "stamps-wedged", "stamps and posts while wedged",
       ordering(deciding.StampsWedged), "ts"),
    _m("P14", "acquires-wedged", "acquires, claims and posts while wedged",
       ordering(deciding.AcquiresWedged), "st"),
    _m("P14", "adds-wedged", "collects, appends and posts while wedged",
       ordering(deciding.AddsWedged), "st"),
    _m("P14", "no-wedge", "does everything while wedged",
       ordering(deciding.Unwedged), "st"),
    _m("P14", "frozen-posts-repeated", "repeats its last post while wedged",
       ordering(deciding.RepeatsPosts), "s",
       survives="permitted: the same post once more is what a network may do anyway"),
    _m("P14", "promise-spoken-early", "answers a ballot before its promise is durable",
       hasty(PersistBallot, messages=(Promise,), at_once=True), "ts", _RIVALS),
    _m("P14", "promise-forgotten", "restarts without the promised ballot",
       forgetful(deciding.forget_promise), "ts", _RIVALS),
    _m("P14", "wedge-forgotten", "works on after a restart although a ballot was promised",
       plain(entering.ForgottenWedge), "ts", _RIVALS),
    _m("P14", "own-promise-volatile", "tells a value in a ballot that only its memory knows",
       patched((Succession, "_promise", deciding.promise_in_memory)), "ts", _RIVALS),
    _m("P14", "promises-any-ballot", "promises lower ballots, too",
       patched((Voter, "promise", deciding.promise_anything)), "ts", _RIVALS),
    _m("P14", "ballot-counter-volatile", "begins with ballot number 1 after a restart",
       _succession(deciding.StartsAtZero), "ts", _RIVALS),
    _m("P15", "accepted-value-ignored", "proposes its own value although one was accepted",
       patched((Proposer, "_highest_vote", deciding.no_vote)), "st", _RIVALS),
    _m("P15", "lowest-ballot", "takes the accepted value of the lowest ballot",
       patched((Proposer, "_highest_vote", deciding.lowest_vote)), "ts", _RIVALS),
    _m("P15", "longest-queue", "takes the longest queue instead of the union",
       patched((proposing, "final_queue", deciding.longest_queue)), "s"),
    _m("P15", "proposers-queue", "takes the proposer's queue instead of the union",
       patched((Proposer, "_final_queue", deciding.own_queue)), "s"),
    _m("P15", "union-unsorted", "leaves the union in the order of its origins",
       patched((proposing, "final_queue", deciding.unsorted_union)), "s"),
    _m("P15", "union-with-gaps", "promises runs behind a gap as well",
       ordering(deciding.BeyondGaps), "s"),
    _m("P16", "no-flush", "asks for votes before anybody holds the final queue",
       patched((Proposer, "choose", deciding.without_flush)), "s"),
    _m("P16", "promise-for-flush", "takes a promise for a flush, whatever it shows",
       patched((FinalQueue, "is_held", deciding.everything_is_held)), "ts"),
    _m("P16", "held-under-any-stamp", "takes a run with an older stamp for that of the final queue",
       patched((FinalQueue, "is_held", deciding.any_stamp_is_held)), "t"),
    _m("P16", "holds-beyond-gap", "says that it holds what lies behind a gap",
       patched((Stream, "_beside", deciding.all_beside)), "ts"),
    _m("P16", "flush-half-done", "takes every answer to a flush for a complete one",
       patched((Proposer, "take_flushed", deciding.begun_is_done)), "st"),
    _m("P16", "flush-of-a-majority", "goes on when a majority of the members flushed",
       patched((Proposer, "take_flushed", deciding.majority_flushed)), "st"),
    _m("P16", "done-not-missed", "waits for a run that only one had who is gone",
       patched((Proposer, "_awaited_in_flush", deciding.done_are_not_missed)), "t"),
    _m("P16", "payload-not-durable", "answers a flush before the payload is durable",
       hasty(PersistForeignRun, messages=(Flushed,), at_once=True), "ts"),
    _m("P16", "votes-asked-early", "asks for votes before its own payload is durable",
       patched((Outbox, "tell_first", deciding.told_at_once)), "t"),
    _m("P17", "accepted-forgotten", "restarts without the accepted value",
       forgetful(deciding.forget_accepted), "st", _RIVALS),
    _m("P17", "accepts-any-ballot", "accepts in ballots below the promised one",
       patched((Voter, "accept", deciding.accept_anything)), "ts", _RIVALS),
    _m("P17", "accept-unpromised", "accepts in a ballot without promising it",
       patched((Voter, "accept", deciding.accept_without_promise)), "ts", _RIVALS),
    _m("P17", "first-vote-decides", "takes the first vote for the decision",
       patched((Proposer, "take_accepted", deciding.first_vote)), "st", _RIVALS),
    _m("P17", "second-decision-ignored", "goes on when another one was decided for its epoch",
       patched((Succession, "_check_agrees", ordinary.unchecked)), "t"),
)  # fmt: skip

_ENTERING = (
    _m("P18", "install-unchecked", "installs a final queue that is none of its own",
       plain(entering.InstallsAnything), "t"),
    _m("P18", "held-runs-unchecked", "appends the runs it holds without comparing the hash",
       patched((final_queue, "_append_held", entering.appended_unchecked)), "ts"),
    _m("P18", "held-runs-left", "waits for a tail with runs that it holds",
       patched((final_queue, "_append_held", entering.nothing_appended)), "t"),
    _m("P18", "view-spoken-early", "posts in an epoch before its view is durable",
       hasty(PersistView, at_once=True), "ts"),
    _m("P18", "acquired-kept", "keeps for acquired, when evicted, what its disk dropped",
       plain(entering.KeepsAcquired), "s"),
    _m("P18", "counter-not-raised", "leaves its counter behind the final queue's end",
       plain(entering.CounterNotRaised), "s",
       survives="the epoch leads the order key; only log-time deadlines need the counter"),
    _m("P19", "evicted-works", "goes on posting and adding when evicted",
       plain(entering.EvictedWorks), "st"),
    _m("P19", "evicted-stays", "takes no note of a view without itself",
       plain(entering.EvictedStays), "s"),
    _m("P19", "evicted-takes-transactions", "takes transactions without being a member",
       patched((mastering, "TAKES_SUBMITS", entering.ALL_TAKE_SUBMITS)), "t"),
    _m("P20", "resubmits-blindly", "stamps own runs anew that the final queue holds",
       plain(entering.ResubmitsBlindly), "s"),
    _m("P20", "restamps-foreign", "stamps anew what others stamped",
       plain(entering.RestampsForeign), "t"),
    _m("P20", "restamps-outside", "stamps own runs anew without being a member",
       plain(entering.RestampsOutside), "st"),
    _m("P20", "restamps-in-old-epoch", "leaves own runs in the epoch before",
       plain(entering.RestampsInOldEpoch), "s"),
    _m("P20", "restamps-backwards", "stamps own runs anew, the last one first",
       plain(entering.RestampsBackwards), "s"),
    _m("P21", "joiner-unflushed", "admits a joiner that does not hold the final queue",
       patched((Proposer, "take_flushed", entering.joiners_unflushed)), "st"),
    _m("P21", "amnesiac-votes", "lets a node without its memory vote",
       patched((View, "is_current", entering.any_incarnation)), "ts"),
    _m("P21", "old-incarnation", "returns from a lost disk under its old name",
       plain(entering.OldIncarnation), "s"),
    _m("P21", "former-incarnation", "decides on a change under the incarnations it was asked with",
       patched((Proposer, "_new_view", entering.incarnations_as_asked)), "t"),
    _m("P22", "lagger-not-served", "sends no tail to a member that lags behind",
       patched((Ordering, "_serve_lagger", ordinary.no_service)), "rt"),
    _m("P25b", "catalog-forgotten", "restarts without the tables that its queue created",
       forgetful(ordinary.forget_tables), "s"),
    _m("P9", "tail-of-before", "begins a tail behind what a member had before it started again",
       patched((Peer, "note_newest", ordinary.tail_of_before)), "ts"),
    _m("P25c", "acceptance-ignored", "looks for repeats in its window only",
       patched((Catalog, "_reject_by_id", ordinary.no_acceptance)), "s"),
    _m("P25c", "older-ids-ignored", "looks for repeats of a late run in its window only",
       patched((Catalog, "_reject_by_id", ordinary.nothing_older)), "s"),
    _m("P25c", "never-expired", "lets a run take effect however late it is ordered",
       patched((Catalog, "_reject_by_id", ordinary.never_expired)), "s"),
    _m("P25c", "first-forgotten", "tells of a repeated id where it stood last",
       patched((IdWindow, "note_repeat", ordinary.newest_first)), "s"),
    _m("P25c", "window-shorter-after-restart", "restarts with half of the ids",
       forgetful(ordinary.forget_ids), "s"),
    _m("P23", "force-own-queue", "forces its own queue although it accepted a value",
       patched((mastering, "forced_view", entering.force_own)), "ts", _FORCED),
    _m("P23", "force-beside-accepted", "forces an accepted value beside the epoch it may be of",
       patched((mastering, "forced_view", entering.force_beside)), "t"),
    _m("P23", "force-leaves-votes", "forces, and leaves the others their votes",
       patched((mastering, "forced_view", entering.force_with_votes)), "ts", _FORCED),
    _m("P23", "force-torn", "writes what `force` appends, and its view, in two batches",
       patched((ActionStream, "_whole", entering.full_batch)), "ts", _FORCED),
    _m("P23", "force-same-lineage", "forces under the lineage that the others go on with",
       plain(entering.SameLineage), "ts", _FORCED),
    _m("P23", "fork-followed", "takes the view of another fork for its own future",
       patched((Succession, "_follows", entering.follow_any_lineage)), "ts", _FORCED),
    _m("P23", "fork-missed", "follows a fork from the last epoch before it only",
       patched((View, "continues", entering.from_the_last_epoch)), "t"),
    _m("P23", "fork-tail-taken", "appends the tail of another lineage",
       plain(entering.AnyLineage), "t"),
)  # fmt: skip

_CLOCKS = (
    _m("C1", "log-clock-full-speed", "never lets the wall clock catch up with the log clock",
       patched((TimestampCounter, "log_time", clocks.full_speed)), "t"),
    _m("C3", "log-clock-compared", "posts its log clock for its wall clock",
       ordering(clocks.PostsLogClock), "t"),
    _m("C3", "jump-believed", "follows a wall clock that was set, whatever the others' say",
       patched((WallClock, "time", clocks.any_wall_clock)), "t"),
    _m("C3", "jump-never-believed", "does not follow a wall clock that all agree with",
       patched((WallClock, "believe", clocks.never_believe)), "t"),
    _m("C3", "bound-pushed", "lets timestamps of peers move the bound for the next ones",
       patched((TimestampCounter, "learn", clocks.learn_the_bound)), "t"),
    _m("C3", "no-clock-reserved", "takes a counter that follows no clock for the time",
       plain(clocks.ReservesAlways), "t"),
    _m("C3", "witness-judges", "judges at a witness what a joiner would promise",
       _succession(clocks.WitnessJudges), "t"),
    _m("C3", "late-headers-taken", "takes headers with any timestamp",
       patched((collecting, "fits", clocks.any_header),
               (collecting, "post_fits", clocks.any_header)), "t"),
    _m("C3", "late-tails-taken", "takes tails with any timestamp",
       patched((orders, "all_fit", clocks.any_headers)), "t"),
    _m("C3", "any-candidate", "takes any ballot, promise and candidate for one that can be",
       patched((succession, "misfit", clocks.any_message)), "t"),
    _m("C3", "late-promise-lost", "takes the promise of a node that stamped far ahead for lost",
       _succession(clocks.LosesLatePromises), "t"),
    _m("C3", "late-runs-counted", "brings runs stamped far ahead into the final queue",
       patched((proposing, "all_fit", clocks.any_headers)), "t"),
    _m("C3", "most-left-out", "leaves out most members, since their runs seem too late",
       patched((Proposer, "_suffice", clocks.any_are_late)), "t"),
    _m("C3", "late-vote-binds", "adopts a vote for runs stamped far ahead that decided nothing",
       patched((Proposer, "_binding_vote", Proposer._highest_vote)), "t"),
    _m("C3", "late-vote-dropped", "drops a vote for runs stamped far ahead that may be decided",
       patched((Proposer, "_binding_vote", clocks.highest_fitting_vote)), "t"),
    _m("C3", "late-vote-once", "does not vote again for runs stamped far ahead",
       _succession(clocks.RefusesItsOwnVote), "t"),
    _m("C3", "useless-kept", "waits for a member that is heard and promises nothing of use",
       patched((Suspicion, "_useless", clocks.none_useless)), "t"),
    _m("C3", "growing-evicted", "takes a promise that grows for one of no use",
       patched((suspecting, "_GROWING", 1)), "t"),
    _m("C3", "useless-answers", "keeps a useless member because it answers",
       _succession(clocks.TakesEvery), "t"),
    _m("C1", "gone-headers-counted", "leaves the log clock where headers raised it that are gone",
       patched((TimestampCounter, "begin_epoch", clocks.gone_is_kept)), "t"),
    _m("C3", "waiting-there-ignored", "does not mind what waits at a member that is too far ahead",
       ordering(clocks.DeafToWaiting), "t"),
    _m("C3", "useless-disfranchised", "counts no vote of a useless member that an operator acts on",
       _succession(clocks.CountsNoUseless), "t"),
    _m("C3", "useless-votes-unasked", "leaves a useless member out by its own votes, unasked",
       _succession(clocks.UsesTheUseless), "t"),
    _m("C3", "any-counter-joins", "admits a node whose counter nobody can use",
       _succession(clocks.AdmitsAnyCounter), "t"),
)  # fmt: skip

_STANDING = (
    _m("P10", "queue-not-believed", "stops when a queue has another run than its origin named",
       patched((collecting, "_only_named", standing.never_only_named)), "t"),
    _m("P30", "older-disk-taken", "takes a node that shows less than before for the same",
       patched((standings, "shortfall", standing.nothing_is_short)), "t"),
    _m("P30", "silence-is-enough", "believes a greeting that does not say its start",
       patched((standings, "shortfall", standing.silence_is_enough)), "t"),
    _m("P30", "posts-not-noted", "compares no greeting with what posts showed",
       patched((Standings, "posted", standing.posts_show_nothing)), "t"),
    _m("P30", "votes-not-noted", "compares no greeting with promised and accepted ballots",
       patched((Standings, "said", standing.votes_show_nothing)), "t"),
    _m("P30", "ballots-ahead-noted", "holds promises against a node that answered nothing here",
       patched((Standings, "said", standing.any_epoch_shows)), "t"),
    _m("P30", "own-streams-not-compared", "compares no greeting with what it holds of the node",
       patched((Ordering, "durable_of", standing.holds_nothing)), "t"),
    _m("P30", "late-greetings-count", "takes an earlier greeting that comes late for an older disk",
       patched((Master, "judge", standing.judged_each_time)), "t"),
    _m("P30", "standings-volatile", "forgets at a restart what others showed",
       patched((Standings, "take", standing.nothing_is_kept)), "t"),
    _m("P21", "admits-what-it-was", "takes the word of what a joiner was for that of the joiner",
       patched((Proposer, "is_to_be", standing.is_whoever_it_was)), "t"),
    _m("P21", "asks-for-ever", "admits a node that is again what it was before it asked",
       patched((Admission, "greeted", standing.asks_for_ever)), "t"),
    _m("P23", "forced-from-last-epoch", "follows a forced log from the very epoch it left alone",
       patched((View, "continues", standing.last_epoch_only)), "t"),
    _m("P30", "asks-as-it-was", "asks to be admitted as what the log has left behind",
       patched((mastering, "check_incarnation", standing.asks_as_it_was)), "t"),
    _m("P30", "bound-by-what-it-was", "begins above timestamps of another incarnation of itself",
       plain(standing.BoundByWhatItWas), "t"),
    _m("P30", "empty-disk-binds", "compares a node with an empty disk that was in its place",
       patched((Standing, "is_blank", False)), "t"),
    _m("P29", "unheard-left-out", "goes on in the first epoch without a node it never heard",
       patched((Succession, "_unheard", standing.everybody_was_heard)), "t"),
)  # fmt: skip

_VERSIONS = (
    _m("P31", "raised-by-a-majority", "raises the version once a majority promised that speaks it",
       patched((proposing, "raised", versions.raised_by_most)), "t"),
    _m("P31", "version-lowered", "takes the version into force that all happen to have promised",
       patched((proposing, "raised", versions.lowered)), "t"),
    _m("P31", "never-raised", "raises no version while nothing else is to be decided",
       patched((Raising, "wanted", property(versions.never))), "t"),
    _m("P31", "raised-too-soon", "begins to raise the version while somebody is away",
       patched((Raising, "linked", versions.never_forgets)), "t"),
    _m("P31", "witness-not-awaited", "decides before a witness could promise the later version",
       patched((Proposer, "_awaited", versions.members_only)), "t"),
    _m("P31", "acceptance-too-soon", "says in manifests what not all members read",
       patched((mastering, "ACCEPTANCE", 0)), "t"),
)  # fmt: skip

_VOIDING = (
    _m("P32", "void-not-durable", "appends what stands in a void run's place without keeping it",
       patched((Outbox, "persist", voiding.not_durable)), "ts"),
    _m("P32", "voids-what-is-held", "voids a run that a member holds",
       patched((Ordering, "claims", voiding.claim_nothing)), "ts"),
    _m("P32", "voids-what-is-not-seen", "voids a run that a silent member may hold",
       patched((Proposer, "_objection", voiding.never_silent)), "t"),
    _m("P32", "void-forgotten", "restarts with its vote, and not with what that makes void",
       forgetful(voiding.forget_voids), "ts"),
    _m("P32", "one-void-at-a-time", "voids only what the proposer itself was asked for",
       patched((Proposer, "_voided", voiding.one_wish)), "ts"),
    _m("P32", "void-before-decided", "forgets a run that it holds before it is decided to be void",
       patched((Collecting, "learn_void", voiding.drop_claims)), "ts"),
    _m("P32", "void-waits-for-a-flush", "waits with a void for the flush that waits for the run",
       patched((Succession, "asked", voiding.wait_for_the_flush)), "t"),
    _m("P32", "veto-untold", "leaves a run as it is and tells nobody",
       patched((Changes, "refuse_void", voiding.refuse_silently)), "t"),
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = (
    *_ORDINARY, *_DECIDING, *_ENTERING, *_CLOCKS, *_STANDING, *_VERSIONS, *_VOIDING
)  # fmt: skip
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
RULES = (*(f"P{number}" for number in range(1, 24)), "P29", "P30", "P31", "P32")
#: Six mutations of the design that are harmless.  Of those, `queue-volatile` is found
#: in this core: a promise states its queue as the base of the final one, and a decided base that
#: everybody forgot can be fetched from nobody.  `claims-beyond-gap` is, since pushes leave gaps;
#: `ballot-counter-volatile` is: an own first ballot, number 1, may be used again for another value.
KNOWN_SURVIVORS = frozenset(
    {
        "frozen-posts-repeated",
        "queue-volatile",
        "own-counter-left-out",
        "claims-beyond-gap",
        "counter-not-raised",
        "ballot-counter-volatile",
    }
)
SURVIVORS = frozenset(mutant.name for mutant in MUTANTS if mutant.survives)


def missing_rules() -> list[str]:
    """Return the rules that no mutation breaks."""
    broken = {mutant.rule.rstrip("ab") for mutant in MUTANTS}
    return [rule for rule in RULES if rule not in broken]
