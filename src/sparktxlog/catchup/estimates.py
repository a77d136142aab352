"""How long a replay and a copy would take: a documented first guess, corrected by measurements.

Both paces are immutable: learning returns a new one; they survive a restart.  They keep the last
measurements and use medians, so one odd measurement changes little and old ones are forgotten.
First guesses are kept apart from measurements: a setting that changes at run time replaces only
the guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median

from sparktxlog.model.copying import CatchUpKind, Estimate
from sparktxlog.model.report import ReplayCost

# -- replay ----------------------------------------------------------------------------------------

#: First guesses, in seconds.  Measured on two cores, local disk: an empty batch, a MERGE (2.5 s for
#: 1,000 rows into 4 M rows, plus its count of old rows), a small transaction, a placed table step.
BATCH_S = 0.05
MERGE_S = 3.0
TRANSACTION_S = 45e-6
PLACED_STEP_S = 0.005
#: Assumed, not measured: rows through a MERGE at 50 MB/s; placed files cost their step only.
MERGED_BYTE_S = 1 / 50e6

#: Measurements kept of a kind.
WINDOW = 15
#: A replay with a shorter estimate is not used: it measures waiting, not work.
LEARN_FROM_S = 0.1
#: Bound of the factor by which one measurement may correct the guess.
MAX_CORRECTION = 100.0
#: The guess counts as so many measurements until there are more of them.
_GUESS_WEIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a replay consists of."""

    batches: int = 0
    #: Keyed table steps, each a MERGE.
    merges: int = 0
    transactions: int = 0
    appended_bytes: int = 0
    merged_bytes: int = 0

    @classmethod
    def of(cls, cost: ReplayCost) -> Workload:
        """Return the work that a worker reports as done."""
        return cls(**{name: getattr(cost, name) for name in cls.__slots__})

    def keyed_s(self) -> float:
        """Return the first guess for what goes through MERGE."""
        return self.merges * MERGE_S + self.merged_bytes * MERGED_BYTE_S

    def plain_s(self) -> float:
        """Return the first guess for everything else."""
        placed = PLACED_STEP_S * self.batches if self.appended_bytes else 0.0
        return self.batches * BATCH_S + self.transactions * TRANSACTION_S + placed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPace:
    """What is known about the speed of one replica's replays.

    Keyed work and the rest are corrected apart: a worker that only ever appended says nothing
    about what a MERGE into its tables will cost.
    """

    #: Measured over guessed seconds, oldest first, at most `WINDOW`, each in 1/100 … 100.
    plain: tuple[float, ...] = ()
    keyed: tuple[float, ...] = ()

    def estimate(self, workload: Workload) -> float:
        """Return the seconds a replay should take, ≥ 0."""
        plain, keyed = _correction(self.plain), _correction(self.keyed)
        return workload.plain_s() * plain + workload.keyed_s() * keyed

    def learn(self, workload: Workload, seconds: float) -> ReplayPace:
        """Return the pace after a measured replay; too little work changes nothing.

        Args:
            workload: What was applied.
            seconds: Measured, without waiting for new transactions; not finite or ≤ 0 is ignored.
        """
        plain, keyed = workload.plain_s(), workload.keyed_s()
        if plain + keyed < LEARN_FROM_S or not 0 < seconds < math.inf:
            return self
        if keyed < plain:
            rest = seconds - keyed * _correction(self.keyed)
            return replace(self, plain=_kept(self.plain, rest / plain))
        rest = seconds - plain * _correction(self.plain)
        return replace(self, keyed=_kept(self.keyed, rest / keyed))

    def describe(self, workload: Workload) -> Estimate:
        """Return the estimate with what it was computed from, in words."""
        work = (
            f"{_count(workload.transactions, 'transaction')} in "
            f"{_count(workload.batches, 'batch', 'batches')} with "
            f"{_count(workload.merges, 'merge')}"
        )
        known = len(self.plain) + len(self.keyed)
        source = f"learned from {_count(known, 'replay')}" if known else "first guess"
        return Estimate(
            kind=CatchUpKind.REPLAY,
            seconds=self.estimate(workload),
            basis=f"{work} ({source})",
        )


def _correction(measured: tuple[float, ...]) -> float:
    # On a scale of ratios 2 and 1/2 are equally far from 1, so the middle of their logarithms is
    # taken.
    guesses = (1.0,) * _GUESS_WEIGHT if len(measured) < 2 * _GUESS_WEIGHT else ()
    values = (*measured, *guesses)
    return math.exp(median(math.log(value) for value in values))


