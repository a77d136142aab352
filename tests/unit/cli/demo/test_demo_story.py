"""What a demo says where Spark makes no tables, and of a directory that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.cli.demo import demo_story


def test_without_a_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Spark needs Java 17" in demo_story._why_no_spark()
    assert "openjdk-17-jre-headless" in demo_story._why_no_spark()


def test_without_pyspark_it_says_what_it_would_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_story, "find_spec", lambda _: None)
    said = demo_story._why_no_spark()
    assert "pip install 'sparktxlog[node,spark]'" in said and "Delta table" in said


def test_a_directory_that_is_kept_comes_with_how_to_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    story = demo_story.DemoStory(tmp_path, 7070, as_json=False)
    story.found |= {"equal": True}
    story.stop()
    story.say_end(kept=True)
    said = capsys.readouterr().out
    for command in (f"cd {tmp_path}", "sparktxlog serve --config site-b.toml &", "rm -r "):
        assert command in said
    assert "http://127.0.0.1:7070/" in said and "client.token" in said
