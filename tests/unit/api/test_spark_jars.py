"""JARs of Spark sessions: which are wanted, taken from a list or local files, else resolved."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.architecture.source_tree import PACKAGE

from sparktxlog.api import spark_jars
from sparktxlog.api.spark_jars import (
    IVY_VARIABLE,
    JARS_VARIABLE,
    STORES,
    jar_cache,
    jar_list,
    known_jars,
    packages,
    resolved_jars,
    store_settings,
    stores_of,
)
from sparktxlog.errors import ConfigError, InvalidRequestError, MissingDependencyError

_S3A = "org.apache.hadoop.fs.s3a."
#: Stands in for `spark-submit`: notes what it was asked for, and names the JARs or fails.
_SUBMIT = """#!{python}
import os, sys
from pathlib import Path
home = Path(sys.argv[0]).parents[1]
with (home / "asked").open("a") as asked:
    asked.write("\\n".join(sys.argv[1:]) + "\\n")
jars = (home / "jars").read_text() if (home / "jars").exists() else ""
if not jars:
    print(":: module not found: org.example#absent;1")
    sys.exit(1)
Path(sys.argv[-1]).write_text(jars)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and a Spark that resolves nothing."""
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    monkeypatch.setenv(IVY_VARIABLE, str(tmp_path / "ivy"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(_SUBMIT.format(python=sys.executable))
    submit.chmod(0o755)
    return tmp_path / "ivy"


def _made_jars(cache: Path, stores: tuple[str, ...]) -> list[Path]:
    """Make files as Spark's resolver names them."""
    cache.mkdir(exist_ok=True)
    jars = [cache / "{}_{}-{}.jar".format(*one.split(":")) for one in packages("4.2", stores)]
    for jar in jars:
        jar.touch()
    return jars


def test_stores_are_named_or_taken_from_urls() -> None:
    assert stores_of([]) == stores_of([""]) == ()
    assert stores_of(["s3, azure", "s3"]) == ("azure", "s3")
    for store, schemes in STORES.items():
        for scheme in schemes:
            assert stores_of([f"{scheme}://bucket/table"]) == (store,)
    assert stores_of(["/data/a,b", "file:///data", "hdfs://host/data", "S3://bucket"]) == ("s3",)
    with pytest.raises(InvalidRequestError, match="azure, gcs, s3") as caught:
        stores_of(["s3,minio"])
    assert (caught.value.fields["field"], caught.value.fields["value"]) == ("stores", "minio")


def test_each_store_adds_its_connector_of_the_release_of_hadoop_that_spark_has() -> None:
    assert packages("4.2") == ("io.delta:delta-spark_4.2_2.13:4.4.0",)
    for spark, hadoop in (("4.1", "3.4.2"), ("4.2", "3.5.0")):
        assert f"org.apache.hadoop:hadoop-aws:{hadoop}" in packages(spark, ["s3"])
        assert f"org.apache.hadoop:hadoop-azure:{hadoop}" in packages(spark, ["azure"])
    both = packages("4.2", ["azure", "s3"])
    assert len(both) == len(set(both))
    assert set(both) == {*packages("4.2", ["azure"]), *packages("4.2", ["s3"])}
    # No SDK as one JAR of 600 MB.
    assert not [one for one in packages("4.2", STORES) if ":bundle:" in one]


def test_the_resolver_waits_for_no_registry_for_ever() -> None:
    settings = ET.parse(PACKAGE / "api" / "ivysettings.xml")
    bounds = {one.get("name"): one for one in settings.iter("timeout-constraint")}
    remote = list(settings.iter("ibiblio"))
    assert remote and {one.get("timeoutConstraint") for one in remote} == set(bounds)
    for one in bounds.values():
        assert 0 < int(one.get("connectionTimeout", "0")) <= int(one.get("readTimeout", "0"))


