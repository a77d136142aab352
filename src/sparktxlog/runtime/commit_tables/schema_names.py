"""Schemas of tables, as this node knows them.

The log has no schemas, only tables with two-part names: a schema exists where a table is in it, or
where somebody created it.  One that was created and is empty is known at this node only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from sparktxlog.errors import SchemaInUseError, SchemaTakenError, UnknownSchemaError
from sparktxlog.model.ids import DEFAULT_SCHEMA, check_name_part, check_new_name
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.storage.interfaces import PutValue

_VALUE = "commit-schemas"


class SchemaNames:
    """The schemas; belongs to the event loop.

    Args:
        values: What the journal held at the start.
        executor: Makes changes durable.
        names: Returns the names of all tables, `schema.table`.
    """

    def __init__(
        self,
        values: Mapping[str, bytes],
        executor: Executor,
        names: Callable[[], Iterable[str]],
    ) -> None:
        self._created: list[str] = msgspec.json.decode(values.get(_VALUE, b"[]"), type=list[str])
        self._executor = executor
        self._names = names

    def all(self) -> list[str]:
        """Return the names, ascending; two never differ in case only."""
        found = {name.lower(): name for name in (DEFAULT_SCHEMA, *self._created)}
        for name in self._names():
            schema = name.partition(".")[0]
            found.setdefault(schema.lower(), schema)
        return [found[key] for key in sorted(found)]

    def check(self, schema: str) -> str:
        """Return the name of a schema as it was created; case is ignored.

        Raises:
            UnknownSchemaError: There is none (definite).
        """
        found = self._find(schema)
        if found is None:
            raise UnknownSchemaError(
                f"there is no schema {schema[:80]!r} at this node",
                hint="Create it, CREATE SCHEMA, or a table in it.",
                value=schema[:80],
            )
        return found

    def tables(self, schema: str) -> list[str]:
        """Return the tables of a schema, of either kind, without its name; errors as `check`."""
        prefix = f"{self.check(schema).lower()}."
        return [one[len(prefix) :] for one in self._names() if one.lower().startswith(prefix)]

    def of_new_table(self, schema: str) -> str:
        """Return the name of a schema as it was created, or as its first table makes it known.

        Raises:
            InvalidNameError: It cannot have this name (definite).
        """
        return self._find(schema) or check_name_part(check_new_name(schema))

    def _find(self, schema: str) -> str | None:
        wanted = schema.lower()
        for name in (DEFAULT_SCHEMA, *self._created):
            if name.lower() == wanted:
                return name
        # Only a schema that this node did not create is looked for among the tables.
        for name in self._names():
            found = name.partition(".")[0]
            if found.lower() == wanted:
                return found
        return None

    async def create(self, schema: str) -> str:
        """Create a schema at this node, durably.

        Raises:
            InvalidNameError: It cannot have this name (definite).
            SchemaTakenError: There is one (definite).
        """
        check_name_part(check_new_name(schema))
        if schema.lower() in (name.lower() for name in self.all()):
            raise SchemaTakenError(f"schema {schema!r} exists", value=schema)
        await self._keep([*self._created, schema])
        return schema

    async def drop(self, schema: str) -> None:
        """Drop an empty schema, durably.

        Raises:
            UnknownSchemaError, SchemaInUseError: Nothing happened (definite).
        """
        name, held = self.check(schema), self.tables(schema)
        if held or name.lower() == DEFAULT_SCHEMA:
            raise SchemaInUseError(
                f"schema {name!r} holds {len(held)} tables" if held else "it always exists",
                hint="Drop its tables first.",
                value=name,
            )
        await self._keep([one for one in self._created if one.lower() != name.lower()])

    async def _keep(self, names: list[str]) -> None:
        await self._executor.write([PutValue(name=_VALUE, value=msgspec.json.encode(names))])
        self._created = names
