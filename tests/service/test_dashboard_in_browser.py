"""The pages of a node in a real browser: news, width, keys, names, contrast, copying."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pyarrow as pa
from deltalake import write_deltalake
from tests.service.local_nodes import cluster, until
from tests.service.test_catalog_api import Caller
from tests.service.test_dashboard import PAGES, commit
from tests.support.browser import Page, browser_page
from tests.support.replica_lakes import report_of

from sparktxlog import Client
from sparktxlog.health.verdicts import judge
from sparktxlog.model.answers import KeptRound
from sparktxlog.runtime.node import Node

CLIENT, ADMIN = "a token of the clients", "a token of the operators"
#: A phone in the hand, and a small screen of a desk; CSS pixels.
WIDTHS = (390, 1280)
#: Least contrast of text by WCAG 2.2 AA: of small text, and of large text.
CONTRASTS = (4.5, 3.0)
LONG = "a_name_that_is_as_long_as_people_make_them_when_nobody_stops_them"
TABLE = f"bronze.{LONG}"
ROUND: KeptRound = {
    "round": 1_700_000_000_000_000,
    "began_at": 1_700_000_000_000_000,
    "ended_at": 1_700_000_009_000_000,
    "position": 2,
    "transactions": 7,
    "held_up_by": ["B"],
    "waits": [
        {
            "peer": "B",
            "why": "promise",
            "began_at": 1_700_000_000_000_000,
            "ended_at": 1_700_000_009_000_000,
            "position": 2,
        }
    ],
    "sentence": "Position 2 waited 9.0 s for node B: its timestamp counter.",
}
#: Texts that differ too little from what is behind them: `[text, contrast]`.
_FAINT = """
(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255)
    .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = parts(getComputedStyle(node).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const own = walk.currentNode.parentElement, style = getComputedStyle(own);
    if (!walk.currentNode.data.trim() || !own.getClientRects().length) continue;
    if (own.closest('title,script,style')) continue;
    const drawn = own instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(parts(drawn)), light(ground(own))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (contrast < (large ? LARGE : SMALL)) found.push([walk.currentNode.data.trim(), contrast]);
  }
  return found;
})()
""".replace("LARGE", str(CONTRASTS[1])).replace("SMALL", str(CONTRASTS[0]))
#: What has the focus, and whether it shows: `[what, shown]`; null = the page itself.
_FOCUS = """
(() => {
  const one = document.activeElement, style = getComputedStyle(one);
  if (one === document.body) return null;
  const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  return [one.outerHTML.slice(0, 80), shown];
})()
"""
#: Roles that people use or look at, which need a name.
_NAMED = {
    "link", "button", "searchbox", "textbox", "image", "progressbar", "navigation", "region",
    "combobox", "checkbox",
}  # fmt: skip


@contextmanager
def _serving(
    directory: Path,
    prepare: Callable[[dict[str, Node]], Awaitable[None]] | None = None,
    **settings: str,
) -> Iterator[dict[str, Node]]:
    """Run nodes A and B in a loop of their own, for tests that wait for a browser."""
    nodes: dict[str, Node] = {}
    started, done = threading.Event(), threading.Event()

    async def main() -> None:
        try:
            async with cluster(directory, "AB", **settings) as found:
                if prepare is not None:
                    await prepare(found)
                nodes.update(found)
                started.set()
                await asyncio.to_thread(done.wait)
        finally:
            started.set()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert started.wait(90) and nodes
        yield nodes
    finally:
        done.set()
        thread.join()


def test_an_act_takes_the_token_of_operators_and_is_noted(tmp_path: Path) -> None:
    """Without it, and without the confirmation, nothing happens; the page says what it needs."""
    settings = {"client-token": CLIENT, "admin-token": ADMIN}
    with _serving(tmp_path, **settings) as nodes, browser_page(tmp_path / "profile") as page:
        node = nodes["A"]
        shown = base64.b64encode(f"anybody:{CLIENT}".encode()).decode()
        page.call("Network.setExtraHTTPHeaders", headers={"authorization": f"Basic {shown}"})
        page.open(f"{node.config.master_url}/dashboard/acts")
        page.call("Network.setExtraHTTPHeaders", headers={})
        press = "document.querySelector('.act button').click()"
        field, said = (
            "document.querySelector('[type=password]')",
            "document.querySelector('.act output')",
        )
        page.value(f"{field}.value = '{ADMIN}'")
        page.value(press)
        assert page.value(f"{said}.textContent") == "" and not node.status()["paused"]
        page.value("document.querySelector('[type=checkbox]').checked = true")
        for token in ("", CLIENT):
            page.value(f"{said}.textContent = ''")
            page.value(f"{field}.value = '{token}'")
            page.value(press)
            page.until(f"{said}.textContent.startsWith('Refused')")
            assert "token of the node's admin-token" in page.value(f"{said}.textContent")
            assert not node.status()["paused"]
        # A failure that is not definite is no refusal.
        page.value("window.plain = fetch")
        page.value(
            "fetch = async () => new Response"
            """('{"detail": "the disk", "definite": false}', {status: 500}); 0"""
        )
        page.value(press)
        page.until(f"{said}.textContent.startsWith('Look whether it was done: the disk')")
        page.value("fetch = plain; 0")
        page.value(f"{field}.value = '{ADMIN}'")
        page.value(press)
        page.until(f"{said} === null || {said}.textContent !== '…'")
        assert node.status()["paused"]
        (entry,) = [
            one
            for one in node.audit.latest()
            if one["action"] == "change_settings" and one["outcome"] == "done"
        ]
        assert "paused" in entry["detail"]


def test_acts_say_what_came_of_them(tmp_path: Path) -> None:
    """A plan, a restore point, and a commit table that is compared; by keys alone."""

    async def prepare(nodes: dict[str, Node]) -> None:
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {ADMIN}"}) as session:
            await Caller(nodes["A"], session).create("plain", "default")
        await until(lambda: nodes["A"].status()["commit_tables"]["states"]["in-sync"] == 1)

    settings = {"client-token": CLIENT, "admin-token": ADMIN}
    serving = _serving(tmp_path, prepare, **settings)
    with serving as nodes, browser_page(tmp_path / "profile") as page:
        node = nodes["A"]
        shown = base64.b64encode(f"anybody:{CLIENT}".encode()).decode()

        def act(number: int, token: str, name: str = "") -> str:
            """Type a form's fields and press Enter in the last one; return what it says."""
            form = f"document.querySelectorAll('form.act')[{number}]"
            page.value(f"{form}.querySelector('[type=checkbox]').checked = true")
            if name:
                page.value(f"{form}.querySelector('[name]').value = '{name}'")
            page.value(f"{form}.querySelector('output').textContent = ''")
            page.value(f"{form}.querySelector('[type=password]').value = '{token}'")
            page.value(f"{form}.querySelector('[type=password]').focus()")
            _press(page, "Enter", 13, "\r")
            said = f"{form}.querySelector('output').textContent"
            page.until(f"{said} !== '' && !{said}.startsWith('…')")
            return str(page.value(said))

        def look(path: str) -> None:
            page.call("Network.setExtraHTTPHeaders", headers={"authorization": f"Basic {shown}"})
            page.open(f"{node.config.master_url}{path}")
            page.call("Network.setExtraHTTPHeaders", headers={})

        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        look("/dashboard/acts")
        assert "no worker of this site has reported" in act(1, ADMIN)
        assert act(2, ADMIN, "before").startswith("Restore point before is position ")
        assert "there is a restore point 'before' already" in act(2, ADMIN, "before")
        look("/dashboard/acts?table=plain")
        refused = act(0, CLIENT)
        assert refused.startswith("Refused, and nothing was done") and "admin-token" in refused
        assert act(0, ADMIN) == "2 files of version 0: each is as it was recorded"
        assert act(1, ADMIN) == "2 files of version 0: each is as it was recorded"
        found = {(one["action"], one["detail"]) for one in node.audit.latest(whose="clients")}
        assert {
            ("create_restore_point", "restore point before"),
            ("check_commit_table", "verify default.plain"),
            ("check_commit_table", "repair default.plain"),
        } <= found
        # A browser notes the three refusals, and no error of a script or of the page's policy.
        assert [one for one in page.errors if not one.startswith("Failed to load resource")] == []


