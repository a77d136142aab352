"""All states that a configuration can reach, breadth first.

A state is a tuple of numbers: one for each node's state, the bounds that are left, and the
messages on their way, sorted.  A message that is never delivered is a lost one, so loss needs no
step of its own.  Of identical messages on their way one counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.events import EpochMessageReceived, Event, PayloadArrived, PostReceived
from sparktxlog.protocol.messages import RunHeader
from sparktxlog.testing.exploration.canonical import describe
from sparktxlog.testing.exploration.checks import check
from sparktxlog.testing.exploration.configurations import Configuration
from sparktxlog.testing.exploration.demanded import DemandedMaster
from sparktxlog.testing.exploration.labels import label
from sparktxlog.testing.exploration.nodes import CRASH, HURRY, PROPOSE, SUBMIT, TICK, Nodes, Outcome
from sparktxlog.testing.simulation.disk import key_of

#: Age of a post when a newer one of its link was delivered.
STALE = -1

State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Something on its way to a node."""

    sender: str
    receiver: str
    event: Event | None
    #: Posts: so many newer ones of its link are on their way, or `STALE`.
    age: int = 0
    #: A payload nobody held when it was asked for.
    wanted: RunHeader | None = None
    sources: tuple[str, ...] = ()
    #: Asked for by the receiver: lost when it crashes.
    asked: bool = False

    @property
    def is_post(self) -> bool:
        """Whether it is a post."""
        return isinstance(self.event, PostReceived)


