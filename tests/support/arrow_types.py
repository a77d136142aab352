"""A type of Arrow that users make."""

from __future__ import annotations

import pyarrow as pa


class UserType(pa.ExtensionType):  # type: ignore[misc]
    """Texts with a name; such a type has no hash."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "tests.user")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> UserType:
        del storage, serialized
        return cls()
