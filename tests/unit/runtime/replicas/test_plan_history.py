"""Plans that are kept: each choice once, with what came of it, also after a restart."""

from __future__ import annotations

from sparktxlog.model.copying import CatchUpKind, Decision, Estimate, Transfer
from sparktxlog.runtime.replicas.plan_history import HISTORY, PlanHistory
from sparktxlog.storage.interfaces import PutValue, Write


def decision(plan: str, behind: int = 5, donor: str = "") -> Decision:
    return Decision(
        worker_id="w",
        plan=plan,
        reason=f"{plan} of {behind}",
        behind=behind,
        donor=donor,
        replay=Estimate(kind=CatchUpKind.REPLAY, seconds=900.0, basis="5 transactions"),
        copy=Estimate(kind=CatchUpKind.COPY, seconds=3.0, basis="9 bytes") if donor else None,
    )


def transfer(kind: CatchUpKind, id_: str) -> Transfer:
    return Transfer(
        transfer_id=id_,
        worker_id="w",
        node_id="A",
        kind=kind,
        from_position=0,
        to_position=5,
        started_at=1,
        finished_at=2,
        estimated_s=3.0,
        actual_s=4.5,
    )


def saved(writes: list[Write]) -> dict[str, bytes]:
    return {one.name: one.value for one in writes if isinstance(one, PutValue)}


def test_a_choice_is_kept_with_its_end() -> None:
    history = PlanHistory({}, "A")
    kept = saved(history.made(decision("replay", 5), 10))
    assert history.made(decision("replay", 4), 20) == [], "the same choice, with newer figures"
    (plan,) = history.latest(9)
    assert (plan.behind, plan.decided_at, plan.replay_s, plan.copy_s) == (4, 10, 900.0, None)
    kept |= saved(history.made(decision("copy", 7, "B"), 30))
    assert history.ended(transfer(CatchUpKind.REPLAY, "r")) != []
    kept |= saved(history.ended(transfer(CatchUpKind.COPY, "c")))
    copy, replay = history.latest(9)
    assert (copy.transfer_id, copy.actual_s, copy.copy_basis) == ("c", 4.5, "9 bytes")
    assert (replay.transfer_id, replay.outcome) == ("r", "done")
    # What ended is another choice, even if it is the same again.
    assert history.made(decision("copy", 7, "B"), 40) != []
    again = PlanHistory(kept, "A")
    assert [one.transfer_id for one in again.latest(9)] == ["c", ""]
    assert again.ended(transfer(CatchUpKind.COPY, "other")) == []


def test_only_the_latest_are_kept() -> None:
    history, kept = PlanHistory({}, "A"), dict[str, bytes]()
    for number in range(HISTORY + 5):
        kept |= saved(history.made(decision("copy", 1, f"B{number}"), number))
    assert len(history.latest(1_000)) == len(kept) == HISTORY
    assert PlanHistory(kept, "A").latest(1_000) == history.latest(1_000)
