"""Signed requests: altered, replayed, stale and foreign ones are told apart."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from sparktxlog.errors import UnauthorizedError
from sparktxlog.transport.signing import (
    BOOT,
    COUNTER,
    DIGEST,
    NODE,
    SIGNATURE,
    TO,
    WINDOW,
    ReplacedStartError,
    Signer,
    StaleSessionError,
    Verifier,
)

SECRET = "0123456789abcdef"


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def greeted(boot: str = "a1", to: str = "b1") -> tuple[Signer, Verifier]:
    signer, verifier = Signer(SECRET, "A", boot), Verifier(SECRET, to)
    verifier.admit(greeting(signer, verifier))
    return signer, verifier


def greeting(signer: Signer, verifier: Verifier) -> dict[str, str]:
    """Return the headers of a greeting that the verifier finds genuine; it opens no session yet."""
    headers = signer.headers("POST", "/hello", b"", verifier.challenge("A"))
    assert greets(verifier, headers) == "A"
    return headers


def greets(verifier: Verifier, headers: dict[str, str]) -> str:
    return verifier.check(headers, "POST", "/hello", sha(b""), greeting=True)


def check(verifier: Verifier, headers: dict[str, str], body: bytes = b"x") -> str:
    return verifier.check(headers, "POST", "/posts", sha(body), greeting=False)


def test_a_genuine_request_passes_once() -> None:
    signer, verifier = greeted()
    headers = signer.headers("POST", "/posts", b"x", "b1")
    assert check(verifier, headers) == "A"
    with pytest.raises(UnauthorizedError, match="replayed"):
        check(verifier, headers)


@pytest.mark.parametrize("part", ["method", "target", "body", "counter", "signature", "secret"])
def test_an_altered_request_is_refused_and_does_not_use_up_its_counter(part: str) -> None:
    signer, verifier = greeted()
    if part == "secret":
        signer = Signer("another secret!!", "A", "a1")
    headers = signer.headers("POST", "/posts", b"x", "b1")
    sent = dict(headers)
    if part == "counter":
        sent[COUNTER] = str(int(sent[COUNTER]) + 1)
    if part == "signature":
        sent[SIGNATURE] = "0" * 64
    method = "PUT" if part == "method" else "POST"
    target = "/other" if part == "target" else "/posts"
    body = b"y" if part == "body" else b"x"
    with pytest.raises(UnauthorizedError, match="wrong signature"):
        verifier.check(sent, method, target, sha(body), greeting=False)
    if part != "secret":
        assert check(verifier, headers) == "A"


def test_each_signed_request_claims_the_digest_of_its_body() -> None:
    signer, verifier = greeted()
    headers = signer.headers("POST", "/posts", b"x", "b1")
    assert verifier.claimed_digest(headers) == sha(b"x")
    del headers[DIGEST]
    with pytest.raises(UnauthorizedError, match="lacks the digest"):
        verifier.claimed_digest(headers)
    del headers[SIGNATURE]
    with pytest.raises(UnauthorizedError, match="is not signed"):
        verifier.claimed_digest(headers)


@pytest.mark.parametrize("counter", ["", "-1", "1.0", "٣", "9" * 30])
def test_counters_that_are_none(counter: str) -> None:
    signer, verifier = greeted()
    headers = signer.headers("POST", "/posts", b"x", "b1") | {COUNTER: counter}
    with pytest.raises(UnauthorizedError, match="not signed"):
        check(verifier, headers)


def test_requests_may_overtake_within_the_window_only() -> None:
    signer, verifier = greeted()
    early = [signer.headers("POST", "/posts", b"x", "b1") for _ in range(3)]
    late = [signer.headers("POST", "/posts", b"x", "b1") for _ in range(WINDOW)]
    assert check(verifier, late[0]) == "A"
    assert check(verifier, early[1]) == "A"
    for headers in late[1:]:
        check(verifier, headers)
    with pytest.raises(UnauthorizedError, match="replayed"):
        check(verifier, early[0])


def test_a_restarted_receiver_refuses_what_was_recorded_before() -> None:
    signer, _ = greeted(to="b1")
    recorded = signer.headers("POST", "/posts", b"x", "b1")
    restarted = Verifier(SECRET, "b2")
    with pytest.raises(StaleSessionError):
        check(restarted, recorded)
    with pytest.raises(StaleSessionError):
        check(restarted, signer.headers("POST", "/posts", b"x", "b2"))  # not greeted yet


def test_a_restarted_sender_retires_its_former_start() -> None:
    old, verifier = greeted(boot="a1")
    recorded = old.headers("POST", "/posts", b"x", "b1")
    recorded_hello = old.headers("POST", "/hello", b"", "b1")
    new = Signer(SECRET, "A", "a2")
    hello = greeting(new, verifier)
    # Not admitted yet: a refused greeting must not end the session of the right node.
    assert check(verifier, old.headers("POST", "/posts", b"x", "b1")) == "A"
    verifier.admit(hello)
    with pytest.raises(UnauthorizedError, match="replayed"):
        greets(verifier, hello)
    for headers, target, body in ((recorded, "/posts", b"x"), (recorded_hello, "/hello", b"")):
        with pytest.raises(ReplacedStartError, match="was replaced"):
            verifier.check(headers, "POST", target, sha(body), greeting=True)
    assert check(verifier, new.headers("POST", "/posts", b"x", "b1")) == "A"


def test_a_late_greeting_replaces_no_session_that_was_opened_since() -> None:
    """The former start greeted, was killed, and its request comes behind those of the next one."""
    verifier = Verifier(SECRET, "b1")
    old, new = Signer(SECRET, "A", "a1"), Signer(SECRET, "A", "a2")
    late = greeting(old, verifier)
    verifier.admit(greeting(new, verifier))
    with pytest.raises(StaleSessionError):
        greets(verifier, late)
    assert check(verifier, new.headers("POST", "/posts", b"x", "b1")) == "A"


def test_who_was_overtaken_by_a_late_greeting_greets_again() -> None:
    verifier = Verifier(SECRET, "b1")
    old, new = Signer(SECRET, "A", "a1"), Signer(SECRET, "A", "a2")
    late, hello = greeting(old, verifier), greeting(new, verifier)
    verifier.admit(late)
    with pytest.raises(StaleSessionError):
        greets(verifier, hello)
    verifier.admit(greeting(new, verifier))
    assert check(verifier, new.headers("POST", "/posts", b"x", "b1")) == "A"


def test_without_a_challenge_only_a_session_is_gone_on_with() -> None:
    signer, verifier = greeted()
    assert greets(verifier, signer.headers("POST", "/hello", b"", "b1")) == "A"
    other = Signer(SECRET, "A", "a2").headers("POST", "/hello", b"", "b1")
    with pytest.raises(StaleSessionError):
        greets(verifier, other)


def test_an_answer_is_bound_to_its_request() -> None:
    signer, other = Signer(SECRET, "A", "a1"), Signer("another secret!!", "A", "a1")
    seal = signer.answer_signature("s1", b"body")
    assert seal == Signer(SECRET, "B", "b9").answer_signature("s1", b"body")
    assert seal != signer.answer_signature("s2", b"body")
    assert seal != signer.answer_signature("s1", b"bodz")
    assert seal != other.answer_signature("s1", b"body")


def test_of_two_greetings_that_are_judged_at_once_the_later_one_greets_again() -> None:
    """A greeting waits for what a peer answers: another process may be admitted meanwhile."""
    verifier = Verifier("secret", "b1")
    one, other = Signer("secret", "A", "a1"), Signer("secret", "A", "a2")
    first, second = greeting(one, verifier), greeting(other, verifier)
    verifier.admit(second)
    with pytest.raises(StaleSessionError, match="greet again"):
        verifier.admit(first)


def test_who_is_expelled_greets_before_it_says_anything_more() -> None:
    signer, verifier = greeted()
    verifier.expel("A")
    with pytest.raises(StaleSessionError):
        check(verifier, signer.headers("POST", "/posts", b"x", "b1"))
    verifier.admit(greeting(signer, verifier))
    assert check(verifier, signer.headers("POST", "/posts", b"x", "b1")) == "A"


def test_a_certified_request_needs_no_signature_but_a_session_and_a_new_counter() -> None:
    verifier = Verifier("", "b1")
    headers = {NODE: "A", BOOT: "a1", TO: verifier.challenge("A"), COUNTER: "1"}
    with pytest.raises(StaleSessionError):
        verifier.check_certified(headers, greeting=False)
    assert verifier.check_certified(headers, greeting=True) == "A"
    verifier.admit(headers)
    later = headers | {TO: "b1", COUNTER: "2"}
    assert verifier.check_certified(later, greeting=False) == "A"
    with pytest.raises(UnauthorizedError, match="replayed"):
        verifier.check_certified(later, greeting=False)
    with pytest.raises(StaleSessionError):
        verifier.check_certified(later | {BOOT: "a0", COUNTER: "9"}, greeting=False)


def test_without_a_secret_nothing_counts_as_signed() -> None:
    verifier = Verifier("", "b1")
    headers = Signer("", "A", "a1").headers("GET", "/x", b"", verifier.challenge("A"))
    with pytest.raises(UnauthorizedError, match="not signed"):
        verifier.check(headers, "GET", "/x", headers[DIGEST], greeting=True)


NEW = "the secret that comes"


def test_in_every_round_of_a_replacement_nodes_believe_each_other() -> None:
    """OLD with NEW also, NEW with OLD also, NEW: nodes of one round and the next one."""
    rounds = [(SECRET, ""), (SECRET, NEW), (NEW, SECRET), (NEW, "")]
    for (own, also), (their, theirs_also) in [
        *itertools.pairwise(rounds),
        *((later, earlier) for earlier, later in itertools.pairwise(rounds)),
    ]:
        signer = Signer(own, "A", "a1", also=also)
        answering = Signer(their, "B", "b1", also=theirs_also)
        verifier = Verifier(their, "b1", theirs_also)
        headers = signer.headers("POST", "/hello", b"x", verifier.challenge("A"))
        digest = headers[DIGEST]
        assert verifier.check(headers, "POST", "/hello", digest, greeting=True) == "A"
        seal = answering.answer_signature(headers[SIGNATURE], b"answer")
        assert signer.is_sealed(headers[SIGNATURE], b"answer", seal)


def test_an_old_secret_is_refused_once_it_is_not_named_any_more() -> None:
    verifier = Verifier(NEW, "b1")
    headers = Signer(SECRET, "A", "a1", also=NEW).headers("GET", "/x", b"", verifier.challenge("A"))
    with pytest.raises(UnauthorizedError, match="wrong signature") as found:
        verifier.check(headers, "GET", "/x", headers[DIGEST], greeting=True)
    assert "cluster-secret-also" in found.value.hint
    seal = Signer(SECRET, "B", "b1").answer_signature("s1", b"answer")
    assert not Signer(NEW, "A", "a1").is_sealed("s1", b"answer", seal)
    assert not Signer("", "A", "a1").is_sealed("s1", b"answer", "")