async def _fill(nodes: dict[str, Node]) -> None:
    """Give the pages of A long lines: names, an alarm, a round that was held up."""
    node = nodes["A"]
    await asyncio.to_thread(commit, node)

    def write() -> None:
        with Client(node.config.master_url) as client:
            client.create_table(TABLE, "id bigint", keys=["id"])
            client.append(TABLE, [{"id": 1}])

    await asyncio.to_thread(write)
    write_deltalake(node.config.lake_dir / TABLE, pa.table({"id": [1], LONG: [LONG]}))
    await until(lambda: node.status()["published"] == 5)
    report = report_of(node.status(), 3)
    reason = f"file:///lakes/{LONG}/{LONG}/part-00000.snappy.parquet was written by user ada"
    tables = {TABLE: replace(report.tables["t"], diverged=reason)}
    node.accept_report(replace(report, tables=tables, worker_id=LONG))
    node.waits.remember([ROUND])
    for _ in range(3):
        node.history.sample()


def _paths(node: Node) -> list[str]:
    """Return the paths of all pages that people see."""
    (run,) = node.queue(4, 1)
    more = (
        f"transactions/{run['first_id']}",
        f"tables/{TABLE}",
        f"rounds/{ROUND['round']}",
        f"acts?table={TABLE}",
        f"tables?find={LONG[:9]}",
        "nothing",
    )
    return ["/", *(f"/dashboard/{one}" for one in (*PAGES[1:], *more)), "/docs"]


def _show(page: Page, width: int, scheme: str) -> None:
    """Give the page a width and a colour scheme."""
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=width < 600,
    )
    page.call(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": scheme}],
    )


