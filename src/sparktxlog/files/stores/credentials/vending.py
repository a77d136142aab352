"""Credentials for a part of a bucket, for somebody else, which end.

Azure signs for a directory (`azure_sas`).  For S3 there is STS, and its sessions of a role: one may
do what its role may and the policy of the session allows, so a policy for one prefix gives no
other.  A server that ignores the policy would give the whole bucket away: it is tried before the
first one is given.
"""

from __future__ import annotations

import html
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import urlencode

from sparktxlog.errors import (
    LyingStoreError,
    StorageError,
    StoreForbiddenError,
    StoreUnavailableError,
    TransportError,
)
from sparktxlog.files.foreign_files import INCOMING, goes_on
from sparktxlog.files.stores.bucket import BucketStore, bucket_store
from sparktxlog.files.stores.credentials.aws_requests import AwsService
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.credentials.vended_keys import Credentials, Issuer, VendedKeys
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl

#: Seconds for an answer of STS.
_ANSWER_S = 10.0
#: What is left of a session's time when a new one takes its place, for those that ask then.
_LEFT = 1 / 3
#: Seconds between two signs of life of what waits for another thread.
_SIGN_S = 1.0
#: Sessions that are kept at once.
_KEPT = 4_096
_READS = ("s3:GetObject",)
_WRITES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


@dataclass(frozen=True, slots=True)
class VendingRole:
    """A role whose sessions are given away.

    Args:
        arn: Of the role.
        endpoint: URL of STS.
        region: That requests to STS are signed for.
        lasts_s: Of a session.
        keys: Returns the credentials that may assume the role.
    """

    arn: str
    endpoint: str
    region: str
    lasts_s: int
    keys: Callable[[], S3Keys]

    @property
    def name(self) -> str:
        """What its sessions are called."""
        return f"a session of {self.arn}"

    @property
    def remedy(self) -> tuple[str, str]:
        """As `Issuer.remedy`."""
        return "Policy", (
            "Let the policy of store-vend-role allow what sessions need on the whole prefix of "
            "commit-table-url.  A server that ignores the policy of a session cannot be used with "
            "store-vend-role."
        )

    def give(self, place: BucketUrl, prefix: str, *, writes: bool) -> VendedKeys[S3Keys]:
        """As `Issuer.give`."""
        partition = self.arn.split(":")[1]
        return self.session(policy_of(place.bucket, prefix, writes=writes, partition=partition))

    def session(self, policy: str) -> VendedKeys[S3Keys]:
        """Begin a session, which may do no more than a policy says; blocks.

        Raises:
            StoreForbiddenError: The role may not be assumed (definite).
            StoreUnavailableError: STS is out of reach, or says that it is.
            ConfigError: There are no credentials, or they cannot be read (definite).
        """
        form = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self.arn,
            "RoleSessionName": f"sparktxlog-{secrets.token_hex(8)}",
            "DurationSeconds": str(self.lasts_s),
            "Policy": policy,
        }
        service = AwsService(self.endpoint, self.region, "sts", self.keys)
        kind = {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode()
        goes_on(self.endpoint, _ANSWER_S)
        try:
            answer = service.ask("POST", "/", headers=kind, body=body, total_s=_ANSWER_S)
        except TransportError as error:
            raise self._failed(str(error.__cause__ or error.code)) from None
        finally:
            goes_on(self.endpoint)
        if answer.status != 200:
            raise self._refused(answer.status, answer.text)
        try:
            return _session_of(answer.text)
        except (LookupError, ValueError):
            raise self._failed("an answer that is none of STS") from None

    def _failed(self, why: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self.endpoint} gave no credentials for role {self.arn}: {why}",
            hint="Look at store-sts-endpoint, and at the way to it.",
            url=self.endpoint,
            action="assume the role",
            answer=why,
        )

    def _refused(self, status: int, text: str) -> StorageError:
        code = re.search("<Code>([A-Za-z.]{1,80})</Code>", text)
        answer = f"{status} {code[1]}" if code else str(status)
        if status >= 500 or status == 429 or "Throttl" in answer:
            return self._failed(answer)
        return StoreForbiddenError(
            f"{self.endpoint} does not let this node assume role {self.arn}: {answer}",
            hint="Let the trust policy of store-vend-role name the node's credentials, and these "
            "have sts:AssumeRole on it; look at store-vend-time and at this machine's clock.",
            url=self.endpoint,
            action="assume the role",
            answer=answer,
            permission="sts:AssumeRole",
        )


def _session_of(answer: str) -> VendedKeys[S3Keys]:
    """Return the credentials that an answer of STS says; ValueError or LookupError: none."""

    def said(name: str) -> str:
        found = re.search(f"<{name}>([^<]+)</{name}>", answer)
        if found is None:
            raise LookupError(name)
        return html.unescape(found[1])

    keys = S3Keys(said("AccessKeyId"), said("SecretAccessKey"), said("SessionToken"))
    return VendedKeys(keys, int(datetime.fromisoformat(said("Expiration")).timestamp() * 1000))


