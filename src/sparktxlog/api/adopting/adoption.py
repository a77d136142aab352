"""Puts an existing Delta table under the log, as a table of either kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from sparktxlog.api.adopting.row_adoption import adopt_rows
from sparktxlog.api.adopting.source_table import SourceTable
from sparktxlog.api.site_session import SiteSession
from sparktxlog.errors import InvalidRequestError
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.tables.table_kind import TableKind
from sparktxlog.worker.tables.adopted_files import BucketSource, FileWay
from sparktxlog.worker.tables.table_adoption import Adoption, adopt_commits


def adopt(
    site: SiteSession,
    name: str,
    path: str,
    kind: str,
    *,
    keys: Sequence[str] = (),
    way: FileWay = "link",
    dry_run: bool = False,
    timeout_s: float,
    tell: Callable[[str], None] = lambda _: None,
) -> Adoption:
    """Make a table of the log; arguments and errors as `TxLog.adopt_table`.

    Args:
        tell: Takes a line for people at each step.
    """
    if kind not in list(TableKind):
        raise InvalidRequestError(
            f"kind={kind!r} is neither 'row-table' nor 'commit-table'", field="kind"
        )
    if keys and kind == TableKind.COMMIT_TABLE:
        raise InvalidRequestError("commit tables have no keys", field="keys")
    if bucket_url(path, "path") is not None and kind == TableKind.COMMIT_TABLE:
        of_bucket = BucketSource.at(path)
        plain, newest = of_bucket.plain(), of_bucket.newest
    else:
        source = SourceTable.read(path)
        plain, newest = source.plain, source.newest
    if kind == TableKind.ROW_TABLE:
        return adopt_rows(
            site, name, source, keys=keys, dry_run=dry_run, timeout_s=timeout_s, tell=tell
        )
    with closing(CatalogLink.to_same_node(site.home)) as link:
        return adopt_commits(
            plain,
            newest,
            link,
            name,
            way=way,
            dry_run=dry_run,
            timeout_s=timeout_s,
            tell=tell,
        )
