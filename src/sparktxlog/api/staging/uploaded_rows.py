"""Writes rows as Parquet files in a directory of this machine and sends each one when it is closed.

There is a limit for each file, and one for all that are not sent yet, so it needs little disk and
memory whatever the rows are.  If the node is slower, the writer waits.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sparktxlog.api.staging.parquet_parts import FileStage
from sparktxlog.http.upload_link import UploadLink
from sparktxlog.lazy_arrow import pa
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile

#: Bytes of a file after which it is closed and sent, and of all files that are open.
_FILE_BYTES, _OPEN_BYTES = 128 << 20, 256 << 20
#: Files that are sent at once; no others are closed and not sent.
_AT_ONCE = 2


def upload_rows(
    link: UploadLink,
    batches: Iterable[pa.RecordBatch],
    folder: str,
    definition: TableDefinition,
    kind: OperationKind = OperationKind.APPEND,
    *,
    name: str,
    checks: bool = True,
) -> list[StagedFile]:
    """Write rows and upload their files; return what the node has then.

    Args:
        folder: Directory of the operation, relative to the payload store.
        name: Start of the file names, different for each attempt.
        checks: Whether rows are checked for what the table does not take.

    Raises:
        SchemaMismatchError, InvalidRowsError: They do not fit the table (definite).
        TxLogError: As `UploadLink.upload`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="txlog-") as spool,
        ThreadPoolExecutor(_AT_ONCE, "upload") as threads,
    ):
        root, sent = Path(spool), list[StagedFile]()
        (root / folder).mkdir(parents=True)
        sending: deque[Future[None]] = deque()

        def send(file: StagedFile) -> None:
            link.upload(root / file.path, file, definition.name)
            (root / file.path).unlink()

        def begin(files: Iterable[StagedFile]) -> None:
            for file in files:
                if len(sending) == _AT_ONCE:
                    sending.popleft().result()
                sending.append(threads.submit(send, file))
                sent.append(file)

        limits = (_FILE_BYTES, _OPEN_BYTES)
        stage = FileStage(root, folder, name, definition, kind, checks=checks, limits=limits)
        try:
            for batch in batches:
                stage.write(batch)
                begin(stage.take_closed())
            begin(stage.close())
            for one in sending:
                one.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            stage.discard()
            raise
    return sent
