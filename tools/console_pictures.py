"""Takes the pictures of a node's pages in docs/pictures/: two real nodes, a load, and Chromium.

    python -m tools.console_pictures                       all of them
    python -m tools.console_pictures table acts-on-a-table

Those with plots take three minutes, for which the plots have lines then.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.cluster import Cluster
from tests.support.browser import Page, open_page
from tests.support.delta_writer import StagedTable, path_of

from sparktxlog import Client
from sparktxlog.http.link import Http

_PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
#: Seconds of load; its rate swings, as real ones do.
_LOAD_S = 180.0
#: A commit table, and its rows: an id, and tags.
_TABLE = "parcels"
_ROWS = [
    (1, ["express"]),
    (2, ["gift", "fragile"]),
    (3, None),
    (4, ["express", "insured"]),
    (5, []),
    (6, ["gift"]),
]
#: Name → path, width and height.
SHOWN = {
    "overview": ("/", 1_080, 740),
    "over-time-on-a-phone": ("/dashboard/history", 390, 844),
    "table": (f"/dashboard/tables/{_TABLE}", 1_080, 860),
    "acts-on-a-table": (f"/dashboard/acts?table={_TABLE}", 1_080, 700),
}
_WITH_PLOTS = ("overview", "over-time-on-a-phone")


def main(names: Sequence[str]) -> None:
    """Write pictures; no name = all."""
    wanted = {name: one for name, one in SHOWN.items() if name in names or not names}
    _PICTURES.mkdir(exist_ok=True)
    os.umask(0o077)  # else nodes warn of files that others can read
    with (
        tempfile.TemporaryDirectory(prefix="txlog-pictures-") as directory,
        Cluster(Path(directory), "AB") as cluster,
    ):
        url = cluster.urls["A"]
        if not wanted.keys().isdisjoint(_WITH_PLOTS):
            _load(url)
        # After the load: without a worker it is what the overview speaks of.
        _make_table(url)
        for name, (path, width, height) in wanted.items():
            with open_page(Path(directory) / name) as page:
                picture = _picture(page, url + path, width, height)
            (_PICTURES / f"{name}.png").write_bytes(picture)


def _load(url: str) -> None:
    with Client(url) as client:
        client.create_table("sales.orders", {"id": "bigint", "v": "string"}, keys=["id"])
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < _LOAD_S:
            client.append("sales.orders", [{"id": int(passed * 1_000), "v": "a"}])
            time.sleep(0.05 + 0.04 * math.sin(passed / 15))


def _make_table(url: str) -> None:
    """Make a commit table with rows, as a client of the catalog does."""
    node, file = Http(url), io.BytesIO()
    ids, tags = zip(*_ROWS, strict=True)
    pq.write_table(pa.table({"id": ids, "tags": pa.array(tags, pa.list_(pa.string()))}), file)

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = node.request("POST", path, body=json.dumps(body).encode())
        found: dict[str, Any] = json.loads(answer)
        return found

    staging = path_of().replace("/tables", "/staging-tables")
    table = StagedTable.of(ask(staging, {"name": _TABLE}))
    add = table.add(file.getvalue())
    add["add"]["stats"] = json.dumps({"numRecords": len(_ROWS)})
    table.write_first(add)
    ask(path_of(), table.creation(_TABLE))
    # Until the node knows that B has it, too.
    name = f"/dashboard/tables/{_TABLE}.json"
    while not all(one["whole"] for one in node.get(name)["placed"]):
        time.sleep(0.1)


def _picture(page: Page, url: str, width: int, height: int) -> bytes:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    page.open(url)
    if width < 600:
        page.value("document.querySelector('h1').scrollIntoView()")
    return base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])


if __name__ == "__main__":
    main(sys.argv[1:])