@dataclass(frozen=True, slots=True)
class Step:
    """A step from one state to another."""

    node: int
    #: Message number, or one of the node's own steps.
    code: int
    #: The message stays on its way.
    again: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step of one node leads to, its messages numbered."""

    state: int
    posts: State
    others: State
    #: Payloads to fetch.
    wanted: tuple[Message, ...]

    @property
    def is_sending(self) -> bool:
        """Whether anything is sent."""
        return bool(self.posts or self.others or self.wanted)


@dataclass(slots=True)
class Exploration:
    """What was found."""

    configuration: str
    states: int = 0
    depth: int = 0
    transitions: int = 0
    node_states: int = 0
    messages: int = 0
    complete: bool = False
    seconds: float = 0.0
    violation: str = ""
    #: Shortest way to the violation, and what replays it.
    trace: tuple[str, ...] = ()
    #: States without a next one.
    ends: int = 0
    healed: int = 0
    #: Highest epoch that was reached, and states in which a node is in a later one.
    epochs: int = 1


class Space:
    """The states of one configuration."""

    def __init__(
        self, configuration: Configuration, master_class: type[DemandedMaster] = DemandedMaster
    ) -> None:
        self.configuration = configuration
        configs = configuration.configs()
        self.names = tuple(configs)
        self._index = {name: index for index, name in enumerate(self.names)}
        self.nodes = Nodes(configs, configuration.submits, master_class)
        self.messages: list[Message] = []
        self._numbers: dict[Hashable, int] = {}
        self._checked: set[State] = set()
        self._receiver: list[int] = []
        #: Of posts: sender and receiver.
        self._links: list[str] = []
        self._effects: dict[tuple[int, int], Effect] = {}
        #: (state of a node, message) → whether it would change nothing.
        self._idle: dict[tuple[int, int], bool] = {}

    # -- states ------------------------------------------------------------------------------------

    def begin(self) -> State:
        """Return the state in which all nodes have just started."""
        size, bounds = len(self.names), self.configuration
        left = (bounds.ballots, bounds.crashes, bounds.duplicates)
        state: State = (*(-1 for _ in self.names), *left)
        for index, name in enumerate(self.names):
            outcome = self.nodes.start(name)
            state = (*state[:index], outcome.state, *state[index + 1 :])
            sent = self._send(state, state[size + 3 :], self._effect_of(outcome))
            state = (*state[: size + 3], *sent)
        self._check(state[:size])
        return state

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the steps that are possible."""
        size, bounds, facts = len(self.names), self.configuration, self.nodes.facts
        ballots, crashes, duplicates = state[size : size + 3]
        for number in state[size + 3 :]:
            message = self.messages[number]
            if message.wanted is None or self._found(state, message):
                receiver = self._receiver[number]
                yield Step(receiver, number)
                if duplicates and not message.asked:
                    yield Step(receiver, number, again=True)
        for index in range(size):
            node = facts[state[index]]
            if node.may_submit:
                yield Step(index, SUBMIT)
            if node.now < bounds.ticks:
                yield Step(index, TICK)
            if crashes and node.name not in bounds.witnesses:
                yield Step(index, CRASH)
            if ballots and node.may_propose and node.name in bounds.proposers:
                yield Step(index, PROPOSE)
                yield Step(index, HURRY)

    def take(self, state: State, step: Step) -> State:
        """Return the state that a step leads to.

        Raises:
            InvariantViolation: It breaks an invariant.
        """
        size, index, code = len(self.names), step.node, step.code
        ballots, crashes, duplicates = state[size : size + 3]
        network = state[size + 3 :]
        event = None
        if code >= 0:
            message = self.messages[code]
            event = message.event or self._payload(message)
            if step.again:
                duplicates -= 1
            else:
                place = network.index(code)
                network = network[:place] + network[place + 1 :]
            if message.is_post and message.age >= 0:
                network = self._outdate(network, message)
        elif code == CRASH:
            crashes -= 1
            messages, name = self.messages, self.names[index]
            network = tuple(
                [n for n in network if not (messages[n].asked and messages[n].receiver == name)]
            )
        elif code in (PROPOSE, HURRY):
            ballots -= 1
        effect = self._effects.get((state[index], code))
        if effect is None:
            effect = self._effects[state[index], code] = self._effect(state[index], code, event)
        own = (*state[:index], effect.state, *state[index + 1 : size])
        if effect.is_sending:
            network = self._send(own, network, effect)
        if self.configuration.absorb:
            network = self._absorb(own, network)
        found = (*own, ballots, crashes, duplicates, *network)
        if effect.state != state[index]:
            self._check(own)
        return found

    def _effect(self, number: int, code: int, event: Event | None) -> Effect:
        return self._effect_of(self.nodes.step(number, code, event))

    def _effect_of(self, outcome: Outcome) -> Effect:
        posts, others, wanted = [], [], []
        for sent in outcome.sent:
            message = Message(
                sent.sender, sent.receiver, sent.event, wanted=sent.wanted, sources=sent.sources,
                asked=sent.wanted is not None,
            )  # fmt: skip
            if message.is_post:
                posts.append(self._number(message))
            elif sent.wanted is not None:
                wanted.append(message)
            else:
                others.append(self._number(message))
        return Effect(outcome.state, tuple(posts), tuple(others), tuple(wanted))

    def _check(self, own: State) -> None:
        if own not in self._checked:
            check([self.nodes.facts[number] for number in own], self.configuration.first_quorum)
            self._checked.add(own)

    # -- network -----------------------------------------------------------------------------------

    def _send(self, own: State, network: State, effect: Effect) -> State:
        """Put on its way what a step sends."""
        found = set(network)
        found.update(effect.others)
        for number in effect.posts:
            self._age(found, self._links[number])
            found.add(number)
        for message in effect.wanted:
            if self._found(own, message):
                # On its way from now on, whatever becomes of the source.
                event = self._payload(message)
                message = Message("", message.receiver, event, asked=True)
            found.add(self._number(message))
        return tuple(sorted(found))

    def _number(self, message: Message) -> int:
        key = (
            message.sender, message.receiver, describe(message.event, 0), message.age,
            type(message.event), describe(message.wanted, 0), message.sources, message.asked,
            type(getattr(message.event, "message", None)),
        )  # fmt: skip
        number = self._numbers.get(key)
        if number is None:
            event = message.event
            if isinstance(event, PostReceived):
                event = _renumbered(event, message.age)
            number = self._numbers[key] = len(self.messages)
            self.messages.append(
                Message(
                    message.sender, message.receiver, event, message.age, message.wanted,
                    message.sources, message.asked,
                )
            )  # fmt: skip
            self._receiver.append(self._index[message.receiver])
            link = f"{message.sender} {message.receiver}" if message.is_post else ""
            self._links.append(link)
        return number

    def _age(self, network: set[int], link: str) -> None:
        """A newer post is sent: the others are older by one, and of too many the oldest is lost."""
        links, limit = self._links, self.configuration.posts
        older: list[int] = []
        for number in [n for n in network if links[n] == link]:
            message = self.messages[number]
            if message.age != STALE:
                network.remove(number)
                if message.age + 1 < limit:
                    older.append(self._aged(message, message.age + 1))
        network.update(older)

    def _outdate(self, network: State, delivered: Message) -> State:
        """A post is delivered: those before it are stale now, those behind it are not."""
        if self.configuration.posts == 1:
            return network
        found = set()
        for number in network:
            message = self.messages[number]
            same = (message.sender, message.receiver) == (delivered.sender, delivered.receiver)
            if message.is_post and same and message.age > delivered.age:
                found.add(self._aged(message, STALE))
            else:
                found.add(number)
        return tuple(sorted(found))

    def _aged(self, message: Message, age: int) -> int:
        return self._number(Message(message.sender, message.receiver, message.event, age))

    def _absorb(self, own: State, network: State) -> State:
        """Take posts and payloads as lost that would change nothing."""
        receivers, idle = self._receiver, self._idle
        kept = []
        for number in network:
            run = (own[receivers[number]], number)
            useless = idle.get(run)
            if useless is None:
                useless = idle[run] = self._changes_nothing(*run)
            if not useless:
                kept.append(number)
        return tuple(kept) if len(kept) < len(network) else network

    def _changes_nothing(self, state: int, number: int) -> bool:
        message = self.messages[number]
        if message.event is None or isinstance(message.event, EpochMessageReceived):
            return False
        outcome = self.nodes.step(state, number, message.event)
        return outcome.state == state and not outcome.sent

    def _found(self, state: State, message: Message) -> bool:
        """Return whether a source holds the payload."""
        assert message.wanted is not None
        run = (key_of(message.wanted), message.wanted.digest)
        facts = self.nodes.facts
        return any(
            state[self._index[source]] >= 0 and run in facts[state[self._index[source]]].holds
            for source in message.sources
        )

    def _payload(self, message: Message) -> Event:
        assert message.wanted is not None
        facts = self.nodes.payloads[message.wanted.digest]
        return PayloadArrived(header=message.wanted, facts=facts)

    # -- words -------------------------------------------------------------------------------------

    def label(self, step: Step) -> str:
        """Return a step in words that say all of it."""
        return label(self, step)


