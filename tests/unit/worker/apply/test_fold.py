"""Paths of files as Spark names them: rows are joined by them with what the log knows."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from sparktxlog.worker.apply.fold import quoted_path


@pytest.mark.parametrize(
    ("path", "quoted"),
    [
        ("/a b", "/a%20b"),
        ("/p=a%2Fb", "/p=a%252Fb"),
        ('/[c]^`{|}"<>\\', "/%5Bc%5D%5E%60%7B%7C%7D%22%3C%3E%5C"),
        ("/東京é\u0301😀", "/東京é\u0301😀"),
        # Spaces of other scripts: a table with such a partition stood still.
        ("/東京\u3000都", "/東京%E3%80%80都"),
        ("/10\u00a0000", f"/10{quote(chr(0xA0))}000"),
        ("/\u2009\u202f\u1680\u205f", "/%E2%80%89%E2%80%AF%E1%9A%80%E2%81%9F"),
        ("/\u0085", f"/{quote(chr(0x85))}"),
        ("/\u200b\ufeff\ue000", "/\u200b\ufeff\ue000"),
    ],
)
def test_paths_are_quoted_as_java_quotes_them(path: str, quoted: str) -> None:
    """By `new URI("file", null, path, null)` of Java 17."""
    assert quoted_path(path) == quoted
