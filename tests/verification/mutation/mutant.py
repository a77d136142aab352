"""What a mutation is: a rule, and the text patch that breaks it; read from `mutants/*.txt`.

    == P12 half-the-votes                                 rule and name
    breaks: lets half of the votes decide                 what the broken core does
    found by: trace simulation                            in this order
    layouts: two-rivals three-rivals                      of the simulation; without: all
    survives: …                                           why nothing is expected to find it
    @ messages/view.py                                    below the protocol's folder, or the root
    -        return 2 * votes > total                     old line
    +        return 2 * votes >= total                    new line; the others begin with a space

`@ with NAME` takes in the patches that stand under `** NAME` in the same file.  Nothing of the core
is imported here: a process that runs a mutated core reads this first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_FOLDER = Path(__file__).parent / "mutants"
_CORE = "src/sparktxlog/protocol"


class Killer(StrEnum):
    """What may find a mutation."""

    #: Random schedules of normal operation (`tests/verification/strategies.py`).
    SCHEDULES = "schedules"
    #: The simulation of whole clusters (`tests/verification/simulation`).
    SIMULATION = "simulation"
    #: A directed trace (`traces.py`).
    TRACE = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Lines of one file that are replaced by others."""

    #: Relative to the root of the repository.
    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule, broken in one way."""

    name: str
    #: P1 … P36, with the letter of a part: P1b.
    rule: str
    #: What the broken core does.
    says: str
    patches: tuple[Patch, ...]
    #: What shall find it, tried in this order.
    killers: tuple[Killer, ...]
    #: Layouts of the simulation to try; empty = all.
    layouts: tuple[str, ...] = ()
    #: Why nothing is expected to find it; empty = it must be found.
    survives: str = ""

    @property
    def where(self) -> str:
        """Return the names of the patched files."""
        return ", ".join(dict.fromkeys(f"`{Path(patch.path).name}`" for patch in self.patches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """How a mutation was found."""

    killer: Killer
    #: Seed, or name of the trace.
    where: str
    #: Runs until then, this one included.
    runs: int
    #: CPU seconds until then.
    seconds: float
    violation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one mutation."""

    name: str
    #: None: it survived.
    kill: Kill | None
    #: Killer → runs that found nothing.
    tried: dict[str, int]
    seconds: float

    @property
    def mutant(self) -> Mutant:
        """Return the mutation."""
        return BY_NAME[self.name]

    @property
    def is_expected(self) -> bool:
        """Return whether it was found, or is a listed survivor."""
        return self.kill is not None or bool(self.mutant.survives)


def patched_sources(patches: tuple[Patch, ...]) -> dict[str, str]:
    """Return the text of each patched file: path → text.

    Raises:
        AssertionError: A patch does not fit: its old lines do not stand in the file exactly once.
    """
    texts: dict[str, str] = {}
    for patch in patches:
        text = texts.get(patch.path) or (ROOT / patch.path).read_text()
        count = text.count(patch.old)
        assert count == 1, f"{patch.path} has these lines {count} times:\n{patch.old}"
        texts[patch.path] = text.replace(patch.old, patch.new)
    return texts


def _read(path: Path) -> Iterator[Mutant]:
    """Yield the mutations of one file."""
    shared: dict[str, tuple[Patch, ...]] = {}
    _, *blocks = path.read_text().replace("\n** ", "\n== ** ").split("\n== ")
    for block in blocks:
        head, *lines = block.rstrip().split("\n")
        start = next(number for number, line in enumerate(lines) if line.startswith("@"))
        fields = dict(line.split(": ", 1) for line in lines[:start])
        rule, name = head.split(" ", 1)
        patches = tuple(_patches("\n".join(lines[start:]), shared))
        if rule == "**":
            shared[name] = patches
            continue
        yield Mutant(
            name=name,
            rule=rule,
            says=fields["breaks"],
            patches=patches,
            killers=tuple(map(Killer, fields["found by"].split())),
            layouts=tuple(fields.get("layouts", "").split()),
            survives=fields.get("survives", ""),
        )


def _patches(text: str, shared: dict[str, tuple[Patch, ...]]) -> Iterator[Patch]:
    for part in text.removeprefix("@ ").split("\n@ "):
        name, *lines = part.split("\n")
        if name.startswith("with "):
            yield from shared[name.removeprefix("with ")]
            continue
        old = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        path = name if name.startswith(("tests/", "src/")) else f"{_CORE}/{name}"
        yield Patch(path=path, old=old, new=new)


MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for name in (
        "ordinary",
        "deciding",
        "entering",
        "following",
        "clocks",
        "believing",
        "versions",
        "conditions",
        "changes",
        "synchronous",
        "prepared",
        "commits",
        "groups",
    )
    for mutant in _read(_FOLDER / f"{name}.txt")
)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
RULES = (
    *(f"P{number}" for number in range(1, 24)),
    "P27",
    "P29",
    "P30",
    "P31",
    "P32",
    "P33",
    "P34",
    "P35",
    "P36",
    "P38",
    "P41",
)
#: Six mutations of the design that are harmless.  Of those, `queue-volatile` is found in this core:
#: a promise states its queue as the base of the final one, and a decided base that everybody forgot
#: can be fetched from nobody.  `claims-beyond-gap` is, since pushes leave gaps;
#: `ballot-counter-volatile` is: an own first ballot, number 1, may be used again for another value.
KNOWN_SURVIVORS = frozenset(
    {
        "frozen-posts-repeated",
        "queue-volatile",
        "own-counter-left-out",
        "claims-beyond-gap",
        "counter-not-raised",
        "ballot-counter-volatile",
    }
)
SURVIVORS = frozenset(mutant.name for mutant in MUTANTS if mutant.survives)


def missing_rules() -> list[str]:
    """Return the rules that no mutation breaks."""
    broken = {mutant.rule.rstrip("ab") for mutant in MUTANTS}
    return [rule for rule in RULES if rule not in broken]
