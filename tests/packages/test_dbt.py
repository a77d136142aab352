"""dbt with dbt-spark makes a shop of commit tables: docs/dbt.md, and `integrations/dbt`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.source_tree import ROOT
from tests.spark.api.nodes import start_node
from tests.support.java_programs import make_plugin
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
    "models/by_day.sql": """
{{ config(materialized='incremental', incremental_strategy='insert_overwrite',
          partition_by=['at']) }}
select * from {{ ref('orders') }}
""",
    "models/schema.yml": """
version: 2
models:
  - name: customers
    columns:
      - name: customer
        data_tests: [unique, not_null]
""",
    "snapshots/totals.sql": """
{% snapshot totals %}
{{ config(strategy='check', unique_key='customer', check_cols=['total'], target_schema='ci') }}
select * from {{ ref('customers') }}
{% endsnapshot %}
""",
}
MODELS = ("orders", "customers", "added", "merged", "by_day")


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


def test_a_shop_is_built_again_and_dropped(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # The same seed with another order of ada, and a customer more.
    later = FILES["seeds/raw_orders.csv"] + "3,cyd,7.00,2026-01-03\n4,ada,1.00,2026-01-01\n"
    (project / "later.csv").write_text(later)
    node = start_node(tmp_path)
    try:
        plugin = tmp_path / "plugin.jar"
        make_plugin(plugin)
        jars = f"{known_jars(SPARK_RELEASE)},{plugin}"
        deps, seed, ran, tested, snapped, docs = run(
            project,
            node.url,
            jars,
            *(["deps"], ["seed"], ["run"], ["test"], ["snapshot"], ["docs", "generate"]),
        )
        (project / "seeds" / "raw_orders.csv").write_text(later)
        again = run(
            project,
            node.url,
            jars,
            *(["seed"], ["run"], ["snapshot"]),
            "SELECT customer, total, dbt_valid_to IS NULL FROM ci.totals ORDER BY 1, 2",
            *(f"SELECT count(*) FROM ci.{name}" for name in MODELS),
            "DESCRIBE HISTORY ci.orders",
            "SHOW TABLES IN ci",
            "DROP SCHEMA IF EXISTS ci CASCADE",
            "SHOW SCHEMAS",
        )
    finally:
        node.stop()
    for one in (deps, seed, ran, tested, snapped, docs, *again[:3]):
        assert one["success"], one
    assert ran["ends"] == again[1]["ends"] == dict.fromkeys(MODELS, "success")
    assert again[3] == [
        ["ada", "10.50", False],
        ["ada", "11.50", True],
        ["bob", "20.00", True],
        ["cyd", "7.00", True],
    ]
    assert again[4:9] == [[[4]], [[3]], [[4]], [[4]], [[4]]]
    assert len(again[9]) == 2  # the table of a view is replaced, and not dropped
    names = [row[1] for row in again[10]]
    assert sorted(names) == sorted([*MODELS, "raw_orders", "totals"])
    assert again[12] == [["default"]]
