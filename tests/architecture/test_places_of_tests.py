"""Who changes a module finds its tests: `tests/unit` mirrors the folders of the package."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.source_tree import PACKAGE, ROOT, functions_of, package_modules

UNIT = ROOT / "tests" / "unit"
#: Rooms whose modules have a test module of their name.
MIRRORED = (
    "attic",
    "catchup",
    "codec",
    "config",
    "delta",
    "health",
    "model",
    "protocol",
    "storage",
)
#: Statements of all functions of a module from which on there is something to test.
LOGIC = 10

_TRACES = "property/test_directed_traces.py"
_JOURNAL = "contract/test_journal.py"
_CATALOG = "service/test_catalog_api.py"
#: Modules that are tested with others, or at a larger piece: module → where.
ELSEWHERE = {
    "codec/delta_catalog/catalog_answers.py": _CATALOG,
    "codec/delta_catalog/catalog_requests.py": _CATALOG,
    "codec/delta_catalog/table_states.py": _CATALOG,
    "codec/lexer.py": "unit/codec/test_predicate.py",
    "codec/containers/payload.py": "unit/codec/test_golden.py",
    "codec/problems.py": "unit/http/test_link.py",
    "config/node_config.py": "unit/config/test_sources.py",
    "model/transactions/operation.py": "unit/codec/containers/test_assembly.py",
    "model/tables/table.py": "unit/codec/submits/test_validation.py",
    "model/values.py": "unit/config/test_sources.py",
    "protocol/epoch/following.py": "unit/protocol/epoch/test_joining.py",
    "protocol/epoch/standing.py": _TRACES,
    "protocol/epoch/succession.py": "unit/protocol/test_phases.py",
    "protocol/epoch/union.py": "unit/protocol/epoch/test_proposer.py",
    "protocol/epoch/voiding.py": _TRACES,
    "protocol/epoch/voter.py": _TRACES,
    "protocol/order/collecting.py": _TRACES,
    "protocol/order/final_queue.py": _TRACES,
    "protocol/order/ordering.py": "unit/protocol/test_master.py",
    "protocol/messages/bounds.py": _TRACES,
    "protocol/messages/outbox.py": "unit/protocol/test_master.py",
    "protocol/messages/versions.py": "unit/codec/test_golden.py",
    "protocol/messages/view.py": "unit/protocol/epoch/test_changes.py",
    "storage/durability.py": "unit/storage/journal/test_journal.py",
    "storage/journal/epoch_changes.py": "contract/test_journal_epochs.py",
    "storage/journal/journal_reader.py": _JOURNAL,
    "storage/journal/log_expiry.py": "contract/test_journal_expiry.py",
    "storage/journal/queue_ids.py": "contract/test_journal_expiry.py",
    "storage/journal/row_pruning.py": _JOURNAL,
    "storage/journal/snapshot_files.py": "contract/test_journal_epochs.py",
    "storage/journal/waiting_ids.py": _JOURNAL,
    "storage/lock.py": "unit/storage/journal/test_journal.py",
    "storage/log_tables/log_table.py": "unit/storage/log_tables/test_queue_table.py",
    "storage/log_tables/quarantine_table.py": "unit/runtime/leaving_fork/test_node_quarantine.py",
    "storage/log_tables/queue_rows.py": "unit/storage/segments/test_publishing.py",
    "storage/segments/inline_files.py": "unit/storage/segments/test_publishing.py",
}
#: Test modules that are named after what several modules do together, or after a file of conf/.
OF_SEVERAL = {
    "cli/test_catchup.py",
    "cli/test_epochs.py",
    "cli/test_quarantine.py",
    "codec/test_golden.py",
    "config/test_examples.py",
    "config/test_schedules.py",
    "protocol/test_clocks.py",
    "protocol/test_phases.py",
    "protocol/test_scenarios.py",
    "protocol/test_survivors.py",
    "runtime/membership/test_replaced_start.py",
    "service/test_fuzz.py",
    "files/test_donor_fetcher.py",
    "files/test_kills.py",
    "worker/copy/test_full_disk.py",
}


def _has_logic(tree: ast.Module) -> bool:
    return sum(len(function.body) for function in functions_of(tree)) >= LOGIC


def _with_logic() -> set[Path]:
    """Return the modules of the mirrored rooms that have something to test, below the package."""
    return {
        module.path.relative_to(PACKAGE)
        for module in package_modules()
        if module.room in MIRRORED and module.path.name != "__init__.py" and _has_logic(module.tree)
    }


def test_every_module_has_a_test_module_of_its_name() -> None:
    """Or it is said where it is tested instead; then it has none."""
    own = {path for path in _with_logic() if (UNIT / path).with_name(f"test_{path.name}").is_file()}
    elsewhere = {Path(name) for name in ELSEWHERE}
    assert sorted(map(str, _with_logic() - own - elsewhere)) == []
    assert sorted(map(str, elsewhere - (_with_logic() - own))) == [], "needs no exception"
    assert [test for test in ELSEWHERE.values() if not (ROOT / "tests" / test).is_file()] == []


def test_every_unit_test_is_named_after_a_module() -> None:
    """`test_executor_epochs` stands beside `executor`, in the folder that mirrors its own."""
    found = set()
    for path in UNIT.rglob("test_*.py"):
        place = path.relative_to(UNIT)
        stem, folder = path.stem.removeprefix("test_"), PACKAGE / place.parent
        names = {entry.stem for entry in folder.glob("*") if entry.stem != "__init__"}
        if place.parts[0] not in ("examples", "verification") and not any(
            stem == name or stem.startswith(f"{name}_") for name in names
        ):
            found.add(str(place))
    assert sorted(found - OF_SEVERAL) == []
    assert sorted(OF_SEVERAL - found) == [], "needs no exception"