def _renumbered(event: PostReceived, age: int) -> PostReceived:
    """Give a post the number that makes it newer than the last one, or not (`Peer.newest`)."""
    return PostReceived(post=replace(event.post, round=0 if age == STALE else 1))


def explore(
    space: Space,
    *,
    limit: int,
    progress: Callable[[Exploration], None] | None = None,
    at_end: Callable[[State], None] | None = None,
) -> Exploration:
    """Walk through the states, breadth first, until all are known or a violation is found.

    Args:
        limit: States to look at.
        progress: Called now and then.
        at_end: Called with states that have no next one.
    """
    found = Exploration(space.configuration.name)
    started = perf_counter()
    first = space.begin()
    known: dict[bytes, int] = {_packed(first): 0}
    parents, taken = array("q", [-1]), [Step(0, 0)]
    level, numbers = [first], [0]
    while level and not found.violation:
        following: list[State] = []
        following_numbers: list[int] = []
        for state, number in zip(level, numbers, strict=True):
            is_end = True
            for step in space.steps(state):
                is_end = False
                try:
                    after = space.take(state, step)
                except (InvariantViolation, AssertionError) as error:
                    found.violation = f"{type(error).__name__}: {error}"
                    found.trace = (*_way(space, number, parents, taken), space.label(step))
                    break
                found.transitions += 1
                key = _packed(after)
                if key not in known:
                    known[key] = len(parents)
                    parents.append(number)
                    taken.append(step)
                    following.append(after)
                    following_numbers.append(len(parents) - 1)
            if found.violation or len(parents) >= limit:
                break
            if is_end:
                found.ends += 1
                if at_end is not None:
                    at_end(state)
        else:
            found.complete = not following
        found.depth += bool(following) or bool(found.violation)
        found.states, found.seconds = len(parents), perf_counter() - started
        found.node_states, found.messages = len(space.nodes.facts), len(space.messages)
        if progress is not None:
            progress(found)
        if len(parents) >= limit and not found.complete:
            break
        level, numbers = following, following_numbers
    found.epochs = max((f.view.epoch for f in space.nodes.facts if f.view), default=1)
    return found


def _packed(state: State) -> bytes:
    return array("I", state).tobytes()


def _way(space: Space, number: int, parents: array[int], taken: list[Step]) -> tuple[str, ...]:
    steps = []
    while number > 0:
        steps.append(space.label(taken[number]))
        number = parents[number]
    return tuple(reversed(steps))