def _unnamed(page: Page) -> list[str]:
    """Return the roles of what has no name for people who hear the page."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return [
        one["role"]["value"]
        for one in nodes
        if not one.get("ignored")
        and one["role"]["value"] in _NAMED
        and not (one.get("name") or {}).get("value")
    ]


def _assert_keys_show_where_they_are(page: Page, path: str) -> None:
    """Step through the page with the Tab key: each stop shows, and the search field is one."""
    seen = list[str]()
    for _ in range(60):
        _press(page, "Tab", 9)
        found = page.value(_FOCUS)
        if found is None or found[0] in seen:
            break
        assert found[1], f"{path}: the focus does not show at {found[0]}"
        seen.append(found[0])
    assert any("<a " in one for one in seen), seen


def test_pages_fit_are_named_and_can_be_read(tmp_path: Path) -> None:
    """On a phone each page scrolled sideways as a whole."""
    with _serving(tmp_path, _fill) as nodes, browser_page(tmp_path / "profile") as page:
        root = nodes["A"].config.master_url
        wide, faint, unnamed = list[str](), list[str](), list[str]()
        for path in _paths(nodes["A"]):
            page.open(f"{root}{path}")
            for width in WIDTHS:
                _show(page, width, "light")
                found = page.value("document.documentElement.scrollWidth")
                if found > width:
                    wide.append(f"{path} at {width} px: {found} px")
            for scheme in ("light", "dark"):
                _show(page, WIDTHS[0], scheme)
                faint += [f"{path}, {scheme}: {one}" for one in page.value(_FAINT)]
            unnamed += [f"{path}: {role}" for role in _unnamed(page)]
            _assert_keys_show_where_they_are(page, path)
        assert (wide, faint, unnamed) == ([], [], [])


def test_the_first_line_is_the_verdict_and_its_command_can_be_copied(tmp_path: Path) -> None:
    """By a click on its box, and by a key on its button; the tab shows the state, with news too."""
    with _serving(tmp_path) as nodes, browser_page(tmp_path / "profile") as page:
        node, root = nodes["A"], nodes["A"].config.master_url
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.call(
            "Browser.grantPermissions",
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
            origin=root,
        )
        page.open(f"{root}/")
        page.until("document.title.startsWith('● in sync – A')")
        commit(node)
        page.until("document.title.startsWith('▲ lagging – A')")
        verdict = judge(node.status())
        first = page.value("document.querySelector('main').firstElementChild.innerText")
        assert first.startswith("▲ Lagging")
        # The box of a command ends the sentence in place of a full stop.
        assert _letters(f"Lagging{verdict.sentence}").removesuffix(".") in _letters(first)
        (command,) = [one for one in verdict.way_out.split("`") if one.startswith("sparktxlog ")]
        for key in (False, True):
            _await(page, "navigator.clipboard.writeText('')")
            if key:
                page.value("document.querySelector('.command button').focus()")
                _press(page, "Enter", 13, "\r")
            else:
                _click(page, ".command code")
            page.until("document.getElementById('said').textContent === 'Copied'")
            assert _await(page, "navigator.clipboard.readText()") == command
            page.until("document.getElementById('said').textContent === ''")
        assert page.errors == []


def _letters(text: str) -> str:
    """Return a text without what the page shows in another way: spaces, code, buttons."""
    return "".join(text.replace("Copy", "").replace("`", "").split())


def _await(page: Page, promise: str) -> str:
    """Return what a promise of JavaScript gives."""
    found = page.call("Runtime.evaluate", expression=promise, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in found, found
    return str(found["result"].get("value"))


def _press(page: Page, key: str, code: int, text: str = "") -> None:
    for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
        page.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key=key,
            code=key,
            windowsVirtualKeyCode=code,
            text=text if kind == "keyDown" else "",
        )


def _click(page: Page, selector: str) -> None:
    """Click in the middle of an element."""
    box = page.value(
        f"(() => {{const one = document.querySelector('{selector}').getBoundingClientRect();"
        "return [one.x + one.width / 2, one.y + one.height / 2]})()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        page.call(
            "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1
        )


def test_a_browser_shows_news_and_asks_nobody_else(tmp_path: Path) -> None:
    """Scripts obey the page's own policy, and what a person types stays."""
    with _serving(tmp_path) as nodes, browser_page(tmp_path / "profile") as page:
        root = nodes["A"].config.master_url
        page.open(f"{root}/dashboard/queue")
        page.until("document.body.innerText.includes('Nothing is ordered here')")
        page.until("!!window.htmx && !!window.Idiomorph")
        page.value("document.querySelector('input').value = 'typed'")
        page.value("document.querySelector('input').focus()")
        page.value("window.mark = 'not loaded again'")
        commit(nodes["B"])
        page.until("document.querySelectorAll('tr').length === 4")
        assert page.value("document.activeElement.value") == "typed"
        assert page.value("window.mark") == "not loaded again"
        page.open(f"{root}/")
        assert page.value("document.querySelectorAll('svg circle').length") == 2
        assert [url for url in page.asked if not url.startswith(root)] == []
        assert page.errors == []
