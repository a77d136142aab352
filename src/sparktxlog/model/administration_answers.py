"""What a node answers operators."""

from __future__ import annotations

from typing import Any, TypedDict


class SettingValue(TypedDict):
    """A setting's value and its origin; what would be in force without a change, and where."""

    value: Any
    origin: str
    configured: Any
    configured_by: str
    #: When it was set at run time, microseconds since 1970 UTC; None = it was not.
    since: int | None


class AuditEntry(TypedDict):
    """An act or a refusal, or a change that the log brought, at one node."""

    #: Wall clock of the node, microseconds since 1970 UTC.
    at: int
    node: str
    #: A role (`operator`, `client`), the name of a grant, `vote` of the members, a site, or
    #: `nobody`, whose token is none that the node knows.
    who: str
    action: str
    #: What it is about; of a setting its value before and after.
    detail: str
    #: `done`, the error, or `begun`: a crash kept its end out.
    outcome: str
    #: Of the caller, as the node sees it; empty = nobody asked for it.
    address: str
    #: How many equal ones it stands for, and when the last one came; `outcome` is the first one's.
    count: int
    until: int


class GroupLine(TypedDict):
    """A group of sites (P41)."""

    name: str
    sites: list[str]
    copies: int
    schemas: list[str]
    tables: list[str]
    #: Names of tables of it that were dropped, if no table has them now.
    dropped: list[str]
    #: Its sites that are no members now, or are missing.
    away: list[str]
    #: Whether enough of its sites are there to write to it.
    takes_writes: bool
