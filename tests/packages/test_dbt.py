"""dbt with dbt-spark makes a shop of commit tables: docs/dbt.md, and `integrations/dbt`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.architecture.source_tree import ROOT
from tests.spark.api.nodes import start_node
from tests.support.java_programs import connector_jar
from tests.support.package_tools import dbt_python

from sparktxlog.api.session import SPARK_RELEASE
from sparktxlog.api.spark_jars import known_jars

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1_500)]

FILES = {
    "dbt_project.yml": """
name: shop
version: "1.0"
profile: shop
dispatch:
  - macro_namespace: dbt
    search_order: [shop, sparktxlog_dbt, dbt_spark, dbt]
models: {+file_format: delta}
seeds: {+file_format: delta}
snapshots: {+file_format: delta}
""",
    "packages.yml": f"packages:\n  - local: {ROOT / 'integrations' / 'dbt'}\n",
    "profiles.yml": """
shop:
  target: ci
  outputs:
    ci: {type: spark, method: session, schema: ci, host: none, threads: 1}
""",
    "seeds/raw_orders.csv": """id,customer,amount,at
1,ada,10.50,2026-01-01
2,bob,20.00,2026-01-02
""",
    # dbt's default: a view.
    "models/orders.sql": """
select id, customer, cast(amount as decimal(10,2)) as amount, cast(at as date) as at
from {{ ref('raw_orders') }}
""",
    "models/customers.sql": """
{{ config(materialized='table') }}
select customer, sum(amount) as total from {{ ref('orders') }} group by customer
""",
    "models/added.sql": """
{{ config(materialized='incremental', incremental_strategy='append') }}
select * from {{ ref('orders') }}
{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}
""",
    "models/merged.sql": """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
select * from {{ ref('orders') }}
""",
    # The catalog keeps the large letters, and dbt-spark looks for small ones.
    "models/By_Day.sql": """
{{ config(materialized='incremental', incremental_strategy='insert_overwrite',
          partition_by=['at']) }}
select * from {{ ref('orders') }}
""",
    "models/synced.sql": """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
          on_schema_change='sync_all_columns') }}
select id, customer, amount from {{ ref('orders') }}
""",
    "models/schema.yml": """
version: 2
models:
  - name: orders
    description: Every order
    config: {persist_docs: {relation: true, columns: true}}
    columns:
      - name: at
        description: The day's date
  - name: customers
    description: Each customer's orders
    config: {persist_docs: {relation: true, columns: true}}
    columns:
      - name: customer
        description: Who orders
        data_tests: [unique, not_null]
