"""dbt's own tests of adapters (`dbt-tests-adapter`), on the tables of a node.

Run by `test_dbt.py`, by pytest in the environment of dbt: SPARKTXLOG_DBT_URL, the node, or empty
for Delta tables without one, the control; _JARS, the session's; _MACROS, the directory of the
macros of `integrations/dbt`, or empty.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dbt.tests.adapter
import pytest
import yaml
from dbt.tests.adapter.basic import expected_catalog as of_dbt
from dbt.tests.adapter.basic.test_docs_generate import BaseDocsGenerate, BaseDocsGenReferences
from tests.packages.dbt_run import session

pytest_plugins = ["dbt.tests.fixtures.project"]

#: dbt's folders of tests that are run: those of tables, and of what makes them.
GROUPS = (
    *("basic", "caching", "empty", "ephemeral", "incremental", "persist_docs", "relations"),
    *("simple_seed", "simple_snapshot"),
)
#: What a project says to have tables of Delta, as docs/dbt.md has it.
DELTA = {"+file_format": "delta"}


def _cases() -> dict[str, type]:
    """Return dbt's classes of tests that no other class of dbt's specializes, by name."""
    root = Path(next(iter(dbt.tests.adapter.__path__)))
    found = set[type]()
    for path in sorted(path for group in GROUPS for path in (root / group).glob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        module = importlib.import_module(f"dbt.tests.adapter.{name}")
        found |= {one for one in vars(module).values() if inspect.isclass(one)}
    tested = {one for one in found if any(name.startswith("test_") for name in dir(one))}
    last = {one for one in tested if not tested & set(one.__subclasses__())}
    named = {f"Test_{one.__module__.split('.')[3]}_{one.__name__}": one for one in last}
    assert len(named) == len(last)
    return dict(sorted(named.items()))


globals().update(_cases())
#: What the catalog of dbt says of Spark's types.
TYPES = {"role": None, "id_type": "long", "text_type": "string", "time_type": "timestamp"}
KINDS = {"view_type": "table", "table_type": "table", "model_stats": of_dbt.no_stats()}


class Test_basic_TestDocsGenerate(BaseDocsGenerate):
    @pytest.fixture(scope="class")
    def expected_catalog(self, project: Any) -> Any:
        return of_dbt.base_expected_catalog(project, **TYPES, **KINDS)


class Test_basic_TestDocsGenReferences(BaseDocsGenReferences):
    @pytest.fixture(scope="class")
    def expected_catalog(self, project: Any) -> Any:
        types = TYPES | {"bigint_type": "bigint"}
        return of_dbt.expected_references_catalog(project, **types, **KINDS)


@pytest.fixture(scope="session", autouse=True)
def spark() -> Iterator[None]:
    """Run the session that dbt's method `session` takes."""
    running = session(os.environ["SPARKTXLOG_DBT_URL"], os.environ["SPARKTXLOG_DBT_JARS"])
    # Many of dbt's tests make tables by SQL that names no format.
    running.conf.set("spark.sql.sources.default", "delta")
    yield
    running.stop()


@pytest.fixture(scope="class")
def dbt_profile_target() -> dict[str, Any]:
    return {"type": "spark", "method": "session", "host": "none", "threads": 1}


@pytest.fixture(scope="class")
def test_data_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files beside the module of the class, or a place for those that it writes."""
    beside = Path(inspect.getfile(request.cls)).with_name("data")
    return beside if beside.is_dir() else tmp_path_factory.mktemp("case") / "data"


@pytest.fixture(scope="class")
def dbt_project_yml(project_root: Any, dbt_project_yml: dict[str, Any]) -> dict[str, Any]:
    """Let all tables of a project be those of Delta, and give it the macros."""
    for kind in ("models", "seeds", "snapshots", "data_tests"):
        kind = "tests" if kind == "data_tests" and "tests" in dbt_project_yml else kind
        dbt_project_yml[kind] = DELTA | dbt_project_yml.get(kind, {})
    dbt_project_yml["models"].setdefault("+incremental_strategy", "merge")
    if macros := os.environ["SPARKTXLOG_DBT_MACROS"]:
        paths = dbt_project_yml.get("macro-paths", ["macros"])
        dbt_project_yml["macro-paths"] = [*paths, macros]
    Path(project_root, "dbt_project.yml").write_text(yaml.safe_dump(dbt_project_yml))
    return dbt_project_yml
