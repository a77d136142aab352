"""Schedulers and catalogs of lineage: what plugs sparktxlog into Airflow, Dagster and OpenLineage.

Nothing else of the package imports these modules, and each needs an extra: `sparktxlog[airflow]`,
`[dagster]` or `[openlineage]`.  docs/orchestration.md has examples.
"""
