"""The notebooks run from their first cell to their last, and show what they say.

Those without Spark run in a kernel of their own.  Those with Spark run as in a kernel, inside an
event loop, in the tests' session: a JVM of their own would take half of their time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession
from tests.support.store_servers import packages

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
]

ROOT = Path(__file__).resolve().parents[3]


def _stored(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / name, as_version=4)


def _text(notebook: nbformat.NotebookNode) -> str:
    """Return what all cells printed."""
    return "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.get("name") == "stdout"
    )


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What notebooks find of the machine: the project, and an empty directory."""
    monkeypatch.delenv("SPARKTXLOG_URL", raising=False)
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{path}".rstrip(os.pathsep))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def run(environment: None, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that runs a notebook in a kernel, and returns its text."""

    def execute(name: str) -> str:
        notebook = _stored(name)
        place = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=300, resources=place).execute()
        return _text(notebook)

    return execute


@pytest.fixture
def run_here(
    environment: None,
    spark: SparkSession,
    jobs_share_spark: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Callable[[str], str]]:
    """Return a function that runs a notebook in this process, and returns its text."""
    monkeypatch.chdir(tmp_path)
    said = StringIO()

    async def cells(name: str) -> None:
        names = {"__name__": "__main__"}
        for number, cell in enumerate(_stored(name).cells):
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{name}[{number}]", "exec"), names)

    def execute(name: str) -> str:
        with redirect_stdout(said):
            asyncio.run(cells(name))
        return said.getvalue()

    level = logging.getLogger("sparktxlog").level
    yield execute
    # Notebooks that break something on purpose make logs silent.
    logging.getLogger("sparktxlog").setLevel(level)
    spark.sparkContext.setLogLevel("WARN")


def test_the_quickstart_runs(run_here: Callable[[str], str]) -> None:
    stored, ran = _text(_stored("quickstart.ipynb")), run_here("quickstart.ipynb")
    for text in (stored, ran):
        assert "[schema-mismatch]" in text
        assert "60 transactions, 3000 rows, 1 run" in text
        assert re.search(r"\| *Edsger\| *Austin\|", text)
        assert "|committed|" in text
    # Ids, times, places and signatures are those of a run; a reader sees as many lines.
    assert len(stored.splitlines()) == len(ran.splitlines()), "it is kept with older outputs"


#: Of each account at one site, and the total.
_BALANCES = re.compile(r"site ([AB]): (\{.*\}), total (\d+)")


def _told(text: str) -> list[tuple[str, ...]]:
    """Return what a run of the bank says that is the same in each run."""
    states = _BALANCES.findall(text)
    assert [site for site, _, _ in states] == ["A", "B"] * (len(states) // 2)
    for at_a, at_b in zip(states[::2], states[1::2], strict=True):
        assert at_a[1:] == at_b[1:]
    # Until the tellers begin, even the balances are known.
    return [*states[:6], *(state[2:] for state in states[6:])]


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_bank_keeps_its_total_when_a_site_is_killed(run_here: Callable[[str], str]) -> None:
    text = run_here("bank.ipynb")
    told = _told(text)
    assert [state[-1] for state in told] == ["300"] * 2 + ["350"] * 2 + ["300"] * 6
    # Newest first: while A is down, and once it is back.
    members = re.findall(r"\|epoch\|.*\n\+.*\n\| +\d+\| *(\[[AB, ]+\])\|", text)
    assert members == ["[B]", "[A, B]"]
    assert "{'table': 'accounts', 'winner': 6, 'origin': 'A'}" in text
    signatures = re.findall(r"site [AB]: (position \d+, signature \S+)", text)
    assert len(signatures) == 2 and len(set(signatures)) == 1
    # Both queues have the conflicts that the tellers heard of, and perhaps one that the kill hid.
    noted = re.findall(r"\| +[AB]\| +\d+\| +\d+\| +[AB]\|", text)
    rejected = [int(n) for n in re.findall(r"\| +[AB]\| *rejected\| +(\d+)\|", text)]
    assert 1 <= len(noted) <= sum(rejected) / 2 <= len(noted) + 1
    stored = _text(_stored("bank.ipynb"))
    assert _told(stored) == told, "the outputs in notebooks/bank.ipynb are of an older notebook"
    assert not re.search(r"/(tmp|home|root)/", stored)


def test_a_cut_site_comes_back(run: Callable[[str], str]) -> None:
    stored = _text(_stored("cut_and_heal.ipynb"))
    for text in (stored, run("cut_and_heal.ipynb")):
        # As docs/state.md has it: nobody applies the rows.
        assert re.search(r"Node A: lagging, position \d+", text)
        assert "No worker has applied anything at site A" in text
        assert "all queues are equal: True" in text
        assert re.search(r"node A waited \d+\.\d s for node C \(promise\)", text)
        assert "epoch 2: members A, B\n" in text and "epoch 3: members A, B, C\n" in text
    assert _plots("cut_and_heal.ipynb") == 1


@pytest.mark.timeout(600)
def test_two_regions_keep_one_table_in_their_buckets(run: Callable[[str], str]) -> None:
    packages()
    stored = _text(_stored("two_regions.ipynb"))
    for text in (stored, run("two_regions.ipynb")):
        for rows in ("{1: 10, 2: 25, 3: 30}", "{1: 10, 2: 25, 3: 30, 4: 40, 5: 50}"):
            assert f"site A: {rows}\n" in text and f"site B: {rows}\n" in text
        assert "s3://flights/site-a/rows has" in text and "s3://flights/site-b/rows has" in text
        assert text.count("accepted") == 2
        assert "equal at position True" in text


def test_the_benchmarks_are_drawn(
    run: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKTXLOG_RESULTS", str(ROOT / "benchmarks" / "results.json"))
    assert re.search(r"\d+ figures, \d+ of them have a goal, \d+ meet it", run("performance.ipynb"))
    assert _plots("performance.ipynb") == 2


def test_estimates_turn_from_replay_to_copy(run: Callable[[str], str]) -> None:
    text = run("replay_or_copy.ipynb")
    assert text == _text(_stored("replay_or_copy.ipynb")), "it is kept with older outputs"
    assert " 40 GB: a copy is chosen after 5.50 h" in text
    assert _plots("replay_or_copy.ipynb") == 2


@pytest.mark.timeout(600)
def test_a_divergence_is_found_and_repaired(run_here: Callable[[str], str]) -> None:
    # Who wrote past the log is who runs it; either other site may lend its tables.
    varies = re.compile(r"by user \S+ with \S+ \S+|from [AB]\b|\|\[[AB]")
    text = varies.sub("…", run_here("finding_a_divergence.ipynb"))
    stored = _text(_stored("finding_a_divergence.ipynb"))
    assert varies.sub("…", stored) == text, "it is kept with older outputs"
    assert "table orders, site C: equal at 4, different at 5" in text
    assert "position 5: delete_where at site A" in text


def _plots(name: str) -> int:
    """Return how many plots a notebook is kept with."""
    outputs = [output for cell in _stored(name).cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)
