"""Schemas of tables, as this node knows them.

The log has no schemas, only tables with two-part names: a schema exists where a table is in it, or
where somebody created it.  One that was created and is empty is known at this node only, and so
is what its creator said of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from sparktxlog.errors import (
    InvalidRequestError,
    SchemaInUseError,
    SchemaTakenError,
    UnknownSchemaError,
)
from sparktxlog.model.ids import DEFAULT_SCHEMA, check_name_part, check_new_name
from sparktxlog.model.tables.table_properties import MAX_TEXT
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.storage.interfaces import PutValue

_VALUE = "commit-schemas"


class CreatedSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schema that somebody created at this node, and what was said of it."""

    name: str
    comment: str = ""
    properties: dict[str, str] = {}


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
        self._created: list[CreatedSchema] = msgspec.json.decode(
            values.get(_VALUE, b"[]"), type=list[CreatedSchema]
        )
        self._executor = executor
        self._names = names
        #: Held from a look at what is there until its change is durable.
        self._turn = asyncio.Lock()

    def all(self) -> list[str]:
        """Return the names, ascending; two never differ in case only."""
        found = {name.lower(): name for name in self._known()}
        for name in self._names():
            schema = name.partition(".")[0]
            found.setdefault(schema.lower(), schema)
        return [found[key] for key in sorted(found)]

    def _known(self) -> Iterator[str]:
        yield DEFAULT_SCHEMA
        yield from (one.name for one in self._created)

    def described(self, name: str) -> CreatedSchema:
        """Return what this node knows of a schema, whose name is as `all` and `check` give it."""
        found = (one for one in self._created if one.name == name)
        return next(found, CreatedSchema(name))

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
        for name in self._known():
            if name.lower() == wanted:
                return name
        # Only a schema that this node did not create is looked for among the tables.
        for name in self._names():
            found = name.partition(".")[0]
            if found.lower() == wanted:
                return found
        return None

    async def create(self, schema: str, comment: str, properties: dict[str, str]) -> CreatedSchema:
        """Create a schema at this node, durably.

        Raises:
            InvalidNameError: It cannot have this name (definite).
            InvalidRequestError: The texts are too long (definite).
            SchemaTakenError: There is one (definite).
        """
        check_name_part(check_new_name(schema))
        texts = (comment, *properties, *properties.values())
        if (length := sum(map(len, texts))) > MAX_TEXT:
            raise InvalidRequestError(
                f"comment and properties of schema {schema!r} have {length:,} characters",
                hint=f"Together they may have {MAX_TEXT:,}.",
                field="comment",
                value=length,
            )
        made = CreatedSchema(schema, comment, properties)
        async with self._turn:
            if schema.lower() in (name.lower() for name in self.all()):
                raise SchemaTakenError(f"schema {schema!r} exists", value=schema)
            await self._keep([*self._created, made])
        return made

    async def drop(self, schema: str) -> None:
        """Drop an empty schema, durably.

        Raises:
            UnknownSchemaError, SchemaInUseError: Nothing happened (definite).
        """
        async with self._turn:
            name, held = self.check_droppable(schema), self.tables(schema)
            if held:
                raise SchemaInUseError(
                    f"schema {name!r} holds {len(held)} tables",
                    hint="Drop its tables first, or all at once: "
                    "DROP SCHEMA … CASCADE, force=true.",
                    value=name,
                )
            await self._keep([one for one in self._created if one.name != name])

    def check_droppable(self, schema: str) -> str:
        """Return the name of a schema as it was created, unless it always exists.

        Raises:
            UnknownSchemaError, SchemaInUseError: (definite).
        """
        name = self.check(schema)
        if name.lower() == DEFAULT_SCHEMA:
            raise SchemaInUseError(
                f"schema {name!r} always exists", hint="Drop its tables one by one.", value=name
            )
        return name

    async def _keep(self, schemas: list[CreatedSchema]) -> None:
        await self._executor.write([PutValue(name=_VALUE, value=msgspec.json.encode(schemas))])
        self._created = schemas
