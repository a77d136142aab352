"""Command `doctor`: all checks that this machine, a configuration and a node allow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.cli.common_options import (
    DEFAULT_URL,
    AsJson,
    ConfigFile,
    ExitCode,
    NodeApi,
    app,
    end,
)
from sparktxlog.cli.doctor.disks import check_disks, check_modes
from sparktxlog.cli.doctor.findings import Finding, Grade, good, problem, warning
from sparktxlog.cli.doctor.queue_files import check_queue_files
from sparktxlog.cli.doctor.software import check_software
from sparktxlog.cli.doctor.ways import check_addresses, check_port, token_source
from sparktxlog.cli.printing import is_terminal, print_json, wrapped
from sparktxlog.errors import ConfigError, CorruptLogError, TxLogError, UnauthorizedError
from sparktxlog.http.link import node_address
from sparktxlog.model.values import is_loopback
from sparktxlog.storage.lock import owner_of

if TYPE_CHECKING:
    from sparktxlog.config import NodeConfig


@app.command(epilog="Example: sparktxlog doctor --config conf/site-a.toml")
def doctor(
    config: ConfigFile = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="SPARKTXLOG_URL",
            help="URL of the node to ask; default: that of --config, else http://127.0.0.1:7070.",
        ),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(
            "--store",
            help="Bucket to try, such as s3://bucket/prefix, by the settings of --config, else of "
            "the environment; may be given several times.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and with --config a node's files: each finding with what mends it.

    It looks at Python, Java, Spark and its JARs, disks, fsync, files of the queue table, ports,
    modes of files with secrets, addresses of peers and tokens.  Run it as the node's user, on the
    node's machine.  It needs neither a node nor Spark, and changes nothing; in the bucket of the
    node's commit tables, and in each --store, it puts some objects below a name of its own, races
    for them, and removes them.  `status` says what a node warns of, and `peers` how its links and
    clocks are.

    Exit code 1: there is a problem.
    """
    found = list(_examine(config, url, store or ()))
    problems = sum(finding.grade is Grade.PROBLEM for finding in found)
    warnings = sum(finding.grade is Grade.WARNING for finding in found)
    if as_json:
        findings = [asdict(finding) for finding in found]
        print_json({"problems": problems, "warnings": warnings, "findings": findings})
    else:
        _print(found)
        typer.echo(
            f"problems: {problems:,}, warnings: {warnings:,}, findings: {len(found):,}", err=True
        )
    end(ExitCode.ERROR if problems else ExitCode.IN_SYNC)


def _examine(path: Path | None, url: str | None, stores: Sequence[str]) -> Iterator[Finding]:
    yield from check_software()
    config = None
    if path is not None:
        from sparktxlog.config import load_config

        try:
            config = load_config(path)
            yield _check_configuration(path, config)
        except (ConfigError, CorruptLogError) as error:
            yield _config_problem(error)
    asked = url or (DEFAULT_URL if config is None else config.master_url.partition(",")[0])
    api = NodeApi(asked, timeout_s=5.0, ca_file=None if config is None else config.tls_ca_file)
    yield token_source(api.token, os.environ)
    if config is not None and api.token is None:
        api.token = config.client_token
    status, info, said = _answers_of(api, given=url is not None)
    if config is not None:
        answers = status is not None and status["node_id"] == config.node_id
        yield check_port(config.listen, answers, owner_of(config.data_dir))
        yield from check_disks(_directories(config), config.tx_log_max_bytes)
        yield from check_queue_files(config.data_dir / "log")
        yield from check_modes(_secrets(config))
        yield from _exposed(config)
        if status is None:
            yield from check_addresses({peer.id: peer.urls for peer in config.peers})
    elif info is not None and is_loopback(node_address(asked).hostname or ""):
        yield from check_disks(_shown_directories(info), None)
    yield from said
    yield from _tried(config, stores)


