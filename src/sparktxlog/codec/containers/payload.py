"""Payload container of a run: manifest, inline Arrow sections and small files, one byte string.

    8 bytes   magic "TXLOG\\0\\0\\1"
    4 bytes   length of the manifest, little endian
    4 bytes   number of sections
    8 bytes   length, for each section
    …         manifest (msgpack of RunManifest), then the sections (Arrow IPC streams, then files
              of commits)

The run's digest is the SHA-256 of the manifest; the manifest holds the SHA-256 of each section
and staged file, so one digest covers the run and the manifest can be read without its rows.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec

from sparktxlog.errors import InvalidNameError, ManifestMismatchError
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.tables.commit_table import (
    COMMIT_LOG,
    CommitOperation,
    commit_file_name,
    commit_file_prefix,
)
from sparktxlog.model.transactions.operation import DIGEST_BYTES, RunFacts, RunManifest, StagedFile
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.view import Voided

MAGIC = b"TXLOG\x00\x00\x01"
_HEAD = struct.Struct("<8sII")

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(RunManifest)
#: Manifests of so many bytes are remembered, and how many: each is read when its run comes, is
#: written, is ordered and is published.
_SMALL_BYTES, _REMEMBERED = 2_048, 256
_decoded = lru_cache(_REMEMBERED)(_decoder.decode)


def encode_payload(manifest: RunManifest, sections: Sequence[bytes | memoryview]) -> bytes:
    """Return the container of a manifest and its inline sections."""
    if any(block.definition is not None for block in manifest.blocks):
        # The place of a new table in the order says with which schema version it begins.
        blocks = [
            replace(block, definition=block.definition.created_after(None))
            if block.definition
            else block
            for block in manifest.blocks
        ]
        manifest = replace(manifest, blocks=tuple(blocks))
    body = _encode(manifest)
    head = _HEAD.pack(MAGIC, len(body), len(sections))
    lengths = struct.pack(f"<{len(sections)}Q", *(len(section) for section in sections))
    return b"".join((head, lengths, body, *sections))


def split_payload(payload: bytes | memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return manifest bytes and sections, without copying.

    Raises:
        ManifestMismatchError: The bytes are not a container (definite).
    """
    view = memoryview(payload)
    if len(view) < _HEAD.size:
        raise ManifestMismatchError("the payload container is torn", size=len(view))
    magic, size, count = _HEAD.unpack_from(view)
    if magic != MAGIC or count > 65_536 or len(view) < _HEAD.size + 8 * count:
        raise ManifestMismatchError("these bytes are not a payload container", size=len(view))
    lengths = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
    start = _HEAD.size + 8 * count
    if start + size + sum(lengths) != len(view):
        raise ManifestMismatchError("the payload container is torn", size=len(view))
    manifest = view[start : start + size]
    start += size
    sections = []
    for length in lengths:
        sections.append(view[start : start + length])
        start += length
    return manifest, sections


def read_manifest(payload: bytes | memoryview) -> RunManifest:
    """Decode the manifest of a container; its sections are not checked.

    Raises:
        ManifestMismatchError: Torn container, or a manifest of another form (definite).
    """
    manifest = checked_manifest(payload)
    if len(manifest.ids) != 16 * manifest.n or manifest.n < 1:
        raise ManifestMismatchError("the manifest's ids do not match its count", n=manifest.n)
    if len(manifest.content_digests) not in (0, DIGEST_BYTES * manifest.n):
        raise ManifestMismatchError("the manifest's digests do not match its count", n=manifest.n)
    if manifest.participants or manifest.marks:
        _check_prepared(manifest)
    if manifest.commits or manifest.commit_files or manifest.carried_files:
        _check_commits(manifest)
    return manifest


def checked_manifest(payload: bytes | memoryview) -> RunManifest:
    """Decode the manifest of a container that was checked before it came into the journal.

    Raises:
        ManifestMismatchError: Torn container, or bytes of another form (definite).
    """
    body = split_payload(payload)[0]
    try:
        return _decoded(bytes(body)) if len(body) <= _SMALL_BYTES else _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestMismatchError(f"the manifest cannot be read: {error}") from error


def _check_prepared(manifest: RunManifest) -> None:
    """Check that a prepared transaction is alone, expires, and leaves tables as they are (P35).

    Marks belong to transactions of the run that do nothing else.

    Raises:
        ManifestMismatchError: No release writes such a manifest (definite).
    """
    indices = {index for index, _ in manifest.marks}
    ascending = [index for index, _ in manifest.marks] == sorted(indices & set(range(manifest.n)))
    whole = ascending and all(len(mark.transaction_id) == 16 for _, mark in manifest.marks)
    free = not indices or not any(
        block.txs is None or indices.intersection(block.txs) for block in manifest.blocks
    )
    names = manifest.participants
    alone = manifest.n == 1 and not indices and len(manifest.valid_until) == 1
    alone = alone and not any(block.definition or block.change for block in manifest.blocks)
    if not whole or not free or (names and not (alone and len(set(names)) == len(names))):
        raise ManifestMismatchError(
            "the manifest's participants or marks contradict its transactions", n=manifest.n
        )


