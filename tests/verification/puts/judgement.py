"""What is in the bucket, read without faults, against what writers were told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.verification.puts.record import Digest, Kind, Record, Violation, digest_of

from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.stores.store import Store

_READERS = 12


def judge(record: Record, store: Store) -> Iterator[Violation]:
    """Yield what is wrong, with what was found while the writers wrote.

    Args:
        record: Of all writers, which have ended.
        store: What they wrote to, without faults.
    """
    keys = {one.key for one in store.list()}
    with ThreadPoolExecutor(_READERS) as readers:
        found = dict(zip(keys, readers.map(store.read, keys), strict=True))
    there = {key: digest_of(content) for key, content in found.items()}
    numbers = {key: number_of(found[key]) for key in record.counted if key in found}
    yield from judged(record, there, numbers)


def judged(
    record: Record, there: Mapping[str, bytes], numbers: Mapping[str, tuple[int, str]]
) -> Iterator[Violation]:
    """Yield what is wrong with what is under all keys.

    Args:
        there: Key → digest of its bytes.
        numbers: What counted keys say.
    """
    yield from record.violations
    for key, own in record.own.items():
        yield from _at(key, own.seen, there.get(key))
    for key, raced in record.raced.items():
        yield from _at(key, raced.judged, there.get(key))
    for key, counted in record.counted.items():
        if key not in numbers:
            yield Violation(Kind.MISSING, f"{key}: nothing is there")
            continue
        for one in counted.judged(numbers[key]):
            yield Violation(one.kind, f"{key}: {one.text}")
    known = record.own.keys() | record.raced.keys() | record.counted.keys()
    for key in there.keys() - known:
        # What an upload in parts passes by, which the bucket's rules remove.
        if not key.startswith(f"{INCOMING}/"):
            yield Violation(Kind.WRONG, f"{key}: nobody wrote it")


def number_of(content: bytes) -> tuple[int, str]:
    """Return what a counted key says: its number, and who raised it."""
    number, _, nonce = content.decode().partition(" ")
    return int(number), nonce


def _at(
    key: str, judging: Callable[[Digest], Iterator[Violation]], there: Digest
) -> Iterator[Violation]:
    for one in judging(there):
        yield Violation(one.kind, f"{key}: {one.text}")