def _tried(config: NodeConfig | None, stores: Sequence[str]) -> Iterator[Finding]:
    """Try the buckets of a node, if it has some, and the stores that are named."""
    own = list[str]()
    if config is not None:
        own += filter(None, (config.commit_table_url, config.lake_url, config.payload_url))
    if not own and not stores:
        return
    from sparktxlog.cli.doctor.store_checks import check_stores, check_vending
    from sparktxlog.files.stores.store_settings import StoreSettings
    from sparktxlog.runtime.commit_tables.site_places import settings_of_stores

    environment = StoreSettings.of_environment
    settings = environment() if config is None else settings_of_stores(config)
    yield from check_stores(dict.fromkeys([*own, *stores]), settings)
    if config is not None:
        yield from check_vending(config)


def _exposed(config: NodeConfig) -> Iterator[Finding]:
    """Yield what else lets others see secrets."""
    from sparktxlog.config.exposure import OPEN_FILE, exposures

    for one in exposures(config):
        if one["code"] != OPEN_FILE:  # `check_modes` has looked
            yield warning("configuration", one["text"], "")


def _check_configuration(path: Path, config: NodeConfig) -> Finding:
    """Do what `sparktxlog config check` does.

    Raises:
        ConfigError: A directory or a certificate cannot be used (definite).
    """
    from sparktxlog.config import check_directories, load_certificates
    from sparktxlog.runtime.membership.data_owner import check_data_dir

    check_directories(config)
    check_data_dir(config)
    if config.uses_tls:
        load_certificates(config)
    return good("configuration", f"{path} is good: node {config.node_id} of {config.cluster}")


def _config_problem(error: TxLogError) -> Finding:
    return problem("configuration", error.message, error.hint or "Mend the file.")


def _answers_of(api: NodeApi, *, given: bool) -> tuple[Any, Any, list[Finding]]:
    """Return status and names of a node, or None and None; and what that says.

    Args:
        api: The node.
        given: Whether the user named it: then it should answer.
    """
    try:
        status, info = api.get("/v1/status"), api.get("/v1/info")
        return status, info, [good("node", f"node {status['node_id']} answers")]
    except UnauthorizedError as error:
        text = f"{api.url} refuses the token: {error.message}"
        found = problem("tokens", text, error.hint)
    except TxLogError as error:
        # No node is there: that is a problem only if the user expects one.
        found = (problem if given else warning)("node", error.message, error.hint)
    return None, None, [found]


def _directories(config: NodeConfig) -> dict[str, Path]:
    found = {
        "data-dir": config.data_dir,
        "payload-dir": config.payload_dir,
        "lake-dir": config.lake_dir,
        "commit-table-dir": config.commit_table_dir,
        "reader-table-dir": config.reader_table_dir,
        "backup-dir": config.backup_dir,
    }
    return {key: path for key, path in found.items() if path is not None}


def _shown_directories(info: dict[str, Any]) -> dict[str, Path]:
    """Return the directories that a node of this machine shows."""
    return {
        "data-dir": Path(info["log_root"]).parent,
        "payload-dir": Path(info["payload_root"]),
        "lake-dir": Path(info["lake_root"]),
        "commit-table-dir": Path(info["commit_table_dir"]),
    }


def _secrets(config: NodeConfig) -> dict[str, Path]:
    """Return what other users must not read."""
    from sparktxlog.config.exposure import secret_files
    from sparktxlog.runtime.tokens.worker_token import worker_token_file

    own = {"worker token": worker_token_file(config.data_dir), "data-dir": config.data_dir}
    if config.grants_file is not None:
        own["grants-file"] = config.grants_file  # a user that can change it may do more
    return secret_files(config) | own


def _print(found: Sequence[Finding]) -> None:
    """Print findings: folded for people, one line with tabs for programs."""
    if not is_terminal():
        for one in found:
            typer.echo(f"{one.grade.value}\t{one.check}\t{one.text}\t{one.fix}")
        return
    colours = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.PROBLEM: "red"}
    for one in found:
        head = f"{one.grade.value:8} {one.check:14}"
        shown = typer.style(head, fg=colours[one.grade])
        typer.echo(wrapped(one.text, len(head), shown))
        if one.fix:
            typer.echo(typer.style(wrapped(one.fix, len(head), " " * len(head)), bold=True))
