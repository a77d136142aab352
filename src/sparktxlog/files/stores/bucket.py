"""A bucket of S3, Azure or Google Cloud as a store, by the library obstore.

Nobody else imports it, but `bucket_clients`.

The library repeats a request whose answer was lost.  If that had put an object, the repetition
finds it there and fails.  So each object carries a random name of its writer, as metadata: who
fails looks whose object is there.  Equal bytes alone would not say which of two writers was first.

Providers create an object only if it is absent by one request with all bytes, or by a copy.  So a
large file travels in parts under a name of its own, and is copied in the bucket from there.

Not all servers of S3 look at the condition of a copy.  So before its first copy a store finds out
by which way the server keeps it.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from sparktxlog.errors import FileChangedError, LyingStoreError, StorageError
from sparktxlog.files.durability import storing
from sparktxlog.files.foreign_files import INCOMING, goes_on
from sparktxlog.files.stores.bucket_clients import client_of
from sparktxlog.files.stores.counting import RequestCounts, RequestKind
from sparktxlog.files.stores.objects import ObjectReader
from sparktxlog.files.stores.store import PIECE_BYTES, Created, Found, OpenContent, same_bytes
from sparktxlog.files.stores.store_failures import (
    as_unknown,
    failure_of,
    is_cut,
    missing,
    note_repeated,
    says_no_bucket,
    says_no_way,
    status_of,
    was_repeated,
)
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl
from sparktxlog.model.ids import check_relative_path

if TYPE_CHECKING:
    from obstore import Attributes, GetOptions, GetResult, ListResult, ObjectMeta, PutMode
    from obstore.store import (
        ObjectStore,
    )

_T = TypeVar("_T")
#: Metadata that names the writer of an object; Azure takes letters and digits only.
_WRITER = "sparktxlogwriter"
#: Larger files are sent in parts of at least this size, some at a time: what a put may hold.
PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
#: S3 takes 10,000 parts of an object.
_MOST_PARTS = 9_999
#: S3 copies no more by one request.
MOST_COPIED = 5 << 30
#: Attempts to create what appears and disappears.
_ATTEMPTS = 5
_LISTED_AT_ONCE = 1000
_REMOVED_AT_ONCE = 1000
#: For so many seconds after an answer of the bucket, nobody asks whether it is there.
_SEEN_S = 10.0
#: So many seconds a request may take, with its repetitions; then it hangs.
_REQUEST_S = 240.0


@dataclass(frozen=True, slots=True)
class _Written:
    """What is under a key, and its writer; empty = not of this project."""

    size_bytes: int
    writer: str
    mark: str


class BucketStore:
    """A bucket, or a prefix of one.  Methods are those of `Store`.

    Args:
        client: Of the library, with the prefix.
        url: Of the bucket and prefix.
        copying_otherwise: Makes a client with the other way of a copy that replaces nothing; None =
            all servers keep the condition by the first one.
        part_bytes: Files of more are sent in parts of at least so many.
    """

    def __init__(
        self,
        client: ObjectStore,
        url: str,
        *,
        copying_otherwise: Callable[[], ObjectStore] | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._client, self._url, self._part_bytes = client, url, part_bytes
        self._copying_otherwise = copying_otherwise
        #: The client that copies, once that is known.
        self._copying = None if copying_otherwise else client
        self.counts = RequestCounts()
        #: When something showed last that the bucket exists, monotonic seconds.
        self._seen_s = -math.inf

    def __repr__(self) -> str:
        return f"BucketStore({self._url!r})"

    def in_parts(self) -> BucketStore:
        """Return this store as one that sends whatever it is given in parts."""
        return BucketStore(
            self._client, self._url, copying_otherwise=self._copying_otherwise, part_bytes=0
        )

    @property
    def url(self) -> str:
        """As `Store.url`."""
        return self._url

    def url_of(self, key: str) -> str:
        """As `Store.url_of`."""
        return f"{self._url}/{key}"

    # -- reading -----------------------------------------------------------------------------------

    def find(self, key: str) -> Found | None:
        """As `Store.find`."""
        check_relative_path(key)
        self.counts.add(RequestKind.HEAD)
        try:
            found = self._ask(key, "look at it", lambda: obstore.head(self._client, key))
        except FileNotFoundError:
            self._check_bucket()
            return None
        except StorageError as error:
            self._raise_if_clearer(error)
            raise
        return _found(key, found)

    def _raise_if_clearer(self, error: StorageError) -> None:
        """Raise the reason of a HEAD that failed, whose answer has no body to say it."""
        if error.fields.get("answer") in ("400", "403"):
            try:
                next(self.list("none"), None)
            except StorageError as other:
                if "permission" not in other.fields:
                    raise other from None

    def _check_bucket(self) -> None:
        """Raise BucketMissingError if there is no bucket: a HEAD says the same as for no object.

        It is asked for unless something showed it a moment ago.
        """
        if monotonic() - self._seen_s > _SEEN_S:
            next(self.list("none"), None)

    def _raise_if_no_bucket(self, error: Exception, key: str, action: str) -> None:
        """Raise BucketMissingError if an answer says why nothing is there; else ask, as above."""
        if says_no_bucket(error):
            raise failure_of(error, self.url_of(key), action) from None
        if isinstance(error, FileNotFoundError):
            self._check_bucket()

    def read(
        self, key: str, *, offset: int = 0, size: int | None = None, mark: str | None = None
    ) -> bytes:
        """As `Store.read`.

        Args:
            mark: Of the object that is meant; None = whichever is there.

        Raises:
            ObjectMissingError: Nothing is under the key (definite).
            FileChangedError: An object with another mark is there (definite).
        """
        if size == 0:
            if self.find(key) is None:
                raise missing(self.url_of(key), "read it")
            return b""

        def whole(result: GetResult) -> bytes:
            self.counts.add(RequestKind.GET)
            content = bytes(result.bytes())
            self.counts.add(RequestKind.GET, 0, len(content))
            return content

        # An answer is read once: all of it is asked for again.
        content = self._get(key, offset, size, mark, whole)
        return b"" if isinstance(content, Found) else content

    def read_into(self, key: str, offset: int, into: memoryview) -> int:
        """As `Store.read_into`."""
        content = self.read(key, offset=offset, size=len(into))
        into[: len(content)] = content
        return len(content)

    def open(self, key: str, *, offset: int = 0) -> OpenContent:
        """As `Store.open`."""
        result = self._get(key, offset, None, None, _as_it_is)
        if isinstance(result, Found):
            return OpenContent(result, _nothing())
        found = _found(key, result.meta)
        return OpenContent(found, self._pieces(found, result, offset))

    def reader(self, key: str) -> ObjectReader:
        """As `Store.reader`."""
        return ObjectReader(self, key)

    def _get(
        self,
        key: str,
        offset: int,
        size: int | None,
        mark: str | None,
        taken: Callable[[GetResult], _T],
    ) -> _T | Found:
        """Ask for bytes, of the object with a mark; what is there, if it ends before them.

        Args:
            taken: Returns what is wanted of an answer; it is called again if that was cut.
        """
        check_relative_path(key)
        options: GetOptions = {}
        if size is not None:
            options["range"] = (offset, offset + size)
        elif offset:
            options["range"] = {"offset": offset}
        if mark is not None:
            options["if_match"] = mark

        def request() -> tuple[ObjectMeta, _T]:
            result = obstore.get(self._client, key, options=options)
            return result.meta, taken(result)

        try:
            meta, wanted = self._ask(key, "read it", request, raw=True)
        except FileNotFoundError as error:
            self._raise_if_no_bucket(error, key, "read it")
            raise missing(self.url_of(key), "read it") from None
        except PreconditionError:
            raise self._replaced(key) from None
        except BaseError as error:
            # Each provider says another thing about a range that begins at the end.
            if "range" in options and status_of(error) in (None, 400, 416):
                found = self.find(key)
                if found is not None and found.size_bytes <= offset:
                    return found
            raise failure_of(error, self.url_of(key), "read it") from None
        if mark is not None and _found(key, meta).mark != mark:
            raise self._replaced(key)  # not all servers look at the condition
        return wanted

    def _replaced(self, key: str) -> FileChangedError:
        url = self.url_of(key)
        text = f"{url} was replaced while it was read"
        return FileChangedError(text, hint="Read it again.", url=url)

    def _pieces(self, found: Found, result: GetResult, offset: int) -> Generator[bytes, None, None]:
        """Yield the bytes of an object from an offset on; a broken answer is asked for again."""
        url, at, failed_at = self.url_of(found.key), offset, -1
        self.counts.add(RequestKind.GET)
        while at < found.size_bytes:
            try:
                goes_on(url, _REQUEST_S)
                for chunk in result.stream(min_chunk_size=PIECE_BYTES):
                    goes_on(url)
                    view = memoryview(chunk)
                    for begin in range(0, len(view), PIECE_BYTES):
                        piece = bytes(view[begin : begin + PIECE_BYTES])
                        self.counts.add(RequestKind.GET, 0, len(piece))
                        at += len(piece)
                        yield piece
                    goes_on(url, _REQUEST_S)
                failure: BaseError | None = None
            except BaseError as error:
                failure = error
            if at >= found.size_bytes:
                return
            if at == failed_at:
                if failure is not None:
                    raise failure_of(failure, url, "read it") from None
                raise StorageError(f"{url} ended early, after {at:,} bytes", url=url)
            failed_at = at
            self.counts.add(RequestKind.GET)
            again = self._get(found.key, at, None, found.mark, _as_it_is)
            assert not isinstance(again, Found)
            result = again

    # -- writing -----------------------------------------------------------------------------------

    def create(
        self, key: str, content: bytes | Path, *, alone: bool = False, writer: str = ""
    ) -> Created:
        """As `Store.create`; up to 5 GiB, or any size `alone`.

        Args:
            writer: Who repeats a small one under the same name gets NEW again; empty = a new name.
        """
        check_relative_path(key)
        if _size_of(content) > self._part_bytes:
            return self._create_large(key, content, alone=alone)
        writer = writer or secrets.token_hex(16)
        for _ in range(_ATTEMPTS):
            failure = self._put(key, content, "create", writer)
            if failure is None:
                return Created.NEW
            there = self._written(key, failure)
            if there is not None:
                if there.writer == writer:
                    return Created.NEW
                return self._compared(key, there.size_bytes, content)
            # What was in the way may have been removed meanwhile.
            if not isinstance(failure, AlreadyExistsError):
                raise failure_of(failure, self.url_of(key), "create it") from None
        raise StorageError(
            f"{self.url_of(key)} was there and was not there, {_ATTEMPTS} times in turn",
            hint="Look what else creates and removes it.",
            url=self.url_of(key),
        )

    def _create_large(self, key: str, content: bytes | Path, *, alone: bool) -> Created:
        url, size = self.url_of(key), _size_of(content)
        if size > MOST_COPIED and not alone:
            raise StorageError(
                f"{url} would have {size:,} bytes; a bucket creates {MOST_COPIED:,} at most",
                hint="Write it under a name that nobody else gives, and replace what is there.",
                url=url,
            )
        if (found := self.find(key)) is not None:
            return self._compared(key, found.size_bytes, content)
        if alone:
            self.replace(key, content)
            return Created.NEW
        passing = f"{INCOMING}/{secrets.token_hex(16)}"
        self.replace(passing, content)
        try:
            return self._copy(passing, key, only_here=True)
        finally:
            with suppress(StorageError):  # the bucket's own rules remove it
                self.remove([passing])

    def replace(self, key: str, content: bytes | Path) -> None:
        """As `Store.replace`."""
        check_relative_path(key)
        writer = secrets.token_hex(16)
        failure = self._put(key, content, "overwrite", writer)
        if failure is not None:
            there = self._written(key, failure)
            if there is None or there.writer != writer:
                raise failure_of(failure, self.url_of(key), "replace it") from None

    def exchange(self, key: str, content: bytes, mark: str) -> str | None:
        """Put bytes under a key in place of those that have a mark, by one condition.

        Two bytes of the same content may have one mark: say a number that grows.

        Args:
            mark: Of what is there, from `Found` or an exchange.

        Returns:
            The mark of the new bytes; None = what is there has another mark by now, or nothing is
            there: also if an answer was lost, and another one exchanged these bytes before a look.

        Raises:
            StorageError: As `Store`; nobody knows whether it was done.
        """
        check_relative_path(key)
        writer = secrets.token_hex(16)
        mode: PutMode = {"e_tag": mark}
        if isinstance(self._client, GCSStore):  # its condition is of the object's generation
            found = self._ask(key, "look at it", lambda: obstore.head(self._client, key))
            mode = {"e_tag": mark, "version": found["version"]}
            if _found(key, found).mark != mark:
                return None
        self.counts.add(RequestKind.PUT, size=len(content))
        marked: Attributes = {_WRITER: writer}
        try:
            done = self._ask(
                key,
                "exchange it",
                lambda: obstore.put(self._client, key, content, mode=mode, attributes=marked),
                raw=True,
            )
            return done["e_tag"] or done["version"] or ""
        except (BaseError, FileNotFoundError) as error:
            if not _may_be_done(error):
                raise failure_of(error, self.url_of(key), "exchange it") from None
            failure = error
        there = self._written(key, failure)
        if there is not None and there.writer == writer:  # an answer was lost
            return there.mark
        if not isinstance(failure, (AlreadyExistsError, PreconditionError, FileNotFoundError)):
            raise failure_of(failure, self.url_of(key), "exchange it") from None
        self._raise_if_no_bucket(failure, key, "exchange it")
        return None

    def _put(self, key: str, content: bytes | Path, mode: PutMode, writer: str) -> Exception | None:
        """Put an object; return what failed if it may be there still.  To create it, no parts.

        Raises:
            StorageError: It failed, and certainly did nothing.
        """
        size = _size_of(content)
        part = max(self._part_bytes, PART_BYTES, -(-size // _MOST_PARTS))
        in_parts = mode != "create" and size > self._part_bytes
        marked: Attributes = {_WRITER: writer}
        self.counts.add(RequestKind.PUT, math.ceil(size / part) + 2 if in_parts else 1, size)
        try:
            self._ask(
                key,
                "write it",
                lambda: obstore.put(
                    self._client,
                    key,
                    _uploaded(content, size, self.url_of(key)) if in_parts else content,
                    mode=mode,
                    attributes=marked,
                    use_multipart=in_parts,
                    chunk_size=part,
                    max_concurrency=_PARTS_AT_ONCE,
                ),
                raw=True,
            )
        # An upload that was finished already is no longer found.
        except (BaseError, FileNotFoundError) as error:
            if isinstance(content, Path) and not content.exists():
                with storing(content):
                    raise
            if not _may_be_done(error):
                raise failure_of(error, self.url_of(key), "write it") from None
            return error
        return None

    def _written(self, key: str, failure: Exception) -> _Written | None:
        """Look what is under a key after a failure, which is raised if that fails, too."""
        self.counts.add(RequestKind.HEAD)
        try:
            with _asking(self.url_of(key)):
                found = obstore.get(self._client, key, options={"head": True})
        except FileNotFoundError:
            return None
        except BaseError as error:
            if isinstance(failure, AlreadyExistsError):
                # Ours, perhaps: its answer may have been lost.
                raise as_unknown(failure_of(error, self.url_of(key), "look at it")) from None
            raise failure_of(failure, self.url_of(key), "write it") from None
        self._seen_s = monotonic()
        writer = found.attributes.get(_WRITER, "")
        return _Written(found.meta["size"], writer, _found(key, found.meta).mark)

    def _compared(self, key: str, size_bytes: int, content: bytes | Path) -> Created:
        if size_bytes != _size_of(content):
            return Created.OTHER
        theirs = self.open(key).pieces
        with storing(key):
            return Created.EQUAL if same_bytes(content, theirs) else Created.OTHER

    def copy(self, source: str, target: str) -> Created:
        """As `Store.copy`; of more than 5 GiB only under a name that nobody else gives."""
        return self._copy(source, target, only_here=False)

    def _copy(self, source: str, target: str, *, only_here: bool) -> Created:
        """Copy an object; `only_here`: nobody else knows the source, so its copy is ours."""
        check_relative_path(source)
        check_relative_path(target)
        client, attempts = self._find_way(), 0
        while True:
            attempts += 1
            self.counts.add(RequestKind.COPY)
            try:
                with _asking(self.url_of(target)):
                    obstore.copy(client, source, target, overwrite=False)
                self._seen_s = monotonic()
                return Created.NEW
            except (BaseError, FileNotFoundError) as error:
                if attempts > 1:
                    note_repeated(error)
                if not _may_be_done(error):
                    raise failure_of(error, self.url_of(target), "copy to it") from None
                failure = error
            if isinstance(failure, FileNotFoundError):
                self._raise_if_no_bucket(failure, target, "copy to it")
            given, there = self._written(source, failure), self._written(target, failure)
            if given is None:
                raise missing(self.url_of(source), "copy it")
            # A copy in parts came as far as the answer that was cut.
            if there is not None or not is_cut(failure) or attempts == _ATTEMPTS:
                break
        if there is None and given.size_bytes > MOST_COPIED:
            return self._pass_on(source, target, given.writer)
        if there is None:
            raise failure_of(failure, self.url_of(target), "copy to it")
        if there.size_bytes != given.size_bytes:
            return Created.OTHER
        # A copy has the writer of what was copied, or none, if it was made in parts.
        by_same = bool(given.writer) and there.writer == given.writer
        if not by_same and self._digest(source) != self._digest(target):
            return Created.OTHER
        repeated = not isinstance(failure, AlreadyExistsError) or was_repeated(failure)
        is_ours = by_same if only_here and there.writer else repeated
        return Created.NEW if is_ours else Created.EQUAL

    def _find_way(self) -> ObjectStore:
        """Return the client whose copies leave alone what is there, found by trying.

        Raises:
            LyingStoreError: The server overwrites by each of them (definite).
            StorageError: As `Store`; nothing was copied.
        """
        if self._copying is None:
            self._copying = self._first_that_is_refused()
        return self._copying

    def _first_that_is_refused(self) -> ObjectStore:
        assert self._copying_otherwise is not None
        source, target = tried = [f"{INCOMING}/{secrets.token_hex(16)}" for _ in range(2)]
        overwrites, failure = False, StorageError("")
        try:
            for key in tried:
                self._put_alone(key, b"tried")
            for client in (self._client, self._copying_otherwise()):
                self.counts.add(RequestKind.COPY)
                copy = partial(obstore.copy, client, source, target, overwrite=False)
                try:
                    self._ask(target, "copy to it", copy, raw=True)
                    overwrites = True
                except (AlreadyExistsError, PreconditionError):
                    return client
                except (BaseError, FileNotFoundError) as error:
                    failure = failure_of(error, self.url_of(target), "copy to it")
                    if not says_no_way(error):
                        raise failure from None
        finally:
            with suppress(StorageError):  # the bucket's own rules remove them
                self.remove(tried)
        if not overwrites:
            raise failure
        header = "If-None-Match: * of a copy"
        raise LyingStoreError(
            f"{self._url} cannot be trusted: a copy overwrites what is there: it ignores {header}, "
            "and of the end of an upload in parts",
            url=self._url,
            check="copying",
            header=header,
        )

    def _put_alone(self, key: str, content: bytes) -> None:
        """Put a few bytes under a key that nobody else gives."""
        failure = self._put(key, content, "create", secrets.token_hex(16))
        if failure is None or isinstance(failure, AlreadyExistsError):  # its answer was lost
            return
        self._raise_if_no_bucket(failure, key, "write it")
        raise failure_of(failure, self.url_of(key), "write it") from None

    def _pass_on(self, source: str, target: str, writer: str) -> Created:
        """Copy what S3 copies by no request, while the library has none for a part of an object.

        It travels through this process, some parts at a time, and lies on no disk here.
        """
        content, url = self.open(source), self.url_of(target)
        size = content.found.size_bytes
        part = max(PART_BYTES, -(-size // _MOST_PARTS))
        marked: Attributes = {_WRITER: writer or secrets.token_hex(16)}
        self.counts.add(RequestKind.PUT, math.ceil(size / part) + 2, size)
        try:
            upload = obstore.open_writer(
                self._client,
                target,
                attributes=marked,
                buffer_size=part,
                max_concurrency=_PARTS_AT_ONCE,
            )
            for piece in content.pieces:
                goes_on(url, _REQUEST_S)
                upload.write(piece)
            # Only now, so never by `with`: a close makes an object of what came so far.
            upload.close()
        except (BaseError, OSError) as error:  # the end of an upload fails as a file's does
            raise as_unknown(failure_of(error, url, "copy to it")) from None
        finally:
            content.pieces.close()
            goes_on(url)
        return Created.NEW

    def _digest(self, key: str) -> bytes:
        digest = hashlib.sha256()
        for piece in self.open(key).pieces:
            digest.update(piece)
        return digest.digest()

    def list(self, prefix: str = "") -> Iterator[Found]:
        """As `Store.list`."""
        if prefix:
            check_relative_path(prefix)
        url = self.url_of(prefix) if prefix else self._url
        # A list that was cut begins again; what came already is not said twice.
        said, attempts = set[str](), _ATTEMPTS
        while attempts:
            try:
                goes_on(url, _REQUEST_S)
                for page in obstore.list(self._client, prefix or None, chunk_size=_LISTED_AT_ONCE):
                    goes_on(url)
                    self.counts.add(RequestKind.LIST)
                    self._seen_s = monotonic()
                    for found in page:
                        key = found["path"]
                        if key not in said:
                            said.add(key)
                            attempts = _ATTEMPTS
                            if found["size"] or not self._marks_directory(key):
                                yield self._listed(_found(key, found))
                    goes_on(url, _REQUEST_S)
                self._seen_s = monotonic()
                return
            except (BaseError, FileNotFoundError) as error:
                attempts -= 1
                if not attempts or not is_cut(error):
                    raise failure_of(error, url, "list it") from None

    def _listed(self, found: Found) -> Found:
        """Return what a list says as a look at the object says it.

        Azure leaves quotes out; MinIO has the parts of a second in lists only.
        """
        if isinstance(self._client, AzureStore) and not found.mark.endswith('"'):
            return replace(found, mark=f'"{found.mark}"')
        if isinstance(self._client, S3Store):
            return replace(found, changed_s=math.floor(found.changed_s))
        return found

    def names(self, directory: str) -> Sequence[str]:
        """As `Store.names`."""
        found = self._in_directory(directory)["objects"]
        return self._last_parts(directory, (one["path"] for one in found))

    def directories(self, directory: str) -> Sequence[str]:
        """As `Store.directories`."""
        return self._last_parts(directory, self._in_directory(directory)["common_prefixes"])

    @staticmethod
    def _last_parts(directory: str, paths: Iterable[str]) -> Sequence[str]:
        names = (path.removeprefix(f"{directory}/").rstrip("/") for path in paths)
        return [name for name in names if name and "/" not in name]

    def _in_directory(self, directory: str) -> ListResult[Sequence[ObjectMeta]]:
        """List a directory, and nothing of what is below its own directories."""
        prefix = f"{check_relative_path(directory)}/"
        try:
            found = self._ask(
                directory, "list it", lambda: obstore.list_with_delimiter(self._client, prefix)
            )
        except FileNotFoundError as error:
            raise failure_of(error, self.url_of(directory), "list it") from None
        listed = len(found["objects"]) + len(found["common_prefixes"])
        self.counts.add(RequestKind.LIST, 1 + listed // _LISTED_AT_ONCE)
        return found

    def _marks_directory(self, key: str) -> bool:
        """Return whether an empty object is Hadoop's mark of a directory, with `/` after its key.

        The library leaves that out.
        """
        return self.find(key) is None

    def remove(self, keys: Iterable[str]) -> None:
        """As `Store.remove`."""
        rest = iter(keys)
        while batch := [check_relative_path(key) for key in islice(rest, _REMOVED_AT_ONCE)]:
            self.counts.add(RequestKind.DELETE, self._requests_to_remove(len(batch)))
            try:
                self._remove(batch)
            except FileNotFoundError as error:
                self._raise_if_no_bucket(error, batch[0], "remove it")
                # Azure and Google say so of each key, and the others may be left.
                for key in batch:
                    with suppress(FileNotFoundError):
                        self._remove([key])

    def _remove(self, keys: Sequence[str]) -> None:
        self._ask(keys[0], "remove it", lambda: obstore.delete(self._client, keys))

    def _requests_to_remove(self, count: int) -> int:
        if isinstance(self._client, S3Store):
            return 1
        return math.ceil(count / 256) if isinstance(self._client, AzureStore) else count

    def _ask(
        self,
        key: str,
        action: str,
        request: Callable[[], _T],
        *,
        raw: bool = False,
    ) -> _T:
        """Return what a request returns; it is repeated if its answer was cut.

        Args:
            raw: Errors of the library stay; else they become ours.

        Raises:
            FileNotFoundError: Nothing is there.
        """
        url = self.url_of(key)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with _asking(url):
                    answer = request()
            except BaseError as error:
                if attempt < _ATTEMPTS and is_cut(error):
                    continue
                if attempt > 1:
                    note_repeated(error)
                if raw:
                    raise
                raise failure_of(error, url, action) from None
            self._seen_s = monotonic()
            return answer
        raise AssertionError("unreachable")


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Let a request take its time; nothing else may."""
    goes_on(url, _REQUEST_S)
    try:
        yield
    finally:
        goes_on(url)


