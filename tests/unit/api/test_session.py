"""Settings of a Spark session's JVM: its language."""

from __future__ import annotations

from sparktxlog.api.session import language_settings


def test_new_jvms_have_a_language_with_plain_digits() -> None:
    for plain in ({}, {"LANG": "C.UTF-8"}, {"LANG": "en_GB.UTF-8"}, {"LC_ALL": "C", "LANG": "ar"}):
        assert language_settings({}, plain) == {}
    driver, executor = (f"spark.{part}.extraJavaOptions" for part in ("driver", "executor"))
    option = "-Duser.language=en"
    found = language_settings({}, {"LC_CTYPE": "ar_EG.UTF-8", "LANG": "en_US.UTF-8"})
    assert found == {driver: option, executor: option}
    given = {driver: "-Xss4m", "spark.ui.enabled": "true"}
    assert language_settings(given, {"LANG": "fa"})[driver] == f"{option} -Xss4m"
