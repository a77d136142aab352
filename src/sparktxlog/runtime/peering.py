"""Requests of peers: admission, messages, and data that they fetch.

First of all the sender must be a known peer, and its request certified or signed, new and meant for
this start (see `transport.signing`).  A refused request changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from sparktxlog.codec import wire
from sparktxlog.codec.wire import Envelope, Hello, PostAnswer, decode_pushes
from sparktxlog.errors import (
    QUARANTINE_HINT,
    BusyError,
    ExpiredError,
    ForbiddenPeerError,
    NotFoundError,
    RemoteProtocolError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnknownKindError,
)
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.balloting import (
    EpochMessage,
    Flushed,
    JoinRequest,
    Probe,
    ProbeAnswer,
    TailRequest,
)
from sparktxlog.protocol.messages.bounds import fits, post_fits
from sparktxlog.protocol.messages.events import (
    AnnouncementReceived,
    Contradicted,
    EpochMessageReceived,
    Event,
    Greeted,
    PayloadArrived,
    PostReceived,
    TailReceived,
)
from sparktxlog.protocol.messages.posts import Announcement, Post, Tail
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.queue_tails import tail_of
from sparktxlog.runtime.commit.run_fetching import check_run
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.runtime.membership.queue_summaries import SummaryGiver
from sparktxlog.runtime.replicas.all_replicas import AllReplicas
from sparktxlog.transport import signing
from sparktxlog.transport.node_certificate import speaks_only_tls
from sparktxlog.transport.peer_link import WATCH_S
from sparktxlog.transport.run_requests import MAX_RUNS

_log = structlog.get_logger("sparktxlog.peering")

#: The only messages of a node that is not admitted with its incarnation (P21).
_JOINERS_WORDS = (JoinRequest, TailRequest, Flushed, Probe)

#: Of so many refusals of one kind and sender, one is logged.
_LOG_EVERY = 100


class Peering:
    """Admits peers and passes on their messages."""

    def __init__(
        self,
        base: Foundation,
        core: CoreLoop,
        membership: Membership,
        all_replicas: AllReplicas,
    ) -> None:
        self._base = base
        self._core = core
        self._membership = membership
        self._all_replicas = all_replicas
        self._greeter = membership.greeter
        #: Summaries for joining nodes.
        self.summaries = SummaryGiver(base)
        self._verifier = membership.verifier
        self._strangers = membership.strangers
        membership.on_answer = self.on_answer
        self._refusals: dict[tuple[str, str], int] = {}
        #: Node → its start, and the number of the newest envelope or answer of that.
        self._newest: dict[str, tuple[str, int]] = {}
        #: Messages of kinds that this release does not know.
        self._unknown = 0

    # -- admission ---------------------------------------------------------------------------------

    def check_known(self, headers: Mapping[str, str]) -> None:
        """Refuse strangers before anything of the request is read.

        Raises:
            ForbiddenPeerError: A stranger (definite).
        """
        node = headers.get(signing.NODE, "")
        own = self._greeter.node_id
        if node == own and self._verifier is not None:
            return  # a second node with this id: the answer to its greeting says so
        if self._verifier is None or not self._greeter.known(node):
            raise ForbiddenPeerError(
                f"node {node[:80]!r} is not a configured peer of {own!r}",
                hint="Add it to the configurations before the first start, or with "
                "`sparktxlog peer add` later.",
                node=node[:80],
            )

    def note_stranger(
        self,
        headers: Mapping[str, str],
        shown: Sequence[str] | None,
        method: str,
        target: str,
        error: ForbiddenPeerError,
    ) -> None:
        """Warn of a node without a place, if it proves that it knows the cluster's secret.

        Args:
            shown: See `is_certified`.
        """
        verifier, node = self._verifier, headers.get(signing.NODE, "")[:80]
        if verifier is None:
            return
        try:
            knows = self.is_certified(headers, shown)
        except UnauthorizedError:
            return
        digest = headers.get(signing.DIGEST, "")
        if knows or verifier.knows_secret(headers, method, target, digest):
            self._strangers.note(node, error.message, self._base.clock.now())

    def verifier(self) -> signing.Verifier:
        """Return the verifier of request signatures.

        Raises:
            ForbiddenPeerError: This node has no peers (definite).
        """
        if self._verifier is None:
            raise ForbiddenPeerError("this node has no peers")
        return self._verifier

    def is_certified(self, headers: Mapping[str, str], shown: Sequence[str] | None) -> bool:
        """Return whether a connection's certificate proves the sender of a request.

        Args:
            headers: Of the request; they name its sender.
            shown: DNS names of the certificate; None = the connection has no TLS, so the
                sender has to sign.

        Raises:
            UnauthorizedError: The certificate, or the lack of it, proves nothing (definite).
        """
        if shown is None and not speaks_only_tls(self._base.config):
            return False
        node = headers.get(signing.NODE, "")
        if shown is None or node not in shown:
            names = f"a certificate of {', '.join(shown)[:200]}" if shown else "no certificate"
            raise UnauthorizedError(
                f"a request of node {node[:80]!r} came with {names}",
                hint="The certificate of a node (tls-cert-file) has the node's id among the DNS "
                "names of its subjectAltName.",
                node=node[:80],
            )
        return True

    def refusal_headers(
        self, headers: Mapping[str, str], error: TxLogError, answer: bytes
    ) -> dict[str, str]:
        """Return what the peer whose request is refused needs in order to greet this start.

        A refusal that may end the sender's start is sealed; its request was found genuine.
        """
        if self._verifier is None:
            return {}
        found = {signing.BOOT: self._verifier.challenge(headers.get(signing.NODE, ""))}
        if isinstance(error, signing.ReplacedStartError) and signing.SIGNATURE in headers:
            signature = headers[signing.SIGNATURE]
            found[signing.SIGNATURE] = self._membership.signer.answer_signature(signature, answer)
        return found

    def note_refusal(
        self, headers: Mapping[str, str], path: str, client: str, error: TxLogError
    ) -> None:
        """Count a refused request; log the first of its kind and then a few."""
        if not isinstance(error, UnauthorizedError):
            return
        node = headers.get(signing.NODE, "")[:80]
        self._base.metrics.refused_peers.labels(code=error.code).inc()
        # Names of strangers are not kept: their number is unbounded.
        key = (error.code, node if self._greeter.known(node) else "")
        count = self._refusals.get(key, 0)
        self._refusals[key] = count + 1
        if count % _LOG_EVERY == 0 and not isinstance(error, signing.StaleSessionError):
            _log.warning(
                "peer refused",
                peer=node,
                code=error.code,
                reason=error.message,
                path=path,
                client=client,
                times=count + 1,
            )

    def note_unknown(self, sender: str, error: UnknownKindError) -> None:
        """Count a message of a kind that this release does not know; the first one is logged."""
        if not self._unknown:
            _log.warning("a message of a later release is ignored", peer=sender, reason=str(error))
        self._unknown += 1
        self._base.metrics.unknown_messages.inc()

    async def on_hello(
        self, sender: str, headers: Mapping[str, str], hello: Hello
    ) -> tuple[bytes, dict[str, str]]:
        """Return the answer to a greeting and its headers; that to a signed one is sealed.

        Raises:
            ForbiddenPeerError: It is not the expected node (definite).
        """
        try:
            self._greeter.check_identity(hello, sender)
            self._check_running()
            await self._check_process(sender, hello)
            self._check_running()  # the rest needs a running node
            join_as = self._greeter.judge(hello, sender)
            if not join_as:
                await self._check_history(sender, hello)
        except ForbiddenPeerError as error:
            self._strangers.note(sender, error.message, self._base.clock.now())
            raise
        self._strangers.accepted(sender)
        if not join_as:  # otherwise it returns with a new boot
            self.verifier().admit(headers)
            if hello.standing is not None:
                event = Greeted(peer=NodeId(sender), standing=hello.standing)
                self._core.cycle.tell_always(event)
        answer = wire.encode(replace(self._greeter.own, join_as=join_as))
        return answer, self.seal(headers, answer)

    def seal(self, headers: Mapping[str, str], answer: bytes) -> dict[str, str]:
        """Return the headers of an answer that prove it to the sender of a signed request."""
        signature = headers.get(signing.SIGNATURE)
        if signature is None:  # certificates prove it
            return {}
        return {signing.SIGNATURE: self._membership.signer.answer_signature(signature, answer)}

    def _check_running(self) -> None:
        if self._base.ending.is_set():
            raise BusyError("the node is stopping")

    async def _check_process(self, sender: str, hello: Hello) -> None:
        """Accept a new process of a node only if no other one answers at the node's address.

        Two processes, one with a copy of the data directory, would both speak as that node.  The
        one at the address goes on, the other one is refused.

        Raises:
            ForbiddenPeerError: Another process answers there (definite).
            BusyError: Unknown at the moment; it greets again (definite).
        """
        link = self._base.links.get(sender)
        if link is None or self._base.master.knows_process(sender, hello.boot):
            return
        try:
            other = await link.other_process(hello.boot)
        except TransportError as error:
            raise BusyError(
                f"a new process says that it is node {sender!r}; it is not known yet whether "
                f"another one answers at that node's address: {error.message}",
                hint="This is checked again.  The node's addresses must lead to it.",
                node=sender,
            ) from error
        if other:
            raise ForbiddenPeerError(
                f"two processes are node {sender!r}: another one answers at its address",
                hint="Stop the process that is not the node, or whose data directory is a copy.  "
                "A node that replaces another one must begin with an empty data directory.",
                node=sender,
            )

    async def _check_history(self, sender: str, hello: Hello) -> None:
        """Compare decisions on the same epoch, and queues at the end of one, if both are known.

        Raises:
            ForbiddenPeerError: Two decisions for one epoch: both nodes stop (definite).
        """
        own = self._greeter.own
        if hello.log_id != own.log_id:
            return
        if hello.decision and hello.epoch <= own.epoch:
            here = self._membership.epochs.decision(hello.log_id, hello.epoch)
            if here and here != hello.decision:
                text = (
                    f"the log has forked: node {sender!r} and this one have two decisions for "
                    f"epoch {hello.epoch} (I5), {hello.decision[:12]} and {here[:12]}"
                )
                self._core.cycle.tell_always(
                    Contradicted(peer=NodeId(sender), text=text, decision=True)
                )
                raise ForbiddenPeerError(f"{text}.  {QUARANTINE_HINT}", node=sender)
        if 0 < hello.position <= self._base.ordered.value and hello.chain_hash:
            hashed = await self._hash_at(hello.position)
            if hashed is not None and hashed.hex() != hello.chain_hash:
                text = (
                    f"{sender} has another queue up to position {hello.position}: "
                    f"{hello.chain_hash[:12]}, here {hashed.hex()[:12]} (I1)"
                )
                self._core.cycle.tell_always(
                    Contradicted(peer=NodeId(sender), text=text, decision=False)
                )

    async def _hash_at(self, position: int) -> bytes | None:
        try:
            found: bytes | None = await self._base.run_blocking(
                self._base.journal.read_hash_at, position
            )
        except ExpiredError:
            return None
        return found

    async def watch(self) -> None:
        """Return after a while: the peer watches whether its connection lasts that long.

        Raises:
            BusyError: The node stops (definite).
        """
        try:
            async with asyncio.timeout(WATCH_S):
                await self._base.ending.wait()
        except TimeoutError:
            return
        raise BusyError("the node is stopping")

    # -- messages of peers -------------------------------------------------------------------------

    async def on_envelope(
        self, sender: str, envelope: Envelope, headers: Mapping[str, str]
    ) -> PostAnswer:
        """Process a peer's post and its workers' reports; return the answer.

        Args:
            headers: Of the request; they name the start of its sender.

        Raises:
            RemoteProtocolError: It speaks for another node (definite).
            BusyError: The core's queue is full; the peer repeats it (definite).
        """
        if self._greeter.is_joiner(sender):
            return PostAnswer()  # its posts do not count yet
        is_newest = self._is_newest(sender, headers.get(signing.BOOT, ""), envelope.number)
        if is_newest:
            self._membership.epochs.on_hears(sender, envelope.hears)
        if envelope.addresses is not None:
            self._membership.epochs.on_addresses(sender, envelope.addresses)
        if envelope.post is not None:
            self._tell(self._checked(sender, envelope.post))
        if is_newest:
            self._membership.note_data(sender, envelope.data, envelope.pace)
            if envelope.replicas is not None:
                self._all_replicas.keep_only(sender, envelope.replicas)
        has_runs = bool(envelope.pushes) and self._take_runs(sender, envelope.pushes)
        kept = []
        for report in envelope.reports:
            if report.node_id != sender:
                raise RemoteProtocolError(f"node {sender!r} reports for {report.node_id!r}")
            if self._all_replicas.accept_foreign_report(report):
                kept.append(report.label)
        answer = PostAnswer(kept=tuple(filter(None, kept)))
        link = self._base.links.get(sender) if has_runs else None
        post = None if link is None else await link.posts.next_post()
        if link is None or post is None:
            return answer
        hears = self._membership.epochs.linked_nodes()
        return replace(answer, post=post, hears=hears, number=link.posts.number())

    def on_answer(self, sender: str, answer: PostAnswer) -> None:
        """Process the post in a peer's answer; one for which there is no room is repeated.

        Raises:
            RemoteProtocolError: It speaks for another node (definite).
        """
        if answer.post is not None and not self._greeter.is_joiner(sender):
            link = self._base.links.get(sender)
            if self._is_newest(sender, "" if link is None else link.boot, answer.number):
                self._membership.epochs.on_hears(sender, answer.hears)
            self._core.cycle.tell(self._checked(sender, answer.post))

    def _is_newest(self, sender: str, boot: str, number: int) -> bool:
        """Return whether an envelope or answer is newer than all before: they overtake each other.

        What it says of its sender's state counts only then; a post has an order of its own (P5).
        """
        known_boot, known = self._newest.get(sender, (boot, -1))
        if boot == known_boot and number <= known:
            return False
        self._newest[sender] = boot, number
        return True

    def _checked(self, sender: str, post: Post) -> PostReceived:
        if post.sender != sender:
            raise RemoteProtocolError(f"node {sender!r} posts for {post.sender!r}")
        if not post_fits(post):
            raise RemoteProtocolError(f"node {sender!r} posts impossible numbers")
        self._membership.epochs.on_post(post)
        return PostReceived(post=post)

    async def on_epoch(self, sender: str, message: EpochMessage) -> None:
        """Process a peer's message about an epoch.

        Raises:
            RemoteProtocolError: It speaks for another node (definite).
            BusyError: The core's queue is full; the core repeats what matters (definite).
        """
        if message.sender != sender:
            raise RemoteProtocolError(f"node {sender!r} votes for {message.sender!r}")
        if not isinstance(message, _JOINERS_WORDS) and self._greeter.is_joiner(sender):
            return  # its vote does not count yet
        if isinstance(message, (JoinRequest, TailRequest)):
            stands = message.base if isinstance(message, JoinRequest) else message
            self._membership.positions[sender] = stands.position
        if isinstance(message, ProbeAnswer):
            self._membership.epochs.on_hears(sender, message.hears)
        self._tell(EpochMessageReceived(message=message))

    def _check_admitted(self, sender: str) -> None:
        if self._greeter.is_joiner(sender):
            raise ForbiddenPeerError(
                f"node {sender!r} is not admitted under its new incarnation yet", node=sender
            )

    async def run_behind(self, position: int) -> Tail:
        """Return the run of the queue that holds the next position; no entry = none does.

        A node asks to learn whether its queue is the beginning of this one.  Expired runs are
        returned too, as long as their rows exist.

        Raises:
            ExpiredError: The run is no longer kept (definite).
        """
        base = self._base
        if position >= base.ordered.value:
            return tail_of(base, ())
        stored = await base.run_blocking(base.journal.read_entry_at, position + 1)
        if stored is None:
            raise ExpiredError(
                f"the run after position {position} is no longer kept", after=position
            )
        return tail_of(base, (stored,))

    async def on_push(self, sender: str, body: bytes) -> None:
        """Process pushed runs; those that do not fit are dropped and fetched later (P3a)."""
        self._take_runs(sender, body)

    def _take_runs(self, sender: str, body: bytes) -> bool:
        """Tell the core of pushed runs; return whether there was one that fits."""
        self._check_admitted(sender)
        is_new = False
        for header, payload in decode_pushes(body):
            if header.origin != sender:
                raise RemoteProtocolError(f"node {sender!r} pushes a run of {header.origin!r}")
            if not fits(header):
                raise RemoteProtocolError(f"node {sender!r} pushes an impossible run: {header}")
            manifest = check_run(header, payload)
            if manifest.staged_bytes or not self._core.holdings.put_foreign(header, payload):
                continue
            facts = RunFacts.of(manifest)
            self._core.rivals.note(sender, facts)
            self._tell(PayloadArrived(header=header, facts=facts))
            is_new = True
        return is_new

    async def on_announcement(self, sender: str, announcement: Announcement) -> None:
        """Process the announcement of a run that is stamped later (P1a)."""
        self._check_admitted(sender)
        if announcement.origin != sender:
            raise RemoteProtocolError(f"node {sender!r} announces for {announcement.origin!r}")
        self._tell(AnnouncementReceived(announcement=announcement))

    async def on_tail(self, sender: str, tail: Tail) -> None:
        """Process the tail of a peer whose queue is longer (P9)."""
        self._check_admitted(sender)
        if tail.sender != sender:
            raise RemoteProtocolError(f"node {sender!r} sends a tail of {tail.sender!r}")
        self._tell(TailReceived(tail=tail))

    def _tell(self, event: Event) -> None:
        if not self._core.cycle.tell(event):
            raise BusyError("too many events wait for the core")

    async def run_payload(self, origin: str, incarnation: int, seq: int) -> bytes:
        """Return a durable run's container for a peer.

        Raises:
            NotFoundError: Not held here, or forgotten (definite).
        """
        (payload,) = await self.run_payloads([(origin, incarnation, seq)])
        if payload is None:
            raise NotFoundError(f"run {origin}/{incarnation}/{seq} is not held here")
        return payload

    async def run_payloads(self, runs: Sequence[tuple[str, int, int]]) -> tuple[bytes | None, ...]:
        """Return durable runs' containers for a peer, None for those not held here.

        Raises:
            RemoteProtocolError: Too many at once (definite).
        """
        if len(runs) > MAX_RUNS:
            raise RemoteProtocolError(f"{len(runs)} runs requested, at most {MAX_RUNS}")
        journal = self._base.journal
        found: tuple[bytes | None, ...] = await self._base.run_blocking(
            lambda: tuple(journal.read_payload(*run) for run in runs)
        )
        return found