""",
    "snapshots/totals.sql": """
{% snapshot totals %}
{{ config(strategy='check', unique_key='customer', check_cols=['total'], target_schema='ci') }}
select * from {{ ref('customers') }}
{% endsnapshot %}
""",
}
MODELS = ("orders", "customers", "added", "merged", "By_Day", "synced")


#: Why some of dbt's tests of adapters cannot pass, and which: a class, or one test of it.
CANNOT = {
    "a view is a table": ("TestSimpleMaterializations",),
    "dbt's test has SQL of Postgres": (
        "BaseSnapshotColumnNames",
        "BaseSnapshotColumnNamesFromDbtProject",
        "BaseSnapshotDbtValidToCurrent",
        "BaseSnapshotInvalidColumnNames",
        "BaseSnapshotMultiUniqueKey",
        "MetadataWithEmptyFlag.test_run[alter_column_type]",
        "MetadataWithEmptyFlag.test_run[alter_relation_add_remove_columns]",
        "TestBasicSeedTests",
        "TestEphemeralMulti",
        "TestEphemeralNested",
        "TestSeedConfigFullRefreshOff",
        "TestSeedConfigFullRefreshOn",
        "TestSeedCustomSchema",
        "TestSeedParsing",
        "TestSeedWithEmptyDelimiter",
        "TestSeedWithUniqueDelimiter",
        "TestSeedWithWrongDelimiter",
        "TestSimpleSeedColumnOverride",
        "TestSimpleSeedWithBOM",
    ),
    "dbt's test names a database, and dbt-spark knows none": (
        "BaseSnapshotEphemeralHardDeletes",
        "BaseSnapshotNewColumnSpecificCheckCols",
        "BaseSnapshotNewColumnTimestampStrategy",
        "BaseSnapshotNewColumnWithDeletes",
        "BaseSnapshotNewRecordCheckMode",
        "BaseSnapshotNewRecordDbtValidToCurrent",
        "TestCachingLowerCaseModel",
        "TestCachingSelectedSchemaOnly",
        "TestCachingUppercaseModel",
        "TestNoPopulateCache",
    ),
    "dbt-spark merges all columns, and Delta refuses a source that lacks one": (
        "TestIncrementalOnSchemaChange.test_run_incremental_append_new_columns",
    ),
    "dbt-spark knows no strategy `delete+insert`": (
        "TestIncrementalPredicatesDeleteInsert",
        "TestPredicatesDeleteInsert",
    ),
    "dbt-spark wants `partition_by` for `microbatch`": ("BaseMicrobatch",),
    "dbt-spark refuses an unknown strategy in words of its own": ("BaseIncrementalBadStrategy",),
    "dbt-spark asks for no single relation of the catalog": ("BaseGetCatalogForSingleRelation",),
    "with `--no-compile` dbt-spark gives dbt tables without a schema": (
        "TestDocsGenerate.test_run_and_generate_no_compile",
    ),
    "dbt-spark counts columns from 0, the test from 1": ("TestDocsGenReferences",),
    "dbt-spark has no comments in its catalog": (
        "TestPersistDocs",
        "TestPersistDocsColumnMissing.test_missing_column",
        "TestPersistDocsCommentOnQuotedColumn",
    ),
    "dbt-spark does not quote the name of a seed that has dots": ("TestSeedSpecificFormats",),
    "dbt 1.11 has no `seed --empty`": (
        "BaseTestEmptySeedFlag.test_build_empty_with_seed",
        "BaseTestEmptySeedFlag.test_seed_empty_creates_table_with_zero_rows",
        "BaseTestEmptySeedFlag.test_seed_empty_preserves_column_types",
    ),
    "PySpark has no text for Delta's error `DELTA_MERGE_UNRESOLVED_EXPRESSION`": (
        "TestIncrementalUniqueKey.test__bad_unique_key",
        "TestIncrementalUniqueKey.test__bad_unique_key_list",
    ),
    "Delta adds no column with a default to a table": (
        "TestSnapshot.test_new_column_captured_by_snapshot",
    ),
}


def run(project: Path, url: str, jars: str, *steps: str | list[str]) -> list[Any]:
    """Return what the steps of a session gave, as `dbt_run.py` says it."""
    environ = os.environ | {"DBT_PROFILES_DIR": str(project), "DO_NOT_TRACK": "1"}
    command = [dbt_python(), str(Path(__file__).with_name("dbt_run.py")), str(project), url, jars]
    done = subprocess.run(
        command, input=json.dumps(steps), env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def running(directory: Path) -> Iterator[tuple[str, str]]:
    """Run a node; yield its URL and the JARs of a session that has it as a catalog."""
    node = start_node(directory)
    try:
        yield node.url, f"{known_jars(SPARK_RELEASE)},{connector_jar(directory)}"
    finally:
        node.stop()


def test_a_shop_is_built_again_and_dropped(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # The same seed with another order of ada, and a customer more.
    later = FILES["seeds/raw_orders.csv"] + "3,cyd,7.00,2026-01-03\n4,ada,1.00,2026-01-01\n"
    (project / "later.csv").write_text(later)
    with running(tmp_path) as (url, jars):
        deps, seed, ran, tested, snapped, docs, described, of_view = run(
            project,
            url,
            jars,
            *(["deps"], ["seed"], ["run"], ["test"], ["snapshot"], ["docs", "generate"]),
            "DESCRIBE TABLE EXTENDED ci.customers",
            "DESCRIBE TABLE EXTENDED ci.orders",
        )
        (project / "seeds" / "raw_orders.csv").write_text(later)
        synced = project / "models" / "synced.sql"
        synced.write_text(synced.read_text().replace("customer, amount", "at, customer"))
        again = run(
            project,
            url,
            jars,
            *(["seed"], ["run"], ["snapshot"]),
            "SELECT customer, total, dbt_valid_to IS NULL FROM ci.totals ORDER BY 1, 2",
            *(f"SELECT count(*) FROM ci.{name}" for name in MODELS),
            "DESCRIBE HISTORY ci.orders",
            "DESCRIBE TABLE EXTENDED ci.orders",
            "SHOW TABLES IN ci",
            "SHOW COLUMNS IN ci.synced",
            ["run", "--full-refresh", "--select", "synced"],
            "SHOW COLUMNS IN ci.synced",
            "DROP SCHEMA IF EXISTS ci CASCADE",
            "SHOW SCHEMAS",
        )
    for one in (deps, seed, ran, tested, snapped, docs, *again[:3]):
        assert one["success"], one
    assert ["customer", "string", "Who orders"] in described
    assert ["Comment", "Each customer's orders", ""] in described
    assert ran["ends"] == again[1]["ends"] == dict.fromkeys(MODELS, "success")
    assert again[3] == [
        ["ada", "10.50", False],
        ["ada", "11.50", True],
        ["bob", "20.00", True],
        ["cyd", "7.00", True],
    ]
    assert again[4:10] == [[[4]], [[3]], [[4]], [[4]], [[4]], [[4]]]
    # The table of a view is replaced, and not dropped; and a column gets its comment.
    assert len(again[10]) == 4
    for view in (of_view, again[11]):
        assert ["at", "date", "The day's date"] in view
        assert ["Comment", "Every order", ""] in view
    del again[11]
    names = [row[1] for row in again[11]]
    assert sorted(names) == sorted([*MODELS, "raw_orders", "totals"])
    assert sorted(again[12]) == sorted(again[14]) == [["at"], ["customer"], ["id"]]
    assert again[13]["success"], again[13]
    assert again[16] == [["default"]]


@pytest.mark.timeout(3_000)
def test_dbt_s_own_tests_of_adapters_pass_but_for_known_reasons(tmp_path: Path) -> None:
    """The page names what cannot pass, and why; what passes although it is named fails, too."""
    rows = (ROOT / "docs" / "dbt.md").read_text().splitlines()
    for why, names in CANNOT.items():
        (row,) = [row for row in rows if row.startswith(f"| {why} |")]
        assert re.findall(r"`(\w+)`", row.rpartition("|")[0].rpartition("|")[2]) == sorted(
            {name.partition(".")[0] for name in names}
        )
    found = tmp_path / "found.xml"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    with running(tmp_path) as (url, jars):
        environ = os.environ | {
            "DO_NOT_TRACK": "1",
            "PYTHONPATH": str(ROOT),
            "SPARKTXLOG_DBT_JARS": jars,
            "SPARKTXLOG_DBT_MACROS": str(ROOT / "integrations" / "dbt" / "macros"),
            "SPARKTXLOG_DBT_URL": url,
        }
        cases = str(Path(__file__).with_name("dbt_cases.py"))
        options = ("-c", "pytest.ini", "--rootdir", ".", "-q", "--tb=short", f"--junitxml={found}")
        command = [dbt_python(), "-m", "pytest", *options, cases]
        done = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert found.is_file(), done.stdout[-4000:] + done.stderr[-4000:]
    ends = dict[str, bool]()
    for case in ET.parse(found).iter("testcase"):
        name = re.sub(r"^.*\bTest_[a-z_]+_(?=[A-Z])", "", case.get("classname", ""))
        ends[f"{name}.{case.get('name')}"] = not {"failure", "error"} & {one.tag for one in case}
    assert len(ends) >= 99
    named = {name for names in CANNOT.values() for name in names}
    cannot = {name for name in ends if {name, name.partition(".")[0]} & named}
    assert {name for name, passed in ends.items() if not passed} == cannot, done.stdout[-8000:]
