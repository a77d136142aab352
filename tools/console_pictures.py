"""Takes the pictures of a node's pages in docs/pictures/: two real nodes, a load, and Chromium.

    python -m tools.console_pictures

It takes three minutes, for which the plots have lines then.
"""

from __future__ import annotations

import base64
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import Cluster
from tests.support.browser import Page, open_page

from sparktxlog import Client

_PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
#: Seconds of load; its rate swings, as real ones do.
_LOAD_S = 180.0
_TABLE = "sales.orders"
_COLUMNS = {"id": "bigint", "customer": "string", "amount": "decimal(10,2)"}
#: Taken once a worker has applied everything.
_APPLIED = ("table",)
#: Name → path, width and height.
SHOWN = {
    "overview": ("/", 1_080, 740),
    "over-time-on-a-phone": ("/dashboard/history", 390, 844),
    "table": (f"/dashboard/tables/{_TABLE}", 1_080, 1_000),
    "acts-on-a-table": (f"/dashboard/acts?table={_TABLE}", 1_080, 560),
}


def main(target: Path = _PICTURES, load_s: float = _LOAD_S) -> None:
    """Write the pictures.

    Args:
        target: The directory.
        load_s: Seconds of load.
    """
    target.mkdir(exist_ok=True)
    os.umask(0o077)  # else nodes warn of files that others can read
    with (
        tempfile.TemporaryDirectory(prefix="txlog-pictures-") as directory,
        Cluster(Path(directory), "AB") as cluster,
    ):
        url, chance = cluster.urls["A"], random.Random(0)
        with Client(url) as client:
            client.create_table(_TABLE, _COLUMNS, keys=["id"], comment="What customers ordered")
            number, begun = 0, time.monotonic()
            while (passed := time.monotonic() - begun) < load_s or not number:
                customer, amount = chance.choice(("ada", "bob", "cyd")), chance.randrange(9_000)
                row = {"id": number, "customer": customer, "amount": f"{amount / 100:.2f}"}
                client.append(_TABLE, [row])
                number += 1
                time.sleep(0.05 + 0.04 * math.sin(passed / 15))
        for name, (path, width, height) in SHOWN.items():
            if name in _APPLIED:
                _apply(url)
            with open_page(Path(directory) / name) as page:
                picture = _picture(page, url + path, width, height)
            (target / f"{name}.png").write_bytes(picture)


def _apply(url: str) -> None:
    """Have a worker apply everything at one site."""
    command = [sys.executable, "-c", "from sparktxlog.cli import main; main()"]
    subprocess.run([*command, "apply", "--url", url], check=True, capture_output=True)


def _picture(page: Page, url: str, width: int, height: int) -> bytes:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    page.open(url)
    if width < 600:
        page.value("document.querySelector('h1').scrollIntoView()")
    return base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])


if __name__ == "__main__":
    main()
