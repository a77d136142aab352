"""Which files other donors have alike: the same table, path, size and tree digest as the first's.

Asked in batches while the first donor serves already; each batch that is known is of use at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from sparktxlog.errors import FileChangedError, LeaseGoneError, TransportError
from sparktxlog.model.copying import Grant
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork, Schedule
from sparktxlog.worker.copy.fetch.donor_link import DonorLink
from sparktxlog.worker.copy.fetch.selection import digest_batches, donor_digests
from sparktxlog.worker.copy.fetch.tasks import FileKey


def match_files(
    schedule: Schedule,
    grants: Sequence[Grant],
    works: Sequence[FileWork],
    connect: Callable[[int], DonorLink],
) -> None:
    """Tell the schedule which files each donor but the first may serve too.

    A donor that does not tell its digests is given up.

    Args:
        connect: Returns a new link to the donor of a grant, by its index.
    """
    others = range(1, len(grants))
    try:
        with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="matching") as pool:
            futures = [
                pool.submit(_match_donor, schedule, donor, _alike(works, grants[donor]), connect)
                for donor in others
            ]
            for future in futures:
                future.result()
    finally:
        schedule.matching_over()


def _alike(works: Sequence[FileWork], grant: Grant) -> dict[FileKey, FileWork]:
    offer = {
        (table.definition.name, file.path): file.size_bytes
        for table in grant.tables
        for file in table.files
    }
    return {w.task.key: w for w in works if offer.get(w.task.key) == w.task.size_bytes}


def _match_donor(
    schedule: Schedule,
    donor: int,
    alike: dict[FileKey, FileWork],
    connect: Callable[[int], DonorLink],
) -> None:
    first, other = connect(0), connect(donor)
    asked = 0
    try:
        for batch in digest_batches([work.task for work in alike.values()]):
            if schedule.over:
                return
            asked = 0
            unknown = [task for task in batch if alike[task.key].expected is None]
            for key, digest in donor_digests(first, unknown).items():
                alike[key].expected = digest
            asked = donor
            for key, digest in donor_digests(other, batch).items():
                if digest == alike[key].expected:
                    schedule.match(donor, alike[key])
    except (TransportError, LeaseGoneError, FileChangedError) as error:
        # An end from outside breaks requests off: that is not the donor's fault.
        if not schedule.over:
            schedule.drop(asked, error)
    finally:
        first.close()
        other.close()
