"""Delta's JARs: taken from local files or the list of an earlier start, else resolved."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.api.session import (
    DELTA_PACKAGE,
    IVY_VARIABLE,
    JARS_VARIABLE,
    jar_cache,
    jar_settings,
    known_jars,
    language_settings,
    remember_jars,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache."""
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    monkeypatch.setenv(IVY_VARIABLE, str(tmp_path / "ivy"))
    return tmp_path / "ivy"


def test_an_empty_cache_lets_spark_resolve(cache: Path) -> None:
    settings = jar_settings()
    assert settings["spark.jars.packages"] == DELTA_PACKAGE
    assert settings["spark.jars.ivy"] == str(cache)
    assert Path(settings["spark.jars.ivySettings"]).is_file()


def test_what_was_resolved_is_taken_from_the_list(cache: Path) -> None:
    jar_settings()
    jars = [cache / "a.jar", cache / "b.jar"]
    for jar in jars:
        jar.touch()
    remember_jars(",".join(f"file://{jar}" for jar in jars))
    assert jar_settings() == {"spark.jars": f"file://{jars[0]},file://{jars[1]}"}
    jars[1].unlink()
    assert known_jars() == ""
    assert "spark.jars.packages" in jar_settings()


def test_local_jars_win(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv(JARS_VARIABLE, "/x/a.jar,/x/b.jar")
    assert jar_settings() == {"spark.jars": "/x/a.jar,/x/b.jar"}
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IVY_VARIABLE, "/dev/null/ivy")
    remember_jars("file:///a.jar")
    assert known_jars() == ""


def test_the_default_cache_is_in_the_users_cache_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(IVY_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jar_cache() == tmp_path / "sparktxlog" / "ivy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jar_cache() == tmp_path / ".cache" / "sparktxlog" / "ivy"


def test_new_jvms_have_a_language_with_plain_digits() -> None:
    for plain in ({}, {"LANG": "C.UTF-8"}, {"LANG": "en_GB.UTF-8"}, {"LC_ALL": "C", "LANG": "ar"}):
        assert language_settings({}, plain) == {}
    driver, executor = (f"spark.{part}.extraJavaOptions" for part in ("driver", "executor"))
    option = "-Duser.language=en"
    found = language_settings({}, {"LC_CTYPE": "ar_EG.UTF-8", "LANG": "en_US.UTF-8"})
    assert found == {driver: option, executor: option}
    given = {driver: "-Xss4m", "spark.ui.enabled": "true"}
    assert language_settings(given, {"LANG": "fa"})[driver] == f"{option} -Xss4m"
