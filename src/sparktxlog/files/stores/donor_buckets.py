"""Objects of other sites' buckets come into this site's by a copy of the service that has both.

No byte of them passes a node.  The service is asked for the SHA-256 of what it copied, and if it
says none, the copy is read once: so as much is known of it as of a file that came through nodes.

A copy is a way that may be closed.  Whatever is refused, or is not known, leaves the file to the
nodes; what a late copy puts then has the same bytes, and replaces nothing.
"""

from __future__ import annotations

import re
import threading
from base64 import b64decode
from collections.abc import Callable, Sequence
from html import unescape
from time import monotonic
from urllib.parse import quote

import structlog

from sparktxlog.errors import TransportError, TxLogError
from sparktxlog.files.durability import storing
from sparktxlog.files.foreign_files import digest_of, goes_on
from sparktxlog.files.stores.bucket import MOST_COPIED, BucketStore
from sparktxlog.files.stores.counting import RequestKind
from sparktxlog.files.stores.credentials.aws_requests import AwsAnswer, AwsService, aws_url
from sparktxlog.files.stores.objects import ObjectReader
from sparktxlog.files.stores.store import Found
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl
from sparktxlog.model.ids import check_relative_path

_log = structlog.get_logger("sparktxlog.files")

#: Seconds for a copy.
_COPY_S = 240.0
#: Seconds for which a donor that refused, or did not answer, is not asked again.
_PAUSE_S = 60.0
_CODE = re.compile("<Code>([A-Za-z.]{1,80})</Code>")
_CHECKSUM = re.compile("<ChecksumSHA256>([^<]{1,200})</ChecksumSHA256>")
#: Answers after which nothing was copied, and answers of a donor that has no such object.
_NOTHING_DONE, _NO_OBJECT = re.compile("4(?!0[89]|12|29)"), ("404", "404 NoSuchKey")


class DonorBuckets:
    """Prefixes of other sites, from which a service copies into one of this site.

    Threads may share it; its methods block.

    Args:
        store: What gets the copies.
        place: Where its root is.
        donors: Prefixes of S3 whose objects have the same keys.
        settings: How the service is reached, with credentials that may read the donors.
        noted: Called for each file with whether the service copied it.
    """

    def __init__(
        self,
        store: BucketStore,
        place: BucketUrl,
        donors: Sequence[BucketUrl],
        settings: StoreSettings,
        noted: Callable[[bool], object] = lambda copied: None,
    ) -> None:
        self._store, self._place, self._noted = store, place, noted
        self._headers = settings.s3_write_headers()
        self._service = AwsService(
            settings.s3_endpoint() or aws_url("s3", settings.s3_region()),
            settings.s3_region(),
            "s3",
            settings.s3_keys,
        )
        self._lock = threading.Lock()
        #: The one that gave something last is asked first.
        self._donors = list(donors)
        #: URL → until when it is not asked, monotonic seconds; the log says each once.
        self._closed = dict[str, float]()

    def copy(self, key: str, size_bytes: int, digest: str) -> Found | None:
        """Let the service copy an object of a donor; the caller knows that nothing is there yet.

        Args:
            digest: SHA-256 of its bytes, in hexadecimal digits.

        Returns:
            What is under the key: it has these bytes.  None = it must come another way, and other
            bytes may be there.
        """
        found = None
        if size_bytes <= MOST_COPIED:
            for donor in self._in_turn():
                try:
                    found = self._copy(donor, key, size_bytes, digest)
                except TxLogError as error:
                    self._close(donor, error.message)
                if found is not None:
                    self._gave(donor)
                    break
        self._noted(found is not None)
        return found

    def _in_turn(self) -> list[BucketUrl]:
        now = monotonic()
        with self._lock:
            return [one for one in self._donors if self._closed.get(one.url, 0) <= now]

    def _gave(self, donor: BucketUrl) -> None:
        with self._lock:
            self._closed.pop(donor.url, None)
            if self._donors[0] is not donor:
                self._donors.remove(donor)
                self._donors.insert(0, donor)

    def _close(self, donor: BucketUrl, why: str) -> None:
        with self._lock:
            is_said = donor.url in self._closed
            self._closed[donor.url] = monotonic() + _PAUSE_S
        if not is_said:
            _log.warning(
                "a bucket gives no copies, files come through the nodes",
                donor=donor.url,
                to=self._store.url,
                reason=why,
            )

    def _copy(self, donor: BucketUrl, key: str, size_bytes: int, digest: str) -> Found | None:
        """Copy from one donor; None = it has no such object, or gives none."""
        source = f"{donor.prefix}/{check_relative_path(key)}".lstrip("/")
        headers = self._headers | {
            "x-amz-copy-source": f"/{donor.bucket}/{_quoted(source)}",
            "x-amz-checksum-algorithm": "SHA256",
            "if-none-match": "*",
        }
        self._store.counts.add(RequestKind.COPY)
        refused, digest_there = "", ""
        goes_on(self._store.url_of(key), _COPY_S)
        try:
            answer = self._ask(key, headers)
            refused, digest_there = _refusal(answer), _digest_said(answer)
        except TransportError as error:
            if error.definite:
                raise
            refused = error.message
        finally:
            goes_on(self._store.url_of(key))
        if refused in _NO_OBJECT:
            return None
        if not refused or _NOTHING_DONE.match(refused) is None:
            # A copy whose answer was lost is there; so is one that a repetition finds.
            found = self._store.find(key)
            is_whole = found is not None and found.size_bytes == size_bytes
            if found and is_whole and (digest_there or self._read(found)) == digest:
                return found
        self._close(donor, refused or "it copied other bytes")
        return None

    def _ask(self, key: str, headers: dict[str, str]) -> AwsAnswer:
        whole = f"{self._place.prefix}/{key}".lstrip("/")
        path = f"/{self._place.bucket}/{_quoted(whole)}"
        return self._service.ask("PUT", path, headers=headers, total_s=_COPY_S)

    def _read(self, found: Found) -> str:
        """Return the digest of an object; empty = it was replaced meanwhile."""
        url = self._store.url_of(found.key)
        with storing(url), ObjectReader(self._store, found.key) as content:
            return digest_of(content, url) if content.found.mark == found.mark else ""


def _quoted(key: str) -> str:
    return quote(key, safe="/-_.~")


def _refusal(answer: AwsAnswer) -> str:
    """Return status and code of a copy that was refused; empty = it was carried out.

    S3 begins an answer with 200 before it knows how the copy ends.
    """
    code = _CODE.search(answer.text)
    if answer.status == 200 and code is None:
        return ""
    return f"{answer.status} {code[1]}" if code else str(answer.status)


def _digest_said(answer: AwsAnswer) -> str:
    """Return the SHA-256 of what was copied, in hexadecimal digits; empty = it is not said."""
    said = _CHECKSUM.search(answer.text)
    try:
        return "" if said is None else b64decode(unescape(said[1]), validate=True).hex()
    except ValueError:
        return ""  # of an object in parts it is one of their checksums, and their number
