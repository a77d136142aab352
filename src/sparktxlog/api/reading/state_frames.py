"""What the log says of itself as DataFrames: a method for each of `VIEWS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparktxlog.api.site_session import SiteSession


class StateFrames:
    """Views of the state as they are when they are asked for."""

    site: SiteSession

    def masters(self) -> DataFrame:
        """Return the members of the cluster as this node sees them; see `state_views.MASTERS`."""
        return self._view("masters")

    def prepared(self) -> DataFrame:
        """Return the prepared transactions that are undecided; see `state_views.PREPARED`."""
        return self._view("prepared")

    def commit_tables(self) -> DataFrame:
        """Return how commit tables are at this site; see `state_views.COMMIT_TABLES`."""
        return self._view("commit_tables")

    def incoming(self) -> DataFrame:
        """Return what is in negotiation, and what it waits for; see `state_views.INCOMING`."""
        return self._view("incoming")

    def survival(self) -> DataFrame:
        """Return what the loss of each site would mean now; see `state_views.SURVIVAL`."""
        return self._view("survival")

    def lag(self) -> DataFrame:
        """Return how far replicas and tables were behind, for as long as that is kept."""
        return self.site.spark.read.format("txlog").load("lag")

    def settings(self) -> DataFrame:
        """Return the node's settings of run time; see `state_views.SETTINGS`."""
        return self._view("settings")

    def audit(self) -> DataFrame:
        """Return who changed what at this node; see `state_views.AUDIT`."""
        return self._view("audit")

    def restore_points(self) -> DataFrame:
        """Return the named positions of the log; see `state_views.RESTORE_POINTS`."""
        return self._view("restore_points")

    def workers(self) -> DataFrame:
        """Return all replicas' workers; see `state_views.WORKERS`."""
        return self._view("workers")

    def signatures(self) -> DataFrame:
        """Return the signature of each table of each replica; see `state_views.SIGNATURES`."""
        return self._view("signatures")

    def tables(self) -> DataFrame:
        """Return the tables of both kinds; see `state_views.TABLES`."""
        return self._view("tables")

    def transfers(self) -> DataFrame:
        """Return the latest catch-ups of this site's replica; see `state_views.TRANSFERS`."""
        return self._view("transfers")

    def epochs(self) -> DataFrame:
        """Return the latest epochs that this node entered; see `state_views.EPOCHS`."""
        return self._view("epochs")

    def _view(self, name: str) -> DataFrame:
        return self.site.spark.createDataFrame(self.site.link.view(name))