def test_one_process_at_a_time_resolves_and_the_others_take_what_it_found(
    cache: Path, tmp_path: Path
) -> None:
    line = ",".join(f"file://{jar}" for jar in _made_jars(cache, ("s3",)))
    (tmp_path / "jars").write_text(line)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(resolved_jars, "4.2", ["s3"]) for _ in range(8)]
        assert {one.result() for one in asked} == {line}
    assert (tmp_path / "asked").read_text().splitlines().count("--packages") == 1


def test_the_resolver_reads_no_pom_of_a_connector() -> None:
    """Else it fetches what `packages` leaves out."""
    settings = ET.parse(PACKAGE / "api" / "ivysettings.xml")
    without = {one.get("name") for one in settings.iter("ibiblio") if one.get("usepoms") == "false"}
    modules = {
        (one.get("organisation"), one.get("name")): one.get("resolver")
        for one in settings.iter("module")
    }
    for one in packages("4.2", STORES):
        group, artifact, _ = one.split(":")
        if artifact.startswith(("hadoop-", "gcs-")):
            assert modules[group, artifact] in without


def test_jars_are_resolved_once_and_then_taken_from_the_list(cache: Path, tmp_path: Path) -> None:
    jars = _made_jars(cache, ("s3",))
    line = ",".join(f"file://{jar}" for jar in jars)
    (tmp_path / "jars").write_text(line)
    assert known_jars("4.2", ["s3"]) == ""
    assert resolved_jars("4.2", ["s3"]) == line
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[asked.index("--packages") + 1] == ",".join(packages("4.2", ["s3"]))
    assert f"spark.jars.ivy={cache}" in asked
    (tmp_path / "asked").unlink()
    assert resolved_jars("4.2", ["s3"]) == known_jars("4.2", ["s3"]) == line
    assert not (tmp_path / "asked").exists()
    # The list is of this set of stores, and of this release of Spark.
    assert known_jars("4.2") == known_jars("4.1", ["s3"]) == ""
    jars[-1].unlink()
    assert known_jars("4.2", ["s3"]) == ""


