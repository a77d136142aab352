"""The parts of `make release` that judge: contents, links, versions, and what runs where."""

from __future__ import annotations

import tomllib

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


def test_a_chart_of_another_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = type(ROOT).read_text

    def read(path: object, *args: object, **named: object) -> str:
        text = original(path, *args, **named)  # type: ignore[arg-type]
        return text.replace("version: 0.1.0", "version: 0.0.9") if "Chart" in str(path) else text

    monkeypatch.setattr(type(ROOT), "read_text", read)
    with pytest.raises(ValueError, match=r"others say \['0.0.9'"):
        release.check_versions()


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


def test_each_extra_is_installed_on_each_python_and_spark_with_a_node_once() -> None:
    found = list(release.installations({"3.11": "/a", "3.12": None, "3.13": "/b"}))
    assert {(python, extra) for python, _, extra in found if extra != "node,spark"} == {
        (python, extra) for python in ("3.11", "3.13") for extra in release.SMOKE
    }
    assert [python for python, _, extra in found if extra == "node,spark"] == ["3.11"]


def test_each_extra_of_the_package_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(release.SMOKE) - {""} == set(project["optional-dependencies"]) - {"dev"}