def policy_of(bucket: str, prefix: str, *, writes: bool, partition: str = "aws") -> str:
    """Return a policy for what is below a prefix, as AWS writes it.

    Args:
        partition: Of AWS, `aws-cn` in China and `aws-us-gov` in GovCloud.
        prefix: Without `/` at either end.
        writes: Let it write and remove, too.
    """
    there = f"arn:{partition}:s3:::{bucket}"
    objects = {
        "Effect": "Allow",
        "Action": [*_READS, *(_WRITES if writes else ())],
        # Hadoop looks first whether the table's directory is an object.
        "Resource": [f"{there}/{prefix}", f"{there}/{prefix}/*"],
    }
    lists = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [there],
        "Condition": {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}},
    }
    document = {"Version": "2012-10-17", "Statement": [objects, lists]}
    return json.dumps(document, separators=(",", ":"))


class Vendor:
    """Gives credentials for parts of a bucket; threads may share it.

    Args:
        place: The bucket, and the prefix below which the parts are.
        settings: How the bucket is reached, for the proof.
    """

    def __init__(self, issuer: Issuer, place: BucketUrl, settings: StoreSettings) -> None:
        self._issuer, self._place, self._settings = issuer, place, settings
        self._given: dict[tuple[str, bool], VendedKeys[Credentials]] = {}
        self._giving, self._proving = threading.Lock(), threading.Lock()
        self._is_proved = False

    @property
    def endpoint(self) -> str:
        """What is asked for the credentials: the URL of a service, or none."""
        return self._issuer.endpoint

    @property
    def name(self) -> str:
        """What the credentials are called."""
        return self._issuer.name

    def give(self, part: str, *, writes: bool) -> VendedKeys[Credentials]:
        """Return credentials for what is below a part; at least a third of their time is left.

        The first ones are given after `prove`.

        Args:
            part: A key below the prefix of the place.

        Raises:
            StoreForbiddenError, StoreUnavailableError, ConfigError: As `Issuer.give`.
            LyingStoreError: As `prove` (definite).
        """
        while not self._proving.acquire(timeout=_SIGN_S):  # another thread proves them
            goes_on(self.endpoint)
        try:
            if not self._is_proved:
                self.prove()
                self._is_proved = True
        finally:
            self._proving.release()
        with self._giving:
            given = self._given.get((part, writes))
        left_ms = self._issuer.lasts_s * 1000 * _LEFT
        if given is not None and given.ends_ms - time.time() * 1000 > left_ms:
            return given
        given = self._session(part, writes=writes)
        with self._giving:
            self._given.pop((part, writes), None)  # the oldest is first
            if len(self._given) >= _KEPT:
                del self._given[next(iter(self._given))]
            self._given[part, writes] = given
        return given

    def _session(self, part: str, *, writes: bool) -> VendedKeys[Credentials]:
        prefix = f"{self._place.prefix}/{part}".lstrip("/")
        return self._issuer.give(self._place, prefix, writes=writes)

    def prove(self) -> None:
        """Try that sessions may do what they shall, and nothing else; blocks.

        Raises:
            LyingStoreError: One may do something else, or not what it shall (definite).
            StorageError: As `Store`, and `Issuer.give`.
        """
        trial = f"{INCOMING}/vending-{secrets.token_hex(8)}"
        own = bucket_store(self._place, self._settings)
        mine, other = f"{trial}/mine/k", f"{trial}/other/k"
        try:
            for key in (mine, other):
                own.create(key, b"x")
            for writes in (False, True):
                self._prove(f"{trial}/mine", mine, other, writes=writes)
        finally:
            with suppress(StorageError):
                own.remove([mine, other, f"{mine}2"])

    def _prove(self, part: str, mine: str, other: str, *, writes: bool) -> None:
        keys = self._session(part, writes=writes).keys
        store = bucket_store(self._place, replace(self._settings, keys=keys))
        for what, asked, allowed in (
            ("reads below its prefix", lambda: store.read(mine), True),
            ("lists its prefix", lambda: [*store.list(part)], True),
            ("writes below its prefix", lambda: store.replace(f"{mine}2", b"y"), writes),
            ("reads another prefix", lambda: store.read(other), False),
            ("writes to another prefix", lambda: store.replace(other, b"y"), False),
            ("lists all", lambda: [*store.list()], False),
        ):
            if _is_allowed(store, asked) is not allowed:
                kind = "read and write" if writes else "read"
                header, hint = self._issuer.remedy
                raise LyingStoreError(
                    f"{self._issuer.name} that may {kind} below one prefix "
                    f"{'does not do this' if allowed else 'does more'}: it {what}",
                    hint=hint,
                    url=store.url,
                    check="vending",
                    header=header,
                )


def _is_allowed(store: BucketStore, asked: Callable[[], object]) -> bool:
    try:
        asked()
    except StoreForbiddenError:
        return False
    return True