def _check_commits(manifest: RunManifest) -> None:
    """Check that transactions with commits exist, and do one thing to a table (P36).

    A run with files of commits has nothing but transactions with commits, all of different tables.
    None with commits is prepared, or a mark.

    Raises:
        ManifestMismatchError: No release writes such a manifest (definite).
    """
    indices = [index for index, _ in manifest.commits]
    whole = indices == sorted(indices) and set(indices) <= set(range(manifest.n))
    uuids = {(index, commit.uuid) for index, commit in manifest.commits}
    created = [(index, one.name.lower()) for index, one in manifest.commits if one.name]
    whole = whole and len(uuids) == len(indices) and len(set(created)) == len(created)
    busy = bool(manifest.participants or set(indices) & {index for index, _ in manifest.marks})
    if manifest.commit_files or manifest.carried_files:
        everyone = set(indices) == set(range(manifest.n))
        whole = whole and everyone and _are_files_of_commits(manifest)
    if not whole or busy or any(commit.problem for _, commit in manifest.commits):
        raise ManifestMismatchError(
            "the manifest's commits contradict its transactions", n=manifest.n
        )


def _are_files_of_commits(manifest: RunManifest) -> bool:
    """Return whether each file is of a commit of the run, and no table has two of these."""
    carried = {file.path for file in manifest.carried_files}
    try:
        files = manifest.files_by_commit()
    except InvalidNameError:
        return False
    if any(len({file.path in carried for file in own}) > 1 for own in files.values()):
        return False
    with_files, found = {transaction_id for transaction_id, _ in files}, 0
    for index, commit in manifest.commits:
        transaction_id = manifest.transaction_id(index)
        if transaction_id in with_files and commit.is_version:
            own = files.get((transaction_id, commit.uuid), ())
            if not _are_files_of(transaction_id, commit, own):
                return False
            found += len(own)
    uuids = {commit.uuid for _, commit in manifest.commits}
    return len(uuids) == len(manifest.commits) and found == sum(map(len, files.values()))


def _are_files_of(
    transaction_id: bytes, commit: CommitOperation, files: Sequence[StagedFile]
) -> bool:
    """Return whether the files are a version of the table: its commit file, and what it adds."""
    prefix = commit_file_prefix(transaction_id, commit.uuid)
    below = {file.path.removeprefix(prefix) for file in files if file.path.startswith(prefix)}
    logged = {path for path in below if path.startswith(COMMIT_LOG)}
    whole = logged == {commit_file_name(commit.version)} and len(below) == len(files)
    return whole and not any(map(_is_no_path, below))


def _is_no_path(path: str) -> bool:
    try:
        return check_relative_path(path) != path
    except InvalidNameError:
        return True


def carried_contents(payload: bytes | memoryview, manifest: RunManifest) -> dict[str, bytes]:
    """Return the bytes of the files that a container carries, by path; they are not compared.

    Raises:
        ManifestMismatchError: It has fewer sections (definite).
    """
    sections, count = split_payload(payload)[1], len(manifest.carried_files)
    if len(sections) < count:
        raise ManifestMismatchError("the payload container lacks files of commits", files=count)
    found = zip(manifest.carried_files, sections[len(sections) - count :], strict=True)
    return {file.path: bytes(content) for file, content in found}


def digest_of(payload: bytes | memoryview) -> bytes:
    """Return the run's digest, computed from the manifest bytes."""
    return hashlib.sha256(split_payload(payload)[0]).digest()


def verify_payload(payload: bytes | memoryview, digest: bytes) -> RunManifest:
    """Check a received container against a run's digest, inline sections included.

    Raises:
        ManifestMismatchError: Something differs; do not keep it (definite).
    """
    body, sections = split_payload(payload)
    if hashlib.sha256(body).digest() != digest:
        raise ManifestMismatchError("the manifest's digest differs from the announced one")
    manifest = read_manifest(payload)
    for block in manifest.blocks:
        inline = block.inline
        if inline is None:
            continue
        if inline.index >= len(sections) or (
            hashlib.sha256(sections[inline.index]).hexdigest() != inline.digest
        ):
            raise ManifestMismatchError(
                f"inline rows of table {block.table!r} differ from their digest",
                table=block.table,
            )
    contents = carried_contents(payload, manifest) if manifest.carried_files else {}
    for file in manifest.carried_files:
        content = contents[file.path]
        if len(content) != file.size_bytes or hashlib.sha256(content).hexdigest() != file.digest:
            raise ManifestMismatchError(
                f"file {file.path!r} in the container differs from its manifest", path=file.path
            )
    return manifest


def void_payload(voided: Voided) -> bytes:
    """Return the payload that replaces that of a void run, equal at every node (P32)."""
    return _void_payload(voided.header, voided.facts)


def voided_run(header: RunHeader, manifest: RunManifest) -> Voided:
    """Return a run without its content, as an epoch decision makes it void (P32)."""
    facts = RunFacts(n=manifest.n, ids=manifest.ids, acceptance=manifest.acceptance, voided=True)
    payload = _void_payload(header, facts)
    void = replace(header, digest=digest_of(payload), size_bytes=len(payload), staged_bytes=0)
    return Voided(header=void, facts=facts, digest=header.digest)


def _void_payload(header: RunHeader, facts: RunFacts) -> bytes:
    manifest = RunManifest(
        n=facts.n,
        ids=facts.ids,
        acceptance=facts.acceptance,
        voided=True,
        blocks=(),
        submitted_at=header.ts,
    )
    return encode_payload(manifest, ())
