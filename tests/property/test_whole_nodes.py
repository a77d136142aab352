"""The short form of `make sim-nodes`: whole nodes with faults, each seed a history of its own.

Virtual clocks must be there before anything of a node is imported: hence processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

#: `.ci/run` runs more of them, this one too and with faults for longer; from 20 on marks must show.
SEEDS = 1


def simulate(*arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Run the command; return its exit code, what it said, and the object at its end."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.verification.nodes", "--json", "--jobs", "2", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = answer.stdout.splitlines()
    assert lines, answer.stderr
    return answer.returncode, answer.stdout + answer.stderr, json.loads(lines[-1])


@pytest.mark.slow
@pytest.mark.thorough
def test_one_seed_is_one_history() -> None:
    code, said, totals = simulate("--seeds", "2", "--check-trace", "--faults-until", "15")
    assert (code, totals["violations"]) == (0, 0), said


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_whole_nodes_with_faults_violate_nothing() -> None:
    code, said, totals = simulate("--seeds", str(SEEDS), "--faults-until", "40")
    assert (code, totals["violations"]) == (0, 0), said
    assert totals["transactions"] >= 200 * SEEDS
    assert totals["epochs"] >= 2 * SEEDS
    assert totals["marks"], said


@pytest.mark.slow
@pytest.mark.thorough
def test_a_commit_at_sites_far_apart_takes_two_delays() -> None:
    """None waits for the answer to an earlier message; the rest is spent at the disks."""
    code, said, found = simulate("--far", "0.2")
    assert code == 0, said
    assert set(found) == {"spaced", "back to back", "one writer at each site"}
    for case, (median, most) in found.items():
        assert 2.0 <= median < 2.1 and most < 2.2, (case, said)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "first", "story"),
    [
        ("hasty", 1, "I7"),
        ("careless", 9, "its disk held"),
        ("obliging", 1, "no epoch has"),
        ("forgetful", 0, "P27"),
        ("unsynced", 14, "is damaged"),
        ("places-before-it-orders", 0, "P36: history"),
        ("shows-before-it-places", 0, "P36: shown"),
        ("leaves-versions-out", 0, "P36: "),
        ("tells-losers-before-the-winner-is-here", 0, "P36: blind"),
        ("tells-200-before-it-places", 0, "P36: told"),
        ("takes-in-without-a-sync", 0, "P36: "),
    ],
)
def test_a_node_that_breaks_a_rule_is_found(mutant: str, first: int, story: str) -> None:
    """It speaks before it wrote, syncs no commit, says yes to an operator, or keeps
    no writes.  The names of those of commit tables say what they do.

    One that takes silence for no (`credulous`) needs a copy of a disk at the right moment, which
    few seeds have: `unit/transport/test_peer_link_processes.py` finds it each time.  One that syncs
    no container (`unsynced`) needs a power cut there: `unit/verification/test_simulated_disk.py`.

    The first seed finds it today.  A change of the node gives seeds other histories, hence five;
    some of them show what was lost in another way, as a file or an order that is missing.
    """
    for seed in range(first, first + 5):
        code, said, totals = simulate("--first", str(seed), "--seeds", "1", "--mutant", mutant)
        if story in said:
            break
    assert story in said, said
    assert code == 1 and totals["violations"] >= 1, said
    assert f"--mutant {mutant}" in said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["in-haste", "by-the-runbook"])
def test_disks_lost_one_after_the_other_for_three_weeks(how: str) -> None:
    """Whoever waits for the check `data` loses nothing; who does not is told so by `survival`."""
    code, said, totals = simulate("--first", "2", "--seeds", "1", "--weeks", how)
    assert (code, totals["violations"]) == (0, 0), said
    if how == "in-haste":
        assert totals["marks"]["disk lost that nobody else is a copy of"] == 1
    else:
        assert totals["marks"]["disk lost"] == totals["marks"]["returned after a loss"] == 9
        assert totals["marks"]["lake copied"] >= 9 and totals["marks"]["log expired"] >= 9
