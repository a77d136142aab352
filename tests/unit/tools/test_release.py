"""The parts of `make release` that judge: contents, links, versions, and what runs where."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.source_tree import ROOT
from tools import release

import sparktxlog


def test_links_of_the_readme_lead_to_the_home_of_the_release() -> None:
    text = "[limits](docs/limits.md#x), [this](#start), [spec](https://b.example), ![p](docs/p.svg)"
    home = release.linked(text, "https://a.example/v1")
    assert "[limits](https://a.example/v1/docs/limits.md#x)" in home
    assert "[this](#start)" in home and "[spec](https://b.example)" in home
    assert "![p](https://a.example/v1/docs/p.svg)" in home


def test_without_a_home_no_link_leads_nowhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert release.linked("[limits](docs/limits.md), ![two sites](docs/p.svg)", "") == (
        "limits, two sites"
    )
    assert "](docs/" in text and "](docs/" not in release.linked(text, "")


def test_a_release_with_a_home_has_addresses_of_pages_that_are_there() -> None:
    text = (ROOT / "pyproject.toml").read_text() + release.urls_of("https://a.example/v1")
    urls = tomllib.loads(text)["project"]["urls"]
    assert urls["Documentation"] == "https://a.example/v1/docs/index.md"
    for url in urls.values():
        assert (ROOT / url.removeprefix("https://a.example/v1/")).is_file()


def test_a_wheel_that_is_built_with_a_home_names_its_pages(tmp_path: Path) -> None:
    """From the committed files, by the real backend."""
    home = "https://example.org/sparktxlog/v1"
    (out := tmp_path / "out").mkdir()
    _, wheel = release.build(tmp_path, out, home)
    assert release.check_urls(wheel, home) == f"3 pages below {home}"
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith("/METADATA"))
        text = file.read(name).decode()
    assert f"Project-URL: Documentation, {home}/docs/index.md" in text
    assert f"]({home}/docs/limits.md" in text and "](docs/" not in text
    with pytest.raises(ValueError, match="not \\[\\]"):
        release.check_urls(wheel, "")


def test_a_wheel_without_pages_is_left_out_with_how_to_name_them(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("a-1.dist-info/METADATA", "Name: a\n")
    with pytest.raises(release.LeftOutError, match='make release RELEASE_ARGS="--home URL"'):
        release.check_urls(wheel, "")
    with pytest.raises(ValueError, match="names \\[\\], not"):
        release.check_urls(wheel, "https://example.org")


def test_a_wheel_with_a_lost_or_a_foreign_file_is_found() -> None:
    sources = ["sparktxlog/__init__.py", "sparktxlog/static/a.js"]
    metadata = ["sparktxlog-1.dist-info/METADATA", "sparktxlog-1.dist-info/licenses/LICENSE"]
    assert release.wheel_problems([*sources, *metadata], sources) == []
    found = release.wheel_problems(["sparktxlog/__init__.py", "tests/a.py", metadata[0]], sources)
    assert found == ["lacks sparktxlog/static/a.js", "has tests/a.py", "lacks the license"]


def test_a_source_without_a_page_is_found() -> None:
    committed = ["docs/a.md", "jobs/apply.py", "CHANGELOG.md", "tests/test_a.py"]
    names = ["sparktxlog-1", "sparktxlog-1/docs/a.md", "sparktxlog-1/CHANGELOG.md"]
    assert release.source_problems(names, committed) == ["lacks jobs/apply.py"]


def test_all_that_is_released_has_one_version() -> None:
    assert release.check_versions() == sparktxlog.__version__


@pytest.mark.parametrize(
    ("file", "said"), [("Chart.yaml", "version: 0.1.0"), ("dbt_project.yml", 'version: "0.1.0"')]
)
def test_another_version_is_found_and_the_other_checks_are_made(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    file: str,
    said: str,
) -> None:
    original = type(ROOT).read_text

    def read(path: object, *args: object, **named: object) -> str:
        text = original(path, *args, **named)  # type: ignore[arg-type]
        return text.replace(said, said.replace("0.1.0", "0.0.9")) if file in str(path) else text

    def broken(*_: object) -> tuple[Path, Path]:
        raise RuntimeError("no build")

    monkeypatch.setattr(type(ROOT), "read_text", read)
    monkeypatch.setattr(release, "_run", lambda *_, **__: "")  # no changes in the tree
    monkeypatch.setattr(release, "build", broken)
    monkeypatch.setattr(release, "check_chart", lambda _, version: f"chart {version}")
    assert release.main(["--only-build", "--out", str(tmp_path)]) == 1
    table = capsys.readouterr().out
    assert re.search(r"one version \| FAILED \|.* others say \['0.0.9'", table)
    assert "| wheel and source | FAILED | no build |" in table
    assert f"| chart | good | chart {sparktxlog.__version__} |" in table


def test_the_report_tells_failed_from_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    report = release.Report()

    def absent() -> str:
        raise release.LeftOutError("no docker")

    assert report.check("wheel", lambda: "1 MB")
    assert not report.check("image", absent)
    assert not report.failed
    assert not report.check("twine", lambda: str(1 // 0))
    assert report.failed
    assert "| image | left out | no docker |" in report.table()
    assert "| twine | FAILED | integer division" in report.table()
    assert "FAILED" in capsys.readouterr().out


def test_each_extra_is_installed_on_each_python_and_spark_with_a_node() -> None:
    found = list(release.installations({"3.11": "/a", "3.12": None, "3.13": "/b"}))
    assert {(python, extra) for python, _, extra in found} == {
        (python, extra) for python in ("3.11", "3.13") for extra in (*release.SMOKE, "node,spark")
    }


def test_a_demo_without_tables_is_a_failure_only_where_spark_could_make_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: dict[str, Any] = {
        "equal": True,
        "spark": None,
        "seconds": 9.6,
        "exit_codes": {"A": 0, "B": 0},
        "steps": [
            {"step": "order", "order": [{"position": 1}]},
            {"step": "tables", "said": "Left out: there is no java"},
        ],
    }
    monkeypatch.setattr(release, "_run", lambda *_, **__: f"noise\n{json.dumps(found)}\n")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/java")
    assert release.demo_of(tmp_path, tmp_path, "node") == "demo: two sites, 1 positions, 10 s"
    with pytest.raises(RuntimeError, match="made no tables: Left out"):
        release.demo_of(tmp_path, tmp_path, "node,spark")
    found["spark"] = "4.2.0"
    assert "equal tables by Spark 4.2.0" in release.demo_of(tmp_path, tmp_path, "node,spark")
    found["exit_codes"] = {"A": 0, "B": -9}
    with pytest.raises(RuntimeError, match="-9"):
        release.demo_of(tmp_path, tmp_path, "node")


def test_each_extra_of_the_package_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(release.SMOKE) - {""} == set(project["optional-dependencies"]) - {"dev"}
