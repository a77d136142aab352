"""docs/formats.md and docs/formats-log.md name what the code writes."""

from __future__ import annotations

import re
from pathlib import Path

from sparktxlog.codec.containers.payload import MAGIC
from sparktxlog.storage.journal import sqlite_schema
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES, OPERATION

_DOCS = Path(__file__).parents[4] / "docs"
_TEXT = (_DOCS / "formats.md").read_text() + (_DOCS / "formats-log.md").read_text()


def test_every_column_of_the_log_tables_is_described() -> None:
    for name, schema in LOG_TABLES.items():
        section = _TEXT.split(f"### `log/{name}`")[1].split("\n#")[0]
        described = set(re.findall(r"`(\w+)`", section))
        assert set(schema.names) <= described
    section = _TEXT.split("### `log/synchronized_queue`")[1]
    assert all(f"`{OPERATION.field(i).name}`" in section for i in range(OPERATION.num_fields))


def test_every_table_of_the_journal_is_described(tmp_path: Path) -> None:
    section = _TEXT.split("## Journal")[1].split("\n## ")[0]
    described = re.findall(r"^\| `(\w+)`", section, re.MULTILINE)
    journal = sqlite_schema.open_journal(tmp_path / "journal.sqlite")
    made = journal.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    journal.close()
    assert sorted(described) == sorted(name for (name,) in made)
    assert f"format {sqlite_schema.SCHEMA_VERSION} " in section


def test_the_magic_is_the_one_written() -> None:
    assert MAGIC == b"TXLOG\x00\x00\x01"
    assert "magic `TXLOG` 0 0 1" in _TEXT
