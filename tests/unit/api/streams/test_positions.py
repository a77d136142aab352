"""Offsets and options of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparktxlog.api.streams.positions import EARLIEST, LATEST, LogOffset, ReadOptions
from sparktxlog.errors import InvalidNameError, InvalidRequestError


def test_an_offset_is_kept_as_json_and_read_again() -> None:
    offset = LogOffset("c-1234", 7, "ab" * 32)
    # The form stands in checkpoints: a query goes on with it.
    kept = '{"log_id": "c-1234", "position": 7, "chain_hash": "' + "ab" * 32 + '"}'
    assert json.dumps(offset.to_json()) == kept
    assert LogOffset.from_json(json.loads(kept)) == offset


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"reservoirVersion": 3},
        {"log_id": "c", "position": "7", "chain_hash": ""},
        {"log_id": "c", "position": True, "chain_hash": ""},
        {"log_id": "c", "position": -1, "chain_hash": ""},
        {"log_id": None, "position": 1, "chain_hash": ""},
    ],
)
def test_an_offset_of_another_source_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="checkpoint of its own"):
        LogOffset.from_json(found)


def test_options_have_values_that_are_checked() -> None:
    plain = ReadOptions.of({"path": "queue", "url": "http://a"})
    assert (plain.table, plain.starting, plain.ending, plain.is_limited) == (None, 1, None, False)
    full = ReadOptions.of(
        {
            "table": "t",
            "startingposition": "5",
            "endingposition": "9",
            "maxrowspertrigger": "100",
            "maxtransactionspertrigger": "3",
            "deletemarkers": "True",
            "timeout": "2.5",
        }
    )
    assert (full.starting, full.ending, full.max_rows, full.max_transactions) == (5, 9, 100, 3)
    assert (full.markers, full.appends_only, full.timeout_s) == (True, False, 2.5)
    for text in (EARLIEST, LATEST):
        assert ReadOptions.of({"startingposition": text.upper()}).starting == text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingposition": "0"}, "a position from 1, 'earliest' or 'latest'"),
        ({"startingposition": "-1"}, "a position from 1"),
        ({"startingposition": "soon"}, "'soon'"),
        ({"endingposition": "latest"}, "a position from 1"),
        ({"maxrowspertrigger": "0"}, "a whole number from 1"),
        ({"maxtransactionspertrigger": "1e3"}, "a whole number from 1"),
        ({"timeout": "long"}, "seconds"),
        ({"table": "t", "deletemarkers": "yes"}, "true or false"),
        ({"table": "t", "deletemarkers": "true", "skipchangecommits": "true"}, "one of them"),
        ({"path": "queue", "deletemarkers": "true"}, "option\\('table'"),
        # A limit with a slip of the pen would be none.
        ({"maxrowpertrigger": "5"}, "maxRowsPerTrigger"),
        ({"startingversion": "5"}, "Use startingPosition"),
        ({"maxoffsetspertrigger": "5"}, "Use maxRowsPerTrigger or"),
        ({"ignoredeletes": "true"}, "Use skipChangeCommits or deleteMarkers"),
    ],
)
def test_wrong_options_are_refused_with_a_way_out(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ReadOptions.of(options)


def test_a_table_has_a_name() -> None:
    with pytest.raises(InvalidNameError):
        ReadOptions.of({"table": "../t"})
