"""Pages of a feed with runs, segments and files of their own, without a node."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sparktxlog.codec.run_chain import FIRST_HASH, KeptRun, RunEnd, run_ends
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.interfaces import Segment, TableEffect
from sparktxlog.worker.feed.feed_page import LOG_BEGINNING, FeedPage
from sparktxlog.worker.feed.feed_store import FeedIdentity, FeedWriter
from sparktxlog.worker.feed.shipped_files import WantedFile, ship_files
from sparktxlog.worker.lakes.payload_files import StagedOnDisk

IDENTITY = FeedIdentity(log_id="l", cluster="c")
#: When run N was ordered: so many seconds after that, microseconds since 1970 UTC.
ORDERED_US = 1_780_000_000_000_000


class SmallLog:
    """A log of runs of three transactions, each with one file; pages are made of it.

    Args:
        payloads: Directory of its files.
    """

    def __init__(self, payloads: Path) -> None:
        self.payloads = payloads
        self.end = RunEnd(position=0, chain_hash=FIRST_HASH, epoch=1)
        self.pages: list[FeedPage] = []

    def page(self, runs: int = 2, **fields: object) -> FeedPage:
        """Return the next page: a segment for each run."""
        start, kept, segments = self.end, list[KeptRun](), list[Segment]()
        for _ in range(runs):
            before, number = self.end, self.end.position // 3
            run = KeptRun(
                n=3,
                origin="A",
                incarnation=1,
                seq=before.position + 1,
                ts=number,
                epoch=1,
                digest=f"{number:064x}",
                ordered_at=ORDERED_US + number * 1_000_000,
            )
            (self.end,) = run_ends(before.position, before.chain_hash, [run])
            kept.append(run)
            segments.append(self._segment(before, self.end))
        page = FeedPage(
            log_id=IDENTITY.log_id,
            first=start.position + 1,
            last=self.end.position,
            from_hash=start.chain_hash,
            to_hash=self.end.chain_hash,
            epoch=1,
            begins_at="" if start.position else LOG_BEGINNING,
            runs=tuple(kept),
            segments=tuple(segments),
        )
        self.pages.append(replace(page, **fields) if fields else page)  # type: ignore[arg-type]
        return self.pages[-1]

    def _segment(self, before: RunEnd, end: RunEnd) -> Segment:
        content = f"rows up to {end.position}".encode()
        path = self.payloads / f"inline/{end.position}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.open("xb").write(content)
        file = StagedFile(
            path=f"inline/{end.position}.parquet",
            size_bytes=len(content),
            rows=3,
            digest=hashlib.sha256(content).hexdigest(),
        )
        effect = TableEffect(
            table="t", kind="append", first=before.position + 1, last=end.position, files=(file,)
        )
        return Segment(
            first=before.position + 1,
            last=end.position,
            from_hash=before.chain_hash,
            to_hash=end.chain_hash,
            epoch=1,
            transactions=3,
            rejected=0,
            effects=(effect,),
        )

    def ship(self, writer: FeedWriter, page: FeedPage) -> None:
        """Store the files of a page, then the page, as a feed does."""
        site = StagedOnDisk(self.payloads)
        ship_files(writer, (WantedFile(file, ((site, file.path),)) for file, _ in page.files))
        writer.add(page)