def bucket_store(place: BucketUrl, settings: StoreSettings) -> BucketStore:
    """Open a bucket; nothing is asked of it yet.

    Raises:
        ConfigError: The settings, or those of the environment, do not fit (definite).
    """
    client = client_of(place, settings)
    return BucketStore(client.library, place.url, copying_otherwise=client.copying_otherwise)


def _as_it_is(result: GetResult) -> GetResult:
    return result


def _may_be_done(error: BaseException) -> bool:
    """Return whether a write that failed may have been carried out, by an attempt before, too."""
    kinds = (AlreadyExistsError, PreconditionError, GenericError, FileNotFoundError)
    return isinstance(error, kinds) or was_repeated(error)


def _found(key: str, meta: ObjectMeta) -> Found:
    mark = meta["e_tag"] or meta["version"] or ""
    return Found(key, meta["size"], meta["last_modified"].timestamp(), mark)


def _size_of(content: bytes | Path) -> int:
    if isinstance(content, bytes):
        return len(content)
    with storing(content):
        return content.stat().st_size


def _uploaded(content: bytes | Path, size: int, url: str) -> Iterator[bytes]:
    """Yield what is sent in parts: each of them shows that the upload goes on.

    Raises:
        StorageError: The file has another size by now, or cannot be read.
    """
    with (
        storing(url if isinstance(content, bytes) else content),
        BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source,
    ):
        while piece := source.read(PIECE_BYTES):
            size -= len(piece)
            goes_on(url, _REQUEST_S)
            yield piece
    if size:
        raise StorageError(f"{content!s:.200} changed while it was sent", url=url)


def _nothing() -> Generator[bytes, None, None]:
    yield from ()
