"""One append whose rows are staged by tasks of the data source, then posted as one transaction.

It is made at the driver or in a task and pickled to the others, so that all of them know the same
directory.  A task that does not see it, because the payload store is not shared, uploads its files
(option `staging`).  If a task ran twice, only the successful attempt names its files.  Only the
node whose payload store has the files can take them; the outcome is asked for at all nodes.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from sparktxlog.api.nodes import Nodes, submit_prepared
from sparktxlog.api.staging.executor_uploads import UploadTarget, attempt_name
from sparktxlog.api.staging.parquet_parts import FileStage, rows_in_order
from sparktxlog.api.staging.shared_store import check_directory, check_staging
from sparktxlog.codec.submits.condition_requests import is_ordered
from sparktxlog.codec.submits.content_digests import RowsContent
from sparktxlog.codec.submits.requests import parse_level
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.codec.submits.validation import align_rows, row_schema
from sparktxlog.errors import InvalidRequestError, TxLogError
from sparktxlog.files.durability import move_durably
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.model.transactions.receipt import Level

_log = logging.getLogger(__name__)
_TIMEOUT_S = 60.0


def nodes_of(options: Mapping[str, str]) -> Nodes:
    """Return the nodes that the options `url`, `token`, `caFile` and `after` name.

    Raises:
        InvalidRequestError: No node is given, or `after` is no position (definite).
    """
    url = options.get("url")
    if not url:
        raise InvalidRequestError(
            "no node is given",
            hint="Add .option('url', 'http://host:port'), or call sparktxlog.connect first.",
        )
    link = Nodes(url, token=options.get("token"), ca_file=options.get("cafile"))
    link.after(whole_option(options, "after", 0))
    return link


def whole_option(options: Mapping[str, str], name: str, default: int, expected: str = "") -> int:
    """Return an option that is a whole number; option names are in lower case.

    Raises:
        InvalidRequestError: It is another text (definite).
    """
    text = options.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidRequestError(
            f"the option {name!r} is {text[:40]!r}, expected {expected or 'a position'}",
            value=text[:40],
        )
    return int(text)


def timeout_of(options: Mapping[str, str]) -> float:
    """Return the option `timeout`, seconds.

    Raises:
        InvalidRequestError: It is no number (definite).
    """
    text = options.get("timeout", str(_TIMEOUT_S))
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text):
        raise InvalidRequestError(
            f"the option 'timeout' is {text[:40]!r}, expected seconds", value=text[:40]
        )
    return float(text)


def staging_of(options: Mapping[str, str]) -> str:
    """Return the option `staging`; see `connect`."""
    return options.get("staging", "auto").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAppend:
    """Rows on their way into one table.

    Args:
        options: Those of the data source: nodes, `level`, `timeout`.
        definition: The table.
        home: The node in whose payload store the rows are staged.
        root: That payload store.
        transaction_id: 16 bytes.
        folder: Directory of this write only, relative to the root.
        session: Transactions of one session are ordered as they are submitted.
        recorded: Whether an append without rows is recorded under its id.
        first_wins: Whatever the log has under the id counts.
    """

    options: Mapping[str, str]
    definition: TableDefinition
    home: UploadTarget
    root: Path
    transaction_id: bytes
    folder: str
    session: str | None = None
    recorded: bool = False
    first_wins: bool = False

    def make_folder(self) -> None:
        """Make the directory, where the payload store is shared.

        A task that goes on after an abort does not find it any more.

        Raises:
            PayloadStoreError: There is no payload store here, and it has to be shared (definite).
        """
        staging = staging_of(self.options)
        if staging == "shared":
            check_directory(self.root, self.home.url)
        if staging == "shared" or (staging == "auto" and self.root.is_dir()):
            (self.root / self.folder).mkdir(parents=True, exist_ok=True)

    def write(
        self, batches: Iterable[pa.RecordBatch], content: RowsContent | None = None
    ) -> tuple[StagedFile, ...]:
        """Stage one task's rows and describe their files; runs on an executor.

        Args:
            content: Gets the rows, too.

        Raises:
            SchemaMismatchError, InvalidRowsError: They do not fit the table (definite).
            PayloadStoreError: The directory does not exist (definite).
            TxLogError: The node did not take an upload.
        """
        if content is not None:
            batches = self._counted(batches, content)
        if staging_of(self.options) != "shared" and not (self.root / self.folder).is_dir():
            return tuple(self.home.upload(batches, self.folder, self.definition))
        stage = FileStage(self.root, self.folder, attempt_name(), self.definition)
        try:
            for batch in batches:
                stage.write(batch)
            return stage.close()
        except BaseException:
            stage.discard()
            raise

    def _counted(
        self, batches: Iterable[pa.RecordBatch], content: RowsContent
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = rows_in_order(pa.Table.from_batches([batch]), self.definition)
            content.add(align_rows(self.definition, OperationKind.APPEND, rows))
            yield batch

    def under(
        self, transaction_id: bytes, files: tuple[StagedFile, ...]
    ) -> tuple[StagedAppend, tuple[StagedFile, ...]]:
        """Move what the tasks wrote to another id: files lie in a directory of their transaction.

        What only the node sees stays where it is: every file that a transaction names is kept.

        Returns:
            The append under that id, and its files.
        """
        if transaction_id == self.transaction_id:
            return self, files
        if not (self.root / self.folder).is_dir():
            return replace(self, transaction_id=transaction_id), files
        old, text = self.root / self.folder, transaction_id_to_text(transaction_id)
        folder = f"{text}/{old.name}"
        (self.root / text).mkdir(exist_ok=True)
        move_durably(old, self.root / folder)
        with contextlib.suppress(OSError):  # another attempt has files there
            old.parent.rmdir()
        moved = (replace(file, path=folder + file.path[len(self.folder) :]) for file in files)
        return replace(self, transaction_id=transaction_id, folder=folder), tuple(moved)

    def commit(self, files: tuple[StagedFile, ...], content: str = "") -> None:
        """Post the transaction; if it certainly failed, remove its files, unless it was ordered.

        Args:
            content: See `PreparedOperation.content`.

        Raises:
            CommitRejectedError: Nothing happened, or it was rejected at its position (definite).
            CommitStateUnknownError: It may take effect; repeat it with the same id (not definite).
        """
        try:
            self._commit(files, content)
        except TxLogError as error:
            if error.definite and not is_ordered(error):
                self._remove()
            raise
        self._marker().unlink(missing_ok=True)

    def _commit(self, files: tuple[StagedFile, ...], content: str) -> None:
        if not files and not self.recorded:
            self._remove()
            return
        nothing = row_schema(self.definition, OperationKind.APPEND).empty_table()
        operation = PreparedOperation(
            table=self.definition.name,
            kind=OperationKind.APPEND,
            schema_version=self.definition.schema_version,
            rows=None if files else nothing,
            files=files,
            content=content,
        )
        transaction = PreparedTransaction(
            transaction_id=self.transaction_id, operations=(operation,), session=self.session
        )
        level = self.options.get("level", Level.ORDERED.value)
        timeout_s = timeout_of(self.options)
        deadline = time.monotonic() + timeout_s
        link = nodes_of(self.options)
        earlier = None
        if self.first_wins:
            if link.known(self.transaction_id, level, timeout_s) is not None:
                self._remove()  # the log has the files of the first commit
                return
        elif self.recorded:  # nobody can know an id that was made for this write
            earlier = link.find(self.transaction_id, timeout_s)
        if self._marker().parent.is_dir():
            self._marker().touch()
        left = max(0.0, deadline - time.monotonic())
        receipt = submit_prepared(
            link,
            self.home.url,
            transaction,
            level=level,
            timeout_s=left,
            first_wins=self.first_wins,
        )
        if receipt.late:
            _log.warning(
                "transaction %s is ordered at position %s and not %s yet",
                receipt.transaction_id,
                receipt.position,
                level,
            )
        there = None if earlier is None else earlier.position
        if not files or (there is not None and there == receipt.position):
            self._remove()

    def abort(self) -> None:
        """Remove what tasks wrote, unless the log has the transaction or may still get it.

        Spark calls this also after a commit that raised, although the log may have accepted it.
        A transaction that was posted and not definitely refused keeps its files, even if the node
        does not know it: the request may still be on its way.
        """
        if not self._marker().exists():
            self._remove()

    def _marker(self) -> Path:
        """File that marks the transaction as posted: from then on it may have taken effect."""
        return self.root / self.folder / "_submitted"

    def _remove(self) -> None:
        """Remove this write's own directory: tasks that Spark killed named no files.

        One that is still at work finds no directory any more under the name that it knows.
        """
        folder = self.root / self.folder
        gone = folder.with_name(f"{folder.name}-gone")
        with contextlib.suppress(FileNotFoundError):  # a failed commit has removed it
            move_durably(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):  # another write under the same id has files there
            folder.parent.rmdir()


def folder_of(transaction_id: bytes, table: str, attempt: str) -> str:
    """Return the directory of one attempt to write a transaction, relative to the store."""
    return f"{transaction_id_to_text(transaction_id)}/0-{table}-{attempt}"


def check_level(options: Mapping[str, str]) -> None:
    """Check the options of a commit before anything is staged.

    Raises:
        InvalidRequestError: No such level, or no such timeout (definite).
        ConfigError: No such way of staging (definite).
    """
    parse_level(options.get("level", Level.ORDERED.value))
    check_staging(staging_of(options))
    timeout_of(options)
