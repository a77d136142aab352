"""Directed traces: histories that chance does not find, one rule each.

A trace drives one core by hand and asserts what the rule demands; it passes with the real core.
"""

from __future__ import annotations

from collections.abc import Callable

from sparktxlog.protocol.master import Master
from sparktxlog.testing.mutation.deciding_traces import (
    a_complaint_is_looked_into,
    a_retry_leaves_the_roster,
    a_short_silence_evicts_nobody,
    accepted_value_survives_a_crash,
    alone_it_stays_suspicious,
    another_decision_halts,
    data_quorum_is_needed,
    every_vote_is_needed,
    everybody_flushes_first,
    everything_acquired_survives,
    flushed_is_durable_first,
    half_of_the_votes_is_too_few,
    highest_accepted_ballot_counts,
    no_lower_promise,
    no_vote_below_a_promise,
    old_voters_decide,
    promise_is_durable_first,
    promise_stops_everything,
)
from sparktxlog.testing.mutation.entering_traces import (
    a_kill_tears_no_force,
    a_waiting_change_brings_nobody_back,
    amnesiac_does_not_vote,
    another_final_queue_halts,
    evicted_is_silent,
    force_makes_one_voter,
    force_needs_a_new_lineage,
    force_takes_the_accepted_value,
    forced_on_both_sides,
    joiner_flushes_too,
    only_own_runs_are_restamped,
    tail_of_another_lineage_is_ignored,
)
from sparktxlog.testing.mutation.holding_traces import (
    ballot_number_is_used_once,
    force_appends_what_it_holds,
    held_runs_are_appended_in_order,
    held_runs_of_another_queue_stay,
    joiner_says_what_it_holds,
    own_runs_of_before_are_foreign,
    votes_wait_for_the_own_payload,
    who_holds_all_is_not_asked,
)
from sparktxlog.testing.mutation.ordinary_traces import (
    broken_promise_halts,
    everything_is_durable_first,
    lagger_is_served,
    late_payload_ends_no_fetch,
    log_clock_follows,
    old_epochs_do_not_count,
    stamps_behind_its_queue,
    tail_of_another_queue_halts,
)

Trace = Callable[[type[Master]], None]

TRACES: tuple[Trace, ...] = (
    old_epochs_do_not_count,
    lagger_is_served,
    late_payload_ends_no_fetch,
    stamps_behind_its_queue,
    log_clock_follows,
    everything_is_durable_first,
    broken_promise_halts,
    tail_of_another_queue_halts,
    tail_of_another_lineage_is_ignored,
    alone_it_stays_suspicious,
    old_voters_decide,
    data_quorum_is_needed,
    half_of_the_votes_is_too_few,
    every_vote_is_needed,
    a_short_silence_evicts_nobody,
    a_complaint_is_looked_into,
    a_retry_leaves_the_roster,
    promise_stops_everything,
    promise_is_durable_first,
    no_lower_promise,
    highest_accepted_ballot_counts,
    everything_acquired_survives,
    everybody_flushes_first,
    flushed_is_durable_first,
    joiner_flushes_too,
    who_holds_all_is_not_asked,
    votes_wait_for_the_own_payload,
    ballot_number_is_used_once,
    held_runs_are_appended_in_order,
    held_runs_of_another_queue_stay,
    joiner_says_what_it_holds,
    own_runs_of_before_are_foreign,
    force_appends_what_it_holds,
    no_vote_below_a_promise,
    accepted_value_survives_a_crash,
    another_final_queue_halts,
    another_decision_halts,
    evicted_is_silent,
    only_own_runs_are_restamped,
    amnesiac_does_not_vote,
    force_takes_the_accepted_value,
    force_makes_one_voter,
    force_needs_a_new_lineage,
    forced_on_both_sides,
    a_waiting_change_brings_nobody_back,
    a_kill_tears_no_force,
)
