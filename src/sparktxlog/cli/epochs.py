"""The command about the history of epochs: who belonged to the cluster, and since when."""

from __future__ import annotations

from typing import Annotated

import typer

from sparktxlog.cli.node_api import DEFAULT_URL, NodeApi
from sparktxlog.cli.options import AsJson, Url
from sparktxlog.cli.output import print_json, print_rows, time_text


def epochs(
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Epochs to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the epochs that a node has taken up, newest first: members, and what changed.

    What was decided and over while the node was away is missing: ask another one.
    """
    found = NodeApi(url).get("/v1/epochs/history", limit=limit)
    if as_json:
        print_json(found)
        return
    print_rows(
        "epochs",
        ("taken up (UTC)", "lineage", "epoch", "members", "joined", "left", "changed", "quorum",
         "begins after", "phase"),
        [
            [time_text(e["taken_up_at"]), e["lineage"], e["epoch"], e["members"], e["joined"],
             e["left"], e["changed"], f"{e['quorum']} ({e['quorum_rule']})",
             e["begins_after"]["position"], e["phase"]]
            for e in found
        ],
    )  # fmt: skip