def _kept(measured: tuple[float, ...], ratio: float) -> tuple[float, ...]:
    bounded = min(max(ratio, 1 / MAX_CORRECTION), MAX_CORRECTION)
    return (*measured, bounded)[-WINDOW:]


# -- copy ------------------------------------------------------------------------------------------

#: Default of `NetSpeedBitsPerSec`, bits a second.
NET_SPEED_BITS_PER_SEC = 104_857_600
#: Smaller transfers measure the fixed cost of a copy, larger ones its speed.
SPEED_FROM_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPace:
    """What is known about the speed of copies, by donor.

    Sizes are uncompressed bytes that were transferred, without files found at the target.  The time
    of a copy has two parts: the transfer, including compression and disks, and the rest: start of
    a JVM, reading logs, recounts, commits.
    """

    #: Configured speed, used for donors nothing is known of.
    net_speed_bits_per_sec: int = NET_SPEED_BITS_PER_SEC
    #: Donor → (bytes, seconds of the whole copy, seconds of the transfer) of its last transfers,
    #: oldest first, at most `WINDOW` each.
    transfers: dict[str, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)
    #: Seconds in addition to those for the bytes, of the last transfers too small to show a speed,
    #: of any donor.
    overheads: tuple[float, ...] = ()

    def estimate(self, size_bytes: int, donor: str = "") -> float:
        """Return the estimated seconds of a copy of so many uncompressed bytes, ≥ 0."""
        return self.overhead_s() + max(size_bytes, 0) / self.bytes_per_s(donor)

    def bytes_per_s(self, donor: str = "") -> float:
        """Return the speed from a donor, in bytes of files a second, > 0."""
        known = self.transfers.get(donor, ())
        if not known:
            return self.net_speed_bits_per_sec / 8
        overhead = self.overhead_s()
        # Recounts take time with the bytes, but a cold start does not; so they count at most as
        # much as the bytes themselves.
        return median(
            size / min(max(seconds - overhead, fetch), 2 * fetch) for size, seconds, fetch in known
        )

    def overhead_s(self) -> float:
        """Return the fixed seconds of a copy, ≥ 0; 0 until several small ones were measured.

        It is the least measurement: another copy may have had to start a JVM.
        """
        return min(self.overheads) if len(self.overheads) >= _GUESS_WEIGHT else 0.0

    def learn(
        self, size_bytes: int, seconds: float, donor: str = "", *, fetch_s: float | None = None
    ) -> TransferPace:
        """Return the pace after a finished transfer; impossible values change nothing.

        Args:
            seconds: Of the whole copy, finite and > 0.
            fetch_s: Seconds of the transfer; None = all of them.
        """
        fetch = seconds if fetch_s is None else min(fetch_s, seconds)
        if size_bytes < 0 or not 0 < seconds < math.inf or not fetch >= 0:
            return self
        if size_bytes < SPEED_FROM_BYTES:
            if fetch_s is None:
                return self
            return replace(self, overheads=(*self.overheads, seconds - fetch)[-WINDOW:])
        if not fetch:
            return self
        kept = (*self.transfers.get(donor, ()), (size_bytes, seconds, fetch))[-WINDOW:]
        return replace(self, transfers={**self.transfers, donor: kept})

    def configured(self, net_speed_bits_per_sec: int) -> TransferPace:
        """Return the pace with another configured speed; measurements stay."""
        return replace(self, net_speed_bits_per_sec=net_speed_bits_per_sec)

    def describe(self, size_bytes: int, donor: str = "") -> Estimate:
        """Return the estimate with what it was computed from, in words."""
        known = len(self.transfers.get(donor, ()))
        source = f"learned from {_count(known, 'transfer')}" if known else "as configured"
        speed = self.bytes_per_s(donor) * 8 / 1e6
        basis = f"{size_bytes:,} bytes at {speed:,.1f} Mbit/s ({source})"
        if self.overhead_s():
            learned = _count(len(self.overheads), "small transfer")
            basis += f" and {self.overhead_s():,.1f} s more (learned from {learned})"
        return Estimate(
            kind=CatchUpKind.COPY, seconds=self.estimate(size_bytes, donor), basis=basis
        )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