def test_a_cache_may_have_a_blank_in_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark names JARs by URLs, where a blank is quoted: else it would resolve at each start."""
    cache = tmp_path / "my ivy"
    monkeypatch.setenv(IVY_VARIABLE, str(cache))
    line = ",".join(jar.as_uri() for jar in _made_jars(cache, ()))
    assert "%20" in line
    jar_list("4.2").write_text(line)
    assert known_jars("4.2") == line
    for url in (line, line.replace("file://", "file:")):
        monkeypatch.setenv(JARS_VARIABLE, url)
        assert resolved_jars("4.2") == url


def test_a_list_of_other_versions_is_not_taken(cache: Path) -> None:
    jars = _made_jars(cache, ())
    other = jars[0].with_name("io.delta_delta-spark_4.2_2.13-4.3.0.jar")
    jars[0].rename(other)
    jar_list("4.2").write_text(f"file://{other}\n")
    assert known_jars("4.2") == ""


def test_what_cannot_be_resolved_names_packages_places_and_the_command(cache: Path) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        resolved_jars("4.2", ["azure", "s3"])
    said = str(caught.value)
    for words in (
        "hadoop-aws:3.5.0",
        "module not found: org.example#absent;1",
        str(cache),
        "SPARKTXLOG_STORES=azure,s3 ./spark-submit.sh --resolve",
        JARS_VARIABLE,
    ):
        assert words in said
    assert caught.value.definite
    assert list(cache.glob("*.jars")) == []


def test_local_jars_win_and_must_be_there(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    given = f"file://{jar},https://example.com/b.jar"
    monkeypatch.setenv(JARS_VARIABLE, given)
    assert resolved_jars("4.2", ["s3"]) == given
    assert not cache.exists()
    jar.unlink()
    with pytest.raises(MissingDependencyError, match="delta-spark") as caught:
        resolved_jars("4.2", ["s3"])
    assert str(jar) in str(caught.value)


def test_a_cache_that_cannot_be_written_is_an_error_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(IVY_VARIABLE, "/dev/null/ivy")
    with pytest.raises(MissingDependencyError, match="/dev/null/ivy"):
        resolved_jars("4.2")


def test_the_default_cache_is_in_the_users_cache_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(IVY_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jar_cache() == tmp_path / "sparktxlog" / "ivy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jar_cache() == tmp_path / ".cache" / "sparktxlog" / "ivy"


def test_settings_come_from_the_variables_of_aws_and_have_no_secret() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "an id",
        "AWS_SECRET_ACCESS_KEY": "a secret",
        "AWS_SESSION_TOKEN": "a token",
    }
    found = store_settings(["s3"], environ)
    assert found["spark.hadoop.fs.s3.impl"] == f"{_S3A}S3AFileSystem"
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert not {"an id", "a secret", "a token"} & set(found.values())
    amazon = store_settings(["s3"], {"AWS_REGION": "us-west-2"})
    assert not [key for key in amazon if key.endswith(("s3a.endpoint", "path.style.access"))]
    hosted = environ | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}
    assert store_settings(["s3"], hosted)["spark.hadoop.fs.s3a.path.style.access"] == "false"
    own = environ | {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9001"}
    assert store_settings(["s3"], own)["spark.hadoop.fs.s3a.endpoint"].endswith("9001")


def test_who_pays_and_which_key_encrypts_are_as_the_environment_says() -> None:
    pays, kms = "spark.hadoop.fs.s3a.requester.pays.enabled", "spark.hadoop.fs.s3a.encryption."
    found = store_settings(["s3"], {"AWS_REQUEST_PAYER": "requester"})
    assert found[pays] == "true" and not [key for key in found if key.startswith(kms)]
    assert pays not in store_settings(["s3"], {"AWS_REQUEST_PAYER": "false"})
    environ = {"AWS_SERVER_SIDE_ENCRYPTION": "aws:kms", "AWS_SSE_KMS_KEY_ID": "arn:aws:kms:x"}
    found = store_settings(["s3"], environ)
    assert (found[f"{kms}algorithm"], found[f"{kms}key"]) == ("SSE-KMS", "arn:aws:kms:x")
    assert store_settings(["azure"], environ) == {}
    google = store_settings(["gcs"], environ)
    assert "spark.hadoop.fs.gs.impl" in google
    assert google["spark.hadoop.fs.gs.block.size"] == "67108864"


def test_a_spark_without_jars_of_delta_is_refused_by_its_release() -> None:
    with pytest.raises(MissingDependencyError, match=r"no JARs for Spark 4\.3") as caught:
        resolved_jars("4.3")
    assert "4.1 or 4.2" in caught.value.hint and caught.value.fields["release"] == "4.3"


def test_an_endpoint_with_a_password_is_refused_without_it() -> None:
    with pytest.raises(ConfigError) as caught:
        store_settings(["s3"], {"AWS_ENDPOINT_URL": "http://me:hidden@127.0.0.1"})
    assert "hidden" not in str(caught.value)
    assert caught.value.fields["field"] == "AWS_ENDPOINT_URL"


def test_spark_submit_gets_the_jars_and_then_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    arguments = ["spark_jars", "--spark", "4.2", "--stores", ",s3"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--known"])
    assert spark_jars.main() == 0
    assert capsys.readouterr().out.splitlines()[0] == f"$(cat {jar_list('4.2', ['s3'])})"
    monkeypatch.setenv(JARS_VARIABLE, str(jar))
    monkeypatch.setattr(sys, "argv", arguments)
    assert spark_jars.main() == 0
    jars, *settings = capsys.readouterr().out.splitlines()
    assert jars == str(jar)
    assert settings == [f"{k}={v}" for k, v in store_settings(["s3"], os.environ).items()]
    monkeypatch.setattr(sys, "argv", [*arguments[:-1], "minio"])
    assert spark_jars.main() == 1
    assert "minio" in capsys.readouterr().err
