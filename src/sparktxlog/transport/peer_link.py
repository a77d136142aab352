"""Links to peers: one kept-alive HTTP client, a few posts in flight per peer.

A link never blocks the core: a post replaces an older one that still waits, pushes beyond a bound
are dropped (the peer then fetches, P3a), and the core repeats tails and announcements.  While a
peer cannot be reached, the link greets it again and again, so a repaired network is noticed within
about a second; `on_link` reports each change.  The peer always leaves one request open, so that a
dead peer is noticed at once even if there is nothing to send.  A peer with several addresses is
greeted at one after the other, those that `transport.addresses` found dead last.  Messages about
epochs do not wait for answers to pushes.  If the peer cannot be reached they are dropped, but a
probe makes the link try again at once.  If the link is up and a probe names the peer as suspected,
the link checks whether the peer answers only at another address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

import structlog

from sparktxlog.codec import wire
from sparktxlog.errors import (
    PeerTimeoutError,
    RemoteProtocolError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnreachableError,
)
from sparktxlog.model.copying import Lease, ReplicaSize
from sparktxlog.model.replicas import MAIN
from sparktxlog.model.site_data import SiteData, SitePace
from sparktxlog.model.tables.table_versions import TableVersions
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.protocol.messages.balloting import EpochMessage, Probe
from sparktxlog.protocol.messages.posts import Announcement, RunHeader, Tail
from sparktxlog.supervision import Supervisor
from sparktxlog.transport.exchange import ask, stream_file, talking_to
from sparktxlog.transport.greeting import Greeter
from sparktxlog.transport.kept_connections import SILENCE_S, KeptConnections, Patience
from sparktxlog.transport.link_outbox import LinkOutbox, Traffic
from sparktxlog.transport.link_posts import LinkPosts, Said
from sparktxlog.transport.run_requests import SMALL_BYTES, RunRequests
from sparktxlog.transport.signing import ReplacedStartError, Signer, StaleSessionError

_log = structlog.get_logger("sparktxlog.transport")

#: Seconds that a link to a removed peer still sends waiting messages.
_LAST_WORDS_S = 5.0
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 1.0
_PATIENCE = Patience()
#: Attempts to learn which process answers at an address: patience with each, and the pause after a
#: failure; altogether less than `SILENCE_S`.
_WHO_TRIES = 3
_WHO_PATIENCE = Patience(total_s=2.0, connect_s=1.0)
_WHO_PAUSE_S = 0.25
#: Seconds for which a peer leaves open the request that watches the connection.
WATCH_S = 30.0
_WATCH_PATIENCE = Patience(silence_s=WATCH_S + SILENCE_S)
#: Seconds for a donor, which links all files of its replica, or reads logs, before it answers.
_DONOR_PATIENCE = Patience(silence_s=300.0)
#: An address is left for another one if it answers no greeting so many times as long as that one
#: took, and so many seconds.
_SLOWER = 4.0
_SLOWER_S = 0.1
#: Longest silence while a file is fetched.
_FILE_TIMEOUT_S = 15.0


class PeerLink:
    """The link to one peer.

    Args:
        node_id: The peer's configured id.
        urls: The peer's addresses, tried in turn; several stand with commas between them.
        greeter: Judges the peer's greeting.
        signer: Proves the sender of this node's requests.
        on_link: Called with (node id, up) when the link comes up or breaks.
        on_join: Called with the peer's greeting if it says that this node has to join first.
        on_replaced: Called if the peer says that another process replaced this start.
        on_answer: Called with the peer's answer to a post, if that is proved to be its answer.
        hears: Returns the nodes that this one is linked to; posts carry it.
        data: Returns what this site holds of the data; posts carry it.
        pace: Returns how quick this node's disk is; posts carry it.
        replicas: Returns the names of this site's replicas; posts carry them.
        supervisor: Restarts the link's tasks if they fail.
    """

    def __init__(
        self,
        node_id: str,
        url: str,
        *,
        greeter: Greeter,
        signer: Signer,
        on_link: Callable[[str, bool], None],
        on_join: Callable[[wire.Hello], None] = lambda hello: None,
        on_replaced: Callable[[], None] = lambda: None,
        on_answer: Callable[[wire.PostAnswer], None] = lambda answer: None,
        hears: Callable[[], tuple[str, ...]] = tuple,
        data: Callable[[], SiteData | None] = lambda: None,
        pace: Callable[[], SitePace] = SitePace,
        replicas: Callable[[], tuple[str, ...] | None] = lambda: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self.node_id = node_id
        self.urls = tuple(url.split(","))
        #: The address in use.
        self.url = self.urls[0]
        self.traffic = Traffic()
        self.up = False
        #: How often it came up.
        self.ups = 0
        #: Why the link is down, for status; empty while up.
        self.reason = "not greeted yet"
        #: Why one end does not accept the other one, empty = it does, or is not reached.
        self.refusal = ""
        #: Whether the peer took another process for this node since it took this start.
        self.replaced = False
        self._greeter = greeter
        self._signer = signer
        self._on_link = on_link
        self._on_join = on_join
        self._on_replaced = on_replaced
        #: Addresses not in use → whether they answered last; only for peers with several.
        self._answers: dict[str, bool] = {}
        #: Set to make the link try again at once.
        self._hurry = asyncio.Event()
        self._to = ""
        #: Newest wire version that the peer speaks, 0 = unknown.
        self.newest = 0
        self._broken = asyncio.Event()
        self._broken.set()
        self._greeted = asyncio.Event()
        #: Set once the first greeting has succeeded or failed.
        self.tried = asyncio.Event()
        self._outbox = LinkOutbox(self._greeted, self._tell)
        said = Said(hears=hears, data=data, pace=pace, replicas=replicas)
        self.posts = LinkPosts(self, self._outbox, self._greeted, said, on_answer)
        self._outbox.rides = self.posts.take_runs
        self._connections: KeptConnections | None = None
        self._small_runs = RunRequests(self._ask_runs)
        self._tasks: list[asyncio.Task[None]] = []
        self._verifying: asyncio.Task[None] | None = None
        self._doubting: asyncio.Task[None] | None = None
        #: Ends of requests that wait for an answer; none but `_leave` sets one.
        self._under_way: set[asyncio.Timeout] = set()

    # -- for the core's actions: never block, never fail -------------------------------------------

    def push(self, header: RunHeader, payload: bytes) -> None:
        """Send a run's header and payload (P3a); dropped if the link is down or congested."""
        if not (self.up and self._outbox.push(header, payload)):
            self.traffic.pushes_dropped += 1

    def announce(self, announcement: Announcement) -> None:
        """Announce an unstamped run (P1a)."""
        self._message("/peer/v1/announcements", wire.encode(announcement))

    async def tail(self, tail: Tail) -> None:
        """Send a part of the queue (P9), apart from all other messages; may take long."""
        if self.up:
            await self._tell("/peer/v1/tails", wire.encode(tail))

    def epoch(self, message: EpochMessage) -> None:
        """Send a part of an epoch decision; dropped if the link is down or congested.

        A probe to an unreachable peer makes the link try it now: if it answers, the link comes up,
        which shows that the peer is alive.  If the peer is suspected and answers only at another
        address, the link continues there.
        """
        if isinstance(message, Probe):
            if not self.up:
                self._hurry.set()
            elif self.node_id in message.suspects:
                self._doubt()
        self._message("/peer/v1/epochs", wire.encode_epoch(message))

    def _message(self, target: str, body: bytes) -> None:
        if self.up:
            self._outbox.message(target, body)

    # -- addresses ---------------------------------------------------------------------------------

    @property
    def boot(self) -> str:
        """Start of the peer that was greeted last; empty before."""
        return self._to.partition(".")[0]

    @property
    def version(self) -> int:
        """Wire version in use with the peer (P31)."""
        return self._greeter.version(self.node_id)

    async def other_process(self, boot: str) -> str:
        """Return which process answers at the peer's addresses instead of one; empty = none does.

        It asks what every node that is to be greeted first answers, so nobody waits for another.

        Raises:
            TransportError: Unknown now: an address gave neither an answer nor a refusal.
        """
        asked = [asyncio.create_task(self._who_answers(url)) for url in self.urls]
        try:
            found, doubt = "", None
            for answer in asyncio.as_completed(asked):
                try:
                    there = await answer
                except TransportError as error:
                    doubt = error
                    continue
                if there == boot:
                    return ""
                found = there or found
            if doubt is not None and not found:
                raise doubt
            return found
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _who_answers(self, url: str) -> str:
        """Return which process answers at an address; empty = it refuses each connection.

        A reset or silence proves nothing: a live process may answer the next request.

        Raises:
            TransportError: Unknown: neither a node's answer nor only refusals.
        """
        assert self._connections is not None
        doubt: TransportError | None = None
        for _ in range(_WHO_TRIES):
            try:
                answer = await ask(
                    self._connections,
                    self._signer,
                    url,
                    "GET",
                    "/peer/v1/watch",
                    b"",
                    to="",
                    patience=_WHO_PATIENCE,
                    peer=self.node_id,
                )
            except UnreachableError:
                pass  # if it is so each time, no process listens there
            except TransportError as error:
                doubt = error
            else:
                if answer.boot:
                    return answer.boot.partition(".")[0]
                doubt = TransportError(f"{url} answered {answer.status}, as no node does")
            await asyncio.sleep(_WHO_PAUSE_S)
        if doubt is not None:
            raise doubt
        return ""

    def uses(self, url: str) -> bool:
        """Return whether the link is up at an address."""
        return self.up and url == self.url

    def note_address(self, url: str, answers: bool) -> bool:
        """Note the result of a check of an address; return whether it is news.

        That an address answers is news only if it did not answer before.
        """
        if url not in self.urls or self.uses(url):
            return False
        before = self._answers.get(url, True)
        self._answers[url] = answers
        return answers != before

    def addresses(self) -> dict[str, bool]:
        """Return which checked addresses answer; {} if there is only one address."""
        if len(self.urls) < 2:
            return {}
        known = {**self._answers, **({self.url: True} if self.up else {})}
        return {url: known[url] for url in self.urls if url in known}

    # -- life --------------------------------------------------------------------------------------

    def start(self, connections: KeptConnections) -> None:
        """Start the link's tasks on the running event loop."""
        self._connections = connections
        box, posts = self._outbox, self.posts
        for work in (self._greeting, self._watching, posts.posting, box.pushing, box.messaging):
            name = f"{work.__name__.strip('_')} {self.node_id}"
            task = asyncio.create_task(self._supervisor.keep(name, work), name=name)
            self._tasks.append(task)

    def move(self, urls: tuple[str, ...]) -> None:
        """Use other addresses; a link at an address that stays is not broken."""
        self.urls = urls
        self._answers = {url: good for url, good in self._answers.items() if url in urls}
        if self.url not in urls:
            self.url = urls[0]
            self.greet_again()

    async def retire(self) -> None:
        """Send waiting messages for a short while, then close: the peer was removed."""
        began = time.monotonic()
        while self.up and not self._outbox.is_done and time.monotonic() < began + _LAST_WORDS_S:
            try:
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._outbox.progress()
            except TimeoutError:
                break
        await self.close()

    async def close(self) -> None:
        """Stop the tasks; waiting messages are dropped."""
        others = (self._verifying, self._doubting)
        tasks = [*self._tasks, *(task for task in others if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._small_runs.close()

    async def _greeting(self) -> None:
        delay = _BACKOFF_MIN_S
        while True:
            await self._broken.wait()
            try:
                await self._greet()
            except TxLogError as error:
                self.tried.set()
                self._went_down(error)
                self._turn_to_next()
                await self._pause(delay)
                delay = min(2 * delay, _BACKOFF_MAX_S)
            else:
                self.tried.set()
                delay = _BACKOFF_MIN_S

    def _turn_to_next(self) -> None:
        """Use the next address that was not found dead lately, else the next one."""
        at = self.urls.index(self.url) + 1 if self.url in self.urls else 0
        others = (*self.urls[at:], *self.urls[:at])
        self.url = next((url for url in others if self._answers.get(url, True)), others[0])

    async def _pause(self, delay: float) -> None:
        """Wait until the next attempt is due, or wanted."""
        self._hurry.clear()
        await _wait(self._hurry, delay)

    async def _greet(self) -> None:
        hello = await self._introduce(self.url)
        self._to, self.newest = hello.boot, hello.newest
        self._broken.clear()
        self._greeted.set()
        self.up, self.reason, self.refusal, self.replaced = True, "", "", False
        self._answers.pop(self.url, None)  # it would be outdated when the link leaves this address
        self.ups += 1
        _log.info("link up", peer=self.node_id, url=self.url)
        self._on_link(self.node_id, True)

    async def _introduce(self, url: str) -> wire.Hello:
        """Greet the peer at an address and return its greeting, checked."""
        try:
            answer, seal = await self._say_hello(url)
        except StaleSessionError:  # `_send` has read the peer's boot id from the refusal
            answer, seal = await self._say_hello(url)
        if not seal:
            raise UnauthorizedError(f"{url} does not prove that it is of this cluster")
        hello = wire.decode(wire.Hello, answer)
        if hello.join_as:
            self._on_join(hello)
            raise StaleSessionError(f"this node has to join as incarnation {hello.join_as}")
        self._greeter.check(hello, self.node_id)
        return hello

    async def _say_hello(self, url: str) -> tuple[bytes, bool]:
        """Send what the node shows now: an older word would pass for an older disk (P30)."""
        body = wire.encode(self._greeter.own)
        return await self._send("POST", "/peer/v1/hello", body, _PATIENCE, url)

    def verify(self) -> None:
        """Greet the peer again: the link breaks if it is gone, or is another node now."""
        if self._verifying is None or self._verifying.done():
            self._verifying = asyncio.create_task(self._verify())

    async def _verify(self) -> None:
        ups = self.ups
        try:
            await self._introduce(self.url)
        except TxLogError as error:
            self.failed(error, ups)

    def _doubt(self) -> None:
        if len(self.urls) > 1 and (self._doubting is None or self._doubting.done()):
            self._doubting = asyncio.create_task(self._look_elsewhere())

    async def _look_elsewhere(self) -> None:
        """Greet the peer here and elsewhere at once; go on there if it answers only there.

        If the peer answers late at all addresses, or at none, nothing changes.
        """
        used, ups, began = self.url, self.ups, time.monotonic()
        here = asyncio.create_task(self._introduce(used))
        try:
            for url in [u for u in self.urls if u != used and self._answers.get(u, True)]:
                try:
                    await self._introduce(url)
                except TxLogError:
                    continue
                took_s = time.monotonic() - began
                await asyncio.wait({here}, timeout=_SLOWER * took_s + _SLOWER_S)
                stands = self.up and ups == self.ups and self.url == used and url in self.urls
                if stands and not here.done():
                    self._leave(url)
                return
        finally:
            here.cancel()
            await asyncio.gather(here, return_exceptions=True)

    def _leave(self, url: str) -> None:
        """Continue at another address; requests at the present one are cancelled."""
        self._went_down(_left(self.url))
        self.url = url
        requests, self._under_way = self._under_way, set()
        for request in requests:
            request.reschedule(0)

    def greet_again(self) -> None:
        """Open a new session: the peer was restarted."""
        self._went_down(StaleSessionError(f"{self.url} wants to be greeted first"))

    def _went_down(self, error: TxLogError) -> None:
        reason = str(error)
        if reason != self.reason:
            _log.warning("link down", peer=self.node_id, url=self.url, reason=reason)
        self.reason = reason
        refused = isinstance(error, UnauthorizedError)
        if not isinstance(error, (StaleSessionError, ReplacedStartError)):
            self.refusal = error.message if refused else ""
        self._greeted.clear()
        self._broken.set()
        self.posts.broke()
        if self.up:
            self.up = False
            if not isinstance(error, UnauthorizedError) and any(self._answers.values()):
                self._turn_to_next()  # a greeting at a silent address would take as long again
            self._outbox.drop()
            self._on_link(self.node_id, False)
        if isinstance(error, ReplacedStartError):
            self.replaced = True
            self._on_replaced()

    def failed(self, error: TxLogError, ups: int) -> None:
        """Break the link after a failed request, unless it came up again meanwhile."""
        if ups == self.ups:
            self._went_down(error)

    async def _watching(self) -> None:
        """Keep a request open at the peer: if it breaks, the link is broken."""
        while True:
            await self._greeted.wait()
            ups, until = self.ups, time.monotonic() + WATCH_S
            try:
                await self._request("GET", "/peer/v1/watch", b"", _WATCH_PATIENCE)
            except TxLogError as error:
                self.failed(error, ups)
                continue
            if (rest := until - time.monotonic()) > 0:  # a proxy answers for the peer
                await _wait(self._broken, rest)

    async def send_post(self, body: bytes) -> tuple[bytes, bool]:
        """Send an envelope; return the answer, and whether it is proved to be the peer's."""
        return await self._exchange("POST", "/peer/v1/posts", body, _PATIENCE)

    async def _tell(self, target: str, body: bytes) -> None:
        ups = self.ups
        try:
            await self._request("POST", target, body, _PATIENCE)
        except RemoteProtocolError as error:
            _log.error("message refused", peer=self.node_id, to=target, error=str(error))
        except TransportError as error:
            if error.fields.get("status") in (404, 405):  # a release without this route (P31)
                _log.error("message refused", peer=self.node_id, to=target, error=str(error))
            else:
                self.failed(error, ups)
        except TxLogError as error:
            self.failed(error, ups)

    # -- fetching ----------------------------------------------------------------------------------

    async def get_run(self, header: RunHeader) -> bytes:
        """Return a run's payload container, unverified; small ones are requested together.

        Raises:
            TransportError: The peer cannot be reached or does not hold it.
        """
        if header.size_bytes <= SMALL_BYTES:
            return await self._small_runs.get(header)
        return await self._get(f"/peer/v1/runs/{header.origin}/{header.incarnation}/{header.seq}")

    async def _ask_runs(self, headers: Sequence[RunHeader]) -> list[bytes | None]:
        runs = tuple((header.origin, header.incarnation, header.seq) for header in headers)
        body = wire.encode(wire.RunsRequest(runs=runs))
        await self._wait_greeted()
        answer = await self._request("POST", "/peer/v1/runs", body, _PATIENCE)
        self.traffic.fetched_bytes += len(answer)
        return list(wire.decode(wire.RunsAnswer, answer).payloads)

    async def get_announced(self, digest: bytes) -> bytes:
        """Return the payload container of an announced run, unverified; errors as `get_run`."""
        return await self._get(f"/peer/v1/announced/{digest.hex()}")

    async def summary_offer(self, has: str) -> wire.SummaryOffer:
        """Ask which summary of the peer's queue may be fetched; errors as `get_run_after`.

        Args:
            has: Name of the summary of which a part is here, empty = none.
        """
        answer = await self._get(f"/peer/v1/summaries/{has or 'any'}")
        return wire.decode(wire.SummaryOffer, answer)

    async def get_run_after(self, position: int) -> Tail:
        """Return the peer's run that holds the next position after `position`.

        Raises:
            TransportError: The peer cannot be reached; `status` 410: it no longer keeps that run.
            RemoteProtocolError: Its answer is not a tail (definite).
        """
        return wire.decode(Tail, await self._get(f"/peer/v1/queue/{position}"))

    async def _get(self, target: str) -> bytes:
        await self._wait_greeted()
        answer = await self._request("GET", target, b"", _PATIENCE)
        self.traffic.fetched_bytes += len(answer)
        return answer

    async def _wait_greeted(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                await self._greeted.wait()
        except TimeoutError as error:
            raise PeerTimeoutError(f"no link to {self.node_id}: {self.reason}") from error

    async def table_versions(self, uuid: str, after: int, until: int) -> TableVersions:
        """Ask what versions of a commit table consist of; errors as `request_lease`."""
        await self._wait_greeted()
        target = f"/peer/v1/commit-tables/{uuid}/versions?after={after}&until={until}"
        answer = await self._request("GET", target, b"", _DONOR_PATIENCE)
        return wire.decode(TableVersions, answer)

    def stream(self, file: StagedFile, offset: int, source: str = "") -> Iterator[bytes]:
        """Yield a file of the peer; blocks, so call it in a thread.

        The request has digest, size and rows; the peer compares them before it sends a byte.

        Args:
            source: Where the peer has it; default: in its payload store.

        Raises:
            TransportError: The transfer broke; it may be resumed.
        """
        if not self.up:
            raise TransportError(f"no link to {self.node_id}: {self.reason}")
        wanted = f"size={file.size_bytes}&rows={file.rows}&digest={file.digest}"
        target = "/peer/v1/files/" + quote(source or f"payloads/{file.path}") + f"?{wanted}"
        url = self.url
        headers = self._signer.headers("GET", target, b"", self._to, url)
        tls = self._signer.tls(url, self.node_id)
        for block in stream_file(url, target, headers, offset, _FILE_TIMEOUT_S, tls):
            self.traffic.received_bytes += len(block)
            self.traffic.fetched_bytes += len(block)
            yield block

    # -- copies ------------------------------------------------------------------------------------

    async def request_lease(
        self,
        worker_id: str,
        *,
        named: bool = False,
        name: str = MAIN,
        only: tuple[str, ...] = (),
    ) -> Lease:
        """Ask the peer for a lease on a replica; it pins the files before it answers.

        Args:
            worker_id: The worker that copies.
            named: An operator says that this replica is right, although another one differs.
            name: Of the replica at its site.
            only: Patterns of the tables that the target holds; empty = all.

        Raises:
            TransportError: The peer cannot be reached, or is no donor now; a lease it may have
                granted expires.
            RemoteProtocolError: The answer is not a lease.
        """
        request = wire.LeaseRequest(worker_id=worker_id, named=named, name=name, only=only)
        body = wire.encode(request)
        await self._wait_greeted()
        return wire.decode(
            Lease, await self._request("POST", "/peer/v1/leases", body, _DONOR_PATIENCE)
        )

    async def replica_size(self, name: str = MAIN) -> ReplicaSize:
        """Ask the peer for the size of a replica; errors as `request_lease`."""
        await self._wait_greeted()
        target = "/peer/v1/replica/size" + ("" if name == MAIN else f"?replica={name}")
        answer = await self._request("GET", target, b"", _DONOR_PATIENCE)
        return wire.decode(ReplicaSize, answer)

    async def release_lease(self, lease: Lease) -> None:
        """Release a lease of the peer before it expires.

        Raises:
            TransportError: The request failed; the lease will expire.
        """
        assert self._connections is not None
        url, target = self.url, f"/replica/v1/leases/{quote(lease.lease_id, safe='')}"
        headers = {"authorization": f"Bearer {lease.token}"}
        tls = self._signer.tls(url, self.node_id)
        with talking_to(url, self.node_id):
            received = await self._connections.request(
                "DELETE", url, target, headers=headers, patience=_PATIENCE, tls=tls
            )
        if received.status not in (204, 410):
            raise TransportError(f"{url} answered {received.status} to the end of a lease")

    # -- requests ----------------------------------------------------------------------------------

    async def _request(self, method: str, target: str, body: bytes, patience: Patience) -> bytes:
        """Send a signed request and return the answer; as `_exchange`."""
        return (await self._exchange(method, target, body, patience))[0]

    async def _exchange(
        self, method: str, target: str, body: bytes, patience: Patience
    ) -> tuple[bytes, bool]:
        """Send a signed request, result as `_send`; greet a restarted peer and repeat once.

        Of several requests to a start that is gone the first refusal breaks the link.
        """
        ups = self.ups
        try:
            return await self._send(method, target, body, patience)
        except StaleSessionError as error:
            self.failed(error, ups)
            await self._wait_greeted()
            return await self._send(method, target, body, patience)

    async def _send(
        self, method: str, target: str, body: bytes, patience: Patience, url: str = ""
    ) -> tuple[bytes, bool]:
        """Return the answer's body, and whether it is proved to be the peer's."""
        assert self._connections is not None
        self.traffic.sent_bytes += len(body)
        url = url or self.url
        try:
            async with asyncio.timeout(None) as under_way:
                self._under_way.add(under_way)
                answer = await ask(
                    self._connections,
                    self._signer,
                    url,
                    method,
                    target,
                    body,
                    to=self._to,
                    patience=patience,
                    peer=self.node_id,
                )
        except TimeoutError as error:
            raise _left(url) from error
        finally:
            self._under_way.discard(under_way)
        self.traffic.received_bytes += len(answer.body)
        if answer.status == 409:
            self._to = answer.boot
            raise StaleSessionError(f"{answer.url} wants to be greeted first")
        answer.check_status(target, self.node_id)
        return answer.body, answer.sealed


async def _wait(event: asyncio.Event, most_s: float) -> None:
    """Wait for an event, at most so many seconds."""
    try:
        # `wait_for` of Python 3.11 loses a cancellation at the same time as the event.
        async with asyncio.timeout(most_s):
            await event.wait()
    except TimeoutError:
        return


def _left(url: str) -> PeerTimeoutError:
    return PeerTimeoutError(f"{url} does not answer, another address of the node does")
