"""Paths in logs and paths of files."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparktxlog.delta.file_paths import (
    files_of,
    may_be_data,
    path_in_log,
    path_of_file,
    vector_path,
)
from sparktxlog.errors import CorruptLogError

#: Path of a file → the path that Spark's own logs have for it.
IN_LOGS = {
    "part-0.parquet": "part-0.parquet",
    "p=a b/x.parquet": "p=a%20b/x.parquet",
    "p=a%20b/x.parquet": "p=a%2520b/x.parquet",
    "p=ü/x.parquet": "p=%C3%BC/x.parquet",
    "p=a+b/x.parquet": "p=a+b/x.parquet",
    "p=a#b?c/x.parquet": "p=a%23b%3Fc/x.parquet",
    "p=a:b/x.parquet": "p=a%3Ab/x.parquet",
    "p=100%/x.parquet": "p=100%25/x.parquet",
    'p="[{|}]"\\^`/x': "p=%22%5B%7B%7C%7D%5D%22%5C%5E%60/x",
    "p=\U0001f986/\n\t.parquet": "p=%F0%9F%A6%86/%0A%09.parquet",
    "p=it's (1),2;$&!*~@/x": "p=it's%20(1),2;$&!*~@/x",
}


@pytest.mark.parametrize(("path", "logged"), IN_LOGS.items())
def test_a_path_in_a_log_is_that_of_a_file(path: str, logged: str) -> None:
    assert path_in_log(path) == logged
    assert path_of_file(logged) == path


@given(st.text())
def test_every_path_comes_back(path: str) -> None:
    assert path_of_file(path_in_log(path)) == path


@pytest.mark.parametrize("path", ["p=ü/x.parquet", "p=a%20b/ö.parquet", "p=é+ß/🦆.parquet"])
def test_what_writers_quote_does_not_matter(path: str) -> None:
    quoted_more, quoted_less = quote(path, safe="/"), path.replace("%", "%25")
    assert {path_of_file(quoted_more), path_of_file(quoted_less)} == {path}


@pytest.mark.parametrize("logged", ["p=%FF/x.parquet", "%C3.parquet"])
def test_a_path_that_is_no_text_is_refused(logged: str) -> None:
    with pytest.raises(CorruptLogError, match="names no file"):
        path_of_file(logged)


def test_the_file_of_a_deletion_vector() -> None:
    """The example is that of Delta's protocol."""
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert vector_path("ab^-aqEH.-t@S}K{vb[*k^") == f"ab/{name}"
    assert vector_path("^-aqEH.-t@S}K{vb[*k^") == name
    add = {
        "path": "p=%C3%BC/x",
        "deletionVector": {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"},
    }
    assert files_of(add) == ["p=ü/x", f"ab/{name}"]
    assert files_of(add | {"deletionVector": {"storageType": "i", "pathOrInlineDv": "x"}}) == [
        "p=ü/x"
    ]


@pytest.mark.parametrize("coded", ["", "too short", "ab^-aqEH.-t@S}K{vb[*kü"])
def test_a_vector_without_a_file_is_refused(coded: str) -> None:
    with pytest.raises(CorruptLogError, match="names no file"):
        vector_path(coded)


@pytest.mark.parametrize(
    ("path", "data", "with_changes"),
    [
        ("a.parquet", True, True),
        ("p=1/a.parquet", True, True),
        ("_p=1/a.parquet", True, True),
        ("_change_data/a.parquet", False, True),
        ("_delta_log/a.parquet", False, False),
        ("p=1/.a.parquet.crc", False, False),
        ("_symlink_format_manifest/manifest", False, False),
    ],
)
def test_what_may_be_data(path: str, data: bool, with_changes: bool) -> None:
    assert may_be_data(path) == data
    assert may_be_data(path, changes=True) == with_changes
