"""Takes the pictures of a node's pages in docs/pictures/: two real nodes, a load, and Chromium.

    python -m tools.console_pictures

It takes three minutes, for which the plots have lines then.
"""

from __future__ import annotations

import base64
import math
import os
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import Cluster
from tests.support.browser import Page, open_page

from sparktxlog import Client

_PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
#: Seconds of load; its rate swings, as real ones do.
_LOAD_S = 180.0
#: Name → path, width and height.
_SHOWN = {
    "overview": ("/", 1_080, 740),
    "over-time-on-a-phone": ("/dashboard/history", 390, 844),
}


def main() -> None:
    """Write the pictures."""
    _PICTURES.mkdir(exist_ok=True)
    os.umask(0o077)  # else nodes warn of files that others can read
    with (
        tempfile.TemporaryDirectory(prefix="txlog-pictures-") as directory,
        Cluster(Path(directory), "AB") as cluster,
    ):
        with Client(cluster.urls["A"]) as client:
            client.create_table("sales.orders", {"id": "bigint", "v": "string"}, keys=["id"])
            begun = time.monotonic()
            while (passed := time.monotonic() - begun) < _LOAD_S:
                client.append("sales.orders", [{"id": int(passed * 1_000), "v": "a"}])
                time.sleep(0.05 + 0.04 * math.sin(passed / 15))
        with open_page(Path(directory) / "browser") as page:
            for name, (path, width, height) in _SHOWN.items():
                picture = _picture(page, cluster.urls["A"] + path, width, height)
                (_PICTURES / f"{name}.png").write_bytes(picture)


def _picture(page: Page, url: str, width: int, height: int) -> bytes:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    page.open(url)
    if width < 600:
        page.value("document.querySelector('h1').scrollIntoView()")
    return base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])


if __name__ == "__main__":
    main()
