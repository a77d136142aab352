"""A node's status in words; the words of commands are tested with them."""

from __future__ import annotations

from sparktxlog.model.status_words import batch_text, last_transfer_text, synchronous_text


def test_status_says_what_synchronous_transactions_wait_for() -> None:
    found = {"node_id": "A", "members": ["A", "B"], "synchro_quorum": 3, "synchro_rule": "N"}
    idle = {"waiting": 0, "unconfirmed": 0}
    assert synchronous_text({**found, "synchronous": idle}) == ""
    assert synchronous_text({"node_id": "A"}) == "", "a node of an older release"
    waits = {"waiting_runs": 1, "waiting": 2, "size_bytes": 1_500, "oldest_us": 2_500_000}
    few = {**waits, "needs": 3, "missing": ["C"], "unconfirmed": 0}
    text = "synchronous transactions of A: "
    begin = f"{text}2 in 1 runs with 1,500 bytes wait for a timestamp, the oldest for 2.5 s"
    rest = ".  New ones need 3 holders (N), there are 2 members"
    assert synchronous_text({**found, "synchronous": few}) == (
        f"{begin}: too few members, 3 holders are needed, missing are C{rest}"
    )
    held_up = {**few, "needs": 2, "missing": []}
    assert synchronous_text({**found, "synchronous": held_up}) == begin + rest
    slow = {"unconfirmed_runs": 3, "unconfirmed": 4, "lag_us": 100_000, "unconfirmed_by": ["B"]}
    assert synchronous_text({**found, "synchronous": {"waiting": 0, **slow}}) == (
        f"{text}4 in 3 runs have too few holders, for 0.1 s: not yet confirmed by B{rest}"
    )


def test_a_batch_says_its_stage_and_what_is_left() -> None:
    batch = {"stage": 2, "stages": 7, "act": "merge", "table": "t", "seconds": 31.6, "left_s": None}
    assert batch_text({"batch": batch}) == "stage 2 of 7, merge of t, for 32 s"
    assert batch_text({"batch": {**batch, "left_s": 1200.4}}).endswith(", about 1,200 s left")
    assert batch_text({"batch": None}) == batch_text({}) == ""


def test_expected_and_measured_times_of_a_catch_up_are_kept_apart() -> None:
    text = last_transfer_text
    done = {"kind": "copy", "to_position": 4_000, "outcome": "done", "actual_s": 11.0}
    done["estimated_s"] = 12.5
    assert text({}) == ""
    assert text({"last_transfer": done}) == (
        "copy to 4,000: done, measured 11.0 s, estimated 12.5 s"
    )
    running = {"kind": "copy", "running_s": 3.0, "estimated_s": None}
    assert text({"last_transfer": done, "running_transfers": [running]}) == (
        "copy running for 3.0 s"
    )
