"""Who changes a module finds its tests: `tests/unit` mirrors the folders of the package."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.source_tree import PACKAGE, ROOT, functions_of, package_modules

UNIT = ROOT / "tests" / "unit"
#: Rooms whose modules have a test module of their name.
MIRRORED = (
    "api",
    "attic",
    "catchup",
    "cli",
    "codec",
    "config",
    "delta",
    "files",
    "health",
    "http",
    "model",
    "protocol",
    "runtime",
    "service",
    "storage",
    "transport",
    "worker",
)
#: Statements of all functions of a module from which on there is something to test.
LOGIC = 10

_TRACES = "property/test_directed_traces.py"
_JOURNAL = "contract/test_journal.py"
_CATALOG = "service/test_catalog_api.py"
_VERIFIED = "service/test_verified_tables.py"
#: Modules that are tested with others, or at a larger piece: module → where.
ELSEWHERE = {
    "api/adopting/row_adoption.py": "spark/adopting/test_row_adoption.py",
    "api/adopting/source_table.py": "spark/adopting/test_row_adoption.py",
    "api/adopting/version_changes.py": "spark/adopting/test_following.py",
    "api/client.py": "service/test_client_api.py",
    "api/inline_worker.py": "spark/api/test_commit.py",
    "api/jobs/job.py": "contract/test_job_exits.py",
    "api/jobs/job_options.py": "contract/test_job_exits.py",
    "api/jobs/upkeep.py": "spark/catalog/test_upkeep.py",
    "api/log_client.py": "service/test_client_api.py",
    "api/reading/replica_snapshot.py": "spark/worker/test_snapshots.py",
    "api/reading/restore_point_reading.py": "spark/api/test_sql_views.py",
    "api/reading/restore_points.py": "service/test_restore_points.py",
    "api/reading/sql_views.py": "spark/api/test_sql_views.py",
    "api/reading/state_frames.py": "spark/api/test_commit.py",
    "api/site_session.py": "unit/api/test_connect.py",
    "api/staging/frame_staging.py": "spark/api/test_commit.py",
    "api/staging/shared_store.py": "spark/api/test_commit.py",
    "api/staging/staged_append.py": "unit/api/staging/test_executor_uploads.py",
    "api/streams/foreach_batch.py": "spark/api/test_streams.py",
    "api/streams/reader.py": "spark/api/test_streams.py",
    "api/writing/background.py": "service/test_background_commits.py",
    "api/writing/group_definitions.py": "service/test_groups.py",
    "api/writing/held_transaction.py": "service/test_held_transaction.py",
    "api/writing/merge.py": "spark/api/test_merge.py",
    "api/writing/operations.py": "spark/api/test_commit.py",
    "api/writing/request_transaction.py": "service/test_client_api.py",
    "api/writing/transaction.py": "spark/api/test_commit.py",
    "cli/commands/checkpoint_commands.py": "unit/storage/test_stream_checkpoints.py",
    "cli/commands/definition_commands.py": "service/test_definition_commands.py",
    "cli/commands/feed_commands.py": "service/test_feeding.py",
    "cli/commands/group_commands.py": "service/test_groups.py",
    "cli/commands/job_commands.py": "contract/test_job_exits.py",
    "cli/commands/restore_point_commands.py": "service/test_restore_points.py",
    "cli/commands/settings_commands.py": "unit/cli/test_all_nodes.py",
    "cli/commands/status_commands.py": "unit/cli/test_all_nodes.py",
    "cli/commands/table_commands.py": "unit/cli/test_command_line.py",
    "cli/commands/transaction_commands.py": "unit/cli/test_command_line.py",
    "cli/doctor/disks.py": "unit/cli/test_doctor.py",
    "cli/doctor/doctor_command.py": "unit/cli/test_doctor.py",
    "cli/doctor/software.py": "unit/cli/test_doctor.py",
    "cli/doctor/ways.py": "unit/cli/test_doctor.py",
    "cli/drill/drill_command.py": "service/test_live_drill.py",
    "cli/example.py": "unit/cli/test_command_line.py",
    "codec/containers/payload.py": "unit/codec/test_golden.py",
    "codec/delta_catalog/catalog_requests.py": _CATALOG,
    "codec/delta_catalog/table_states.py": _CATALOG,
    "codec/lexer.py": "unit/codec/test_predicate.py",
    "codec/problems.py": "unit/http/test_link.py",
    "codec/row_statistics.py": "unit/storage/test_parquet_files.py",
    "config/node_config.py": "unit/config/test_sources.py",
    "cli/doctor/store_checks.py": "contract/test_stores.py",
    "files/stores/donor_buckets.py": "contract/test_copies_between_sites.py",
    "files/stores/part.py": "contract/test_stores.py",
    "files/stores/proof.py": "contract/test_stores.py",
    "files/stores/credentials/vending.py": "contract/test_refusals_of_stores.py",
    "files/tasks.py": "unit/files/test_selection.py",
    "model/tables/table.py": "unit/codec/submits/test_validation.py",
    "model/transactions/operation.py": "unit/codec/containers/test_assembly.py",
    "model/values.py": "unit/config/test_sources.py",
    "protocol/epoch/following.py": "unit/protocol/epoch/test_joining.py",
    "protocol/epoch/standing.py": _TRACES,
    "protocol/epoch/succession.py": "unit/protocol/test_phases.py",
    "protocol/epoch/union.py": "unit/protocol/epoch/test_proposer.py",
    "protocol/epoch/voiding.py": _TRACES,
    "protocol/epoch/voter.py": _TRACES,
    "protocol/messages/bounds.py": _TRACES,
    "protocol/messages/outbox.py": "unit/protocol/test_master.py",
    "protocol/messages/versions.py": "unit/codec/test_golden.py",
    "protocol/messages/view.py": "unit/protocol/epoch/test_changes.py",
    "protocol/order/collecting.py": _TRACES,
    "protocol/order/final_queue.py": _TRACES,
    "protocol/order/ordering.py": "unit/protocol/test_master.py",
    "runtime/commit/delivery.py": "service/test_client_api.py",
    "runtime/groups/group_states.py": "service/test_groups.py",
    "runtime/store_taking.py": "service/test_bucket_payloads.py",
    "storage/payloads/bucket_expiry.py": "contract/test_payload_store.py",
    "storage/payloads/bucket_payloads.py": "contract/test_payload_store.py",
    "storage/payloads/payload_store.py": "contract/test_payload_store.py",
    "storage/site_bucket.py": "service/test_bucket_payloads.py",
    "worker/lakes/payload_files.py": "contract/test_lakes.py",
    "storage/commit_tables/directory_tables.py": "spark/catalog/test_upkeep.py",
    "storage/commit_tables/site_tables.py": "unit/storage/commit_tables/test_table_places.py",
    "storage/commit_tables/shared_tables.py": "unit/storage/commit_tables/test_bucket_tables.py",
    "runtime/commit_tables/commit_catalog.py": "service/test_commit_tables.py",
    "runtime/commit_tables/commit_placer.py": "service/test_travelling_commits.py",
    "runtime/commit_tables/reader_tables.py": "service/test_reader_tables.py",
    "runtime/commit_tables/row_tables.py": "service/test_catalog_of_rows.py",
    "runtime/commit_tables/scheduled_checks.py": _VERIFIED,
    "runtime/commit_tables/several_commits.py": "service/test_several_commits.py",
    "runtime/commit_tables/table_descriptions.py": "service/test_commit_tables.py",
    "runtime/commit_tables/table_fetcher.py": "service/test_fetched_tables.py",
    "runtime/commit_tables/table_giver.py": "service/test_fetched_tables.py",
    "runtime/commit_tables/table_overview.py": "service/test_commit_tables.py",
    "runtime/commit_tables/table_records.py": _VERIFIED,
    "runtime/commit_tables/table_recounts.py": _VERIFIED,
    "runtime/donors/copy_orders.py": "service/test_replica_routes.py",
    "runtime/donors/donor_sizes.py": "unit/runtime/replicas/test_planning.py",
    "runtime/donors/leases.py": "unit/runtime/donors/test_donor.py",
    "runtime/foundation.py": "service/test_client_api.py",
    "runtime/leaving_fork/giving_up.py": "unit/runtime/leaving_fork/test_node_quarantine.py",
    "runtime/log/disk_space.py": "service/test_full_disk.py",
    "runtime/log/published_log.py": "service/test_retention.py",
    "runtime/membership/membership.py": "service/test_epoch_routes.py",
    "runtime/membership/sites_data.py": "service/test_views.py",
    "runtime/membership/standing_aside.py": "service/test_slow_disk.py",
    "runtime/membership/strangers.py": "service/test_strangers.py",
    "runtime/metrics.py": "service/test_metrics.py",
    "runtime/node.py": "service/test_client_api.py",
    "runtime/node_status.py": "service/test_answers.py",
    "runtime/replicas/all_replicas.py": "service/test_replica_routes.py",
    "service/application.py": "service/test_access.py",
    "service/dashboard/acts.py": "service/test_dashboard.py",
    "service/dashboard/dashboard_routes.py": "service/test_dashboard.py",
    "service/dashboard/dashboard_views.py": "service/test_dashboard.py",
    "service/handlers/administration.py": "service/test_audit.py",
    "service/handlers/catalog_api.py": _CATALOG,
    "service/handlers/members.py": "service/test_epoch_routes.py",
    "service/handlers/open_routes.py": "service/test_open_routes.py",
    "service/handlers/peer.py": "service/test_peer_routes.py",
    "service/handlers/replica.py": "service/test_replica_routes.py",
    "service/handlers/sent_files.py": "service/test_feeding.py",
    "service/handlers/staged_uploads.py": "service/test_staged_uploads.py",
    "service/handlers/state_routes.py": "service/test_answers.py",
    "service/handlers/submit_routes.py": "service/test_client_api.py",
    "service/handlers/group_routes.py": "service/test_groups.py",
    "service/handlers/point_routes.py": "service/test_restore_points.py",
    "service/handlers/property_table.py": "service/test_restore_points.py",
    "service/handlers/view_routes.py": "service/test_views.py",
    "service/routing/declared_route.py": "unit/service/routing/test_endpoints.py",
    "service/routing/routes.py": "service/test_answers.py",
    "storage/journal/epoch_changes.py": "contract/test_journal_epochs.py",
    "storage/journal/journal_reader.py": _JOURNAL,
    "storage/journal/log_expiry.py": "contract/test_journal_expiry.py",
    "storage/journal/queue_ids.py": "contract/test_journal_expiry.py",
    "storage/journal/row_pruning.py": _JOURNAL,
    "storage/journal/summary_files.py": "contract/test_journal_epochs.py",
    "storage/journal/waiting_ids.py": _JOURNAL,
    "storage/lock.py": "unit/storage/journal/test_journal.py",
    "storage/interfaces.py": "unit/storage/segments/test_publishing.py",
    "storage/log_tables/log_table.py": "unit/storage/log_tables/test_queue_table.py",
    "storage/log_tables/quarantine_table.py": "unit/runtime/leaving_fork/test_node_quarantine.py",
    "storage/log_tables/queue_rows.py": "unit/storage/segments/test_publishing.py",
    "storage/segments/inline_files.py": "unit/storage/segments/test_publishing.py",
    "transport/node_certificate.py": "service/test_tls.py",
    "transport/peer_link.py": "unit/transport/test_peer_link_addresses.py",
    "worker/apply/deltalog.py": "spark/worker/test_apply.py",
    "worker/apply/merging.py": "unit/worker/apply/test_steps.py",
    "worker/apply/observing.py": "spark/worker/test_signatures.py",
    "worker/apply/signatures.py": "spark/worker/test_signatures.py",
    "worker/apply/worker_session.py": "spark/worker/test_verify.py",
    "worker/backup/disk_images.py": "unit/worker/backup/test_imaging.py",
    "worker/backup/image.py": "unit/worker/backup/test_imaging.py",
    "worker/backup/image_store.py": "contract/test_images.py",
    "worker/backup/bucket_images.py": "contract/test_images.py",
    "worker/backup/bucket_restoring.py": "contract/test_images.py",
    "worker/backup/restoring.py": "unit/worker/backup/test_imaging.py",
    "worker/copy/donor_fetcher.py": "unit/files/test_donor_fetcher.py",
    "worker/copy/staging.py": "unit/worker/copy/test_full_disk.py",
    "worker/copy/swap.py": "unit/worker/copy/test_replica_copy.py",
    "worker/feed/feed_checks.py": "contract/test_feeds.py",
    "worker/feed/feed_commits.py": "service/test_feeding.py",
    "worker/feed/feed_lakes.py": "spark/worker/test_feed_restores.py",
    "worker/feed/feed_points.py": "contract/test_feeds.py",
    "worker/feed/feed_pruning.py": "contract/test_feeds.py",
    "worker/feed/feed_restoring.py": "spark/worker/test_feed_restores.py",
    "worker/feed/feed_store.py": "contract/test_feeds.py",
    "worker/feed/shipped_files.py": "contract/test_feeds.py",
    "worker/feed/shipping.py": "service/test_feeding.py",
    "worker/repair/repairing.py": "spark/worker/test_repair.py",
    "worker/repair/table_quarantine.py": "unit/worker/copy/test_replica_copy.py",
    "worker/lakes/bucket_lake.py": "contract/test_lakes.py",
    "worker/lakes/disk_lake.py": "contract/test_lakes.py",
    "worker/lakes/lake.py": "contract/test_lakes.py",
    "worker/lakes/lake_lease.py": "contract/test_lake_locks.py",
    "worker/lakes/lake_places.py": "contract/test_lake_locks.py",
    "worker/replica/bucket_replica.py": "contract/test_lake_locks.py",
    "worker/replica/local_replica.py": "unit/worker/replica/test_applier.py",
    "worker/replica/source.py": "contract/test_log_source.py",
    "worker/tables/commit_table_merge.py": "spark/worker/test_commit_table_merge.py",
    "worker/tables/row_upkeep.py": "spark/worker/test_maintenance.py",
    "worker/tables/table_adoption.py": "service/test_adoption.py",
    "worker/tables/twin_drafts.py": "spark/catalog/test_several_tables.py",
    "worker/verify/histories.py": "unit/worker/verify/test_comparing.py",
    "worker/verify/table_verification.py": _VERIFIED,
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
        if place.parts[0] not in ("benchmarks", "examples", "tools", "verification") and not any(
            stem == name or stem.startswith(f"{name}_") for name in names
        ):
            found.add(str(place))
    assert sorted(found - OF_SEVERAL) == []
    assert sorted(OF_SEVERAL - found) == [], "needs no exception"
