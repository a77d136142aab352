"""Values of Arrow columns that their types allow, and that no table takes.

* days and times outside the years 1 to 9999: JSON has no form of them, Python and delta-rs read no
  row that has one;
* a map that has a key twice: Spark shows one of its values here and another one there.

Only columns of times and maps are looked at, as a whole: the least and the greatest value of the
one, the distinct keys of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from sparktxlog.errors import InvalidRowsError
from sparktxlog.lazy_arrow import np, pa, pc

#: First and last day of the years 1 to 9999, from 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
#: Name of Arrow's units, and how many are a day.
_UNITS = {
    "s": ("seconds", 86_400),
    "ms": ("milliseconds", 86_400 * 10**3),
    "us": ("microseconds", 86_400 * 10**6),
    "ns": ("nanoseconds", 86_400 * 10**9),
}
#: What is wrong, the value, and the way out.
_Fault: TypeAlias = tuple[str, object, str]


def check_column_values(
    table: str, name: str, column: pa.ChunkedArray, *, before: int = 0, path: str = ""
) -> None:
    """Refuse days and times that not all readers know, and maps that have a key twice.

    Args:
        table: Name of the table.
        name: Of the column.
        column: Its values, of a type that a table or Spark takes; nested ones are looked at, too.
        before: Rows before them, for the text.
        path: Of the staged file that has them, for the text.

    Raises:
        InvalidRowsError: With fields `table`, `column`, `row`, `value` (definite).
    """
    if not has_looked_at(column.type) or not any(_faults(column)):
        return
    # The first row with a fault: the last one of the shortest start that has any.
    least, most = 1, len(column)
    while least < most:
        middle = (least + most) // 2
        if any(_faults(column.slice(0, middle))):
            most = middle
        else:
            least = middle + 1
    reason, value, hint = next(_faults(column.slice(most - 1, 1)))
    row = before + most - 1
    raise InvalidRowsError(
        f"table {table!r}: row {row}{path and f' of {path!r}'} has {reason} in {name!r}",
        hint=hint,
        table=table,
        column=name,
        row=row,
        value=value,
        **({"path": path} if path else {}),
    )


def has_looked_at(kind: pa.DataType) -> bool:
    """Return whether a type has times or maps in it."""
    if pa.types.is_dictionary(kind):
        return has_looked_at(kind.value_type)
    if pa.types.is_map(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return True
    return any(has_looked_at(kind.field(index).type) for index in range(kind.num_fields))


def has_null_key(array: pa.Array) -> bool:
    """Return whether keys of maps stand in a dictionary that has NULL.

    No table takes such maps, and the casts of Arrow are not made for them.
    """
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return has_null_key(array.dictionary)
    if types.is_map(kind):
        inside, words = [array.keys, array.items], array.keys
        while types.is_dictionary(words.type):
            words = words.dictionary
            if words.null_count:
                return True
    elif types.is_struct(kind):
        inside = [array.field(index) for index in range(kind.num_fields)]
    else:
        inside = [array.values] if types.is_nested(kind) else []
    return any(map(has_null_key, inside))


def _faults(column: pa.ChunkedArray) -> Iterator[_Fault]:
    """Yield what is wrong in a column, each time with the value and the way out."""
    for chunk in column.chunks:
        yield from _faults_of(chunk)


def _faults_of(array: pa.Array) -> Iterator[_Fault]:
    kind, types = array.type, pa.types
    if not has_looked_at(kind):
        return
    if types.is_dictionary(kind):
        yield from _faults_of(array.dictionary_decode())
    elif types.is_map(kind):
        # Arrow has no functions of maps; without NULLs, as these may hide entries.
        entry = pa.struct([kind.key_field, kind.item_field])
        lists = array.drop_null().cast(pa.list_(pa.field("entries", entry, nullable=False)))
        keys, items = pc.list_flatten(lists).flatten()
        yield from _faults_of(keys)
        yield from _faults_of(items)
        yield from _repeated_keys(keys, pc.list_parent_indices(lists))
    elif types.is_struct(kind):
        for field in array.flatten():
            yield from _faults_of(field)
    elif types.is_nested(kind):
        yield from _faults_of(array.flatten())
    else:
        yield from _far_times(array)


def _far_times(times: pa.Array) -> Iterator[_Fault]:
    kind = times.type
    if pa.types.is_date32(kind):
        numbers, unit, per_day = times.view(pa.int32()), "days", 1
    else:
        unit, per_day = _UNITS["ms" if pa.types.is_date64(kind) else kind.unit]
        numbers = times.view(pa.int64())
    least, most = pc.min_max(numbers).values()
    for number in (least.as_py(), most.as_py()):
        if number is not None and not _FIRST_DAY <= number // per_day <= _LAST_DAY:
            found = f"a time {number:,} {unit} from 1970, outside the years 1 to 9999"
            yield found, number, "Write a value of these years, or NULL; or keep it as a string."


def _repeated_keys(keys: pa.Array, parents: pa.Array) -> Iterator[_Fault]:
    """Yield a key that one map has twice.

    Args:
        keys: Of all maps.
        parents: The map of each of them, ascending.
    """
    code = parents.to_numpy().astype(np.int64)
    if not (code[1:] == code[:-1]).any():
        return  # no map has two keys
    for column in _comparable(keys):
        encoded = column.dictionary_encode(null_encoding="encode")
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Renumbered each time, so that many fields of a key cannot overflow.
        order = np.argsort(code, kind="stable")
        is_new = np.concatenate(([False], np.diff(code[order]) != 0))
        code = np.empty_like(code)
        code[order] = np.cumsum(is_new)
    again = np.flatnonzero(~is_new[1:])
    if again.size:
        value = repr(keys[int(order[again[0] + 1])].as_py())[:200]
        yield f"the key {value} twice in a map", value, "Give each key of a map once."


def _comparable(keys: pa.Array) -> Iterator[pa.Array]:
    """Yield columns that are equal where keys are equal to Spark, as -0.0 and 0.0 are."""
    types = pa.types
    if types.is_dictionary(keys.type):
        yield from _comparable(keys.dictionary_decode())
    elif types.is_floating(keys.type):  # Arrow adds and compares few numbers of 16 bits
        yield pc.add(keys.cast(pa.float64()), pa.scalar(0.0))
    elif types.is_decimal(keys.type):  # nor does it compare those of 32 and 64 bits
        yield keys.cast(pa.decimal256(76, keys.type.scale))
    elif types.is_struct(keys.type):
        yield keys.is_valid()
        for field in keys.flatten():
            yield from _comparable(field)
    elif types.is_nested(keys.type):
        yield pa.array([repr(key) for key in keys.to_pylist()], pa.string())
    else:
        yield keys
