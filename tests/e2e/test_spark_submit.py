"""spark-submit.sh: what it starts, what it says when something is missing, the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.architecture.source_tree import ROOT

pytestmark = pytest.mark.e2e

SCRIPT = ROOT / "spark-submit.sh"


def submit(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter; return what it said."""
    kept = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_CONF_DIR")}
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env={**kept, "SPARKTXLOG_PYTHON": sys.executable, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_help_and_no_arguments() -> None:
    helped, bare = submit("--help"), submit()
    assert (helped.returncode, bare.returncode) == (0, 2)
    assert "SPARKTXLOG_JARS" in helped.stdout
    assert "SPARKTXLOG_JARS" in bare.stderr


def test_the_command_has_jars_and_hands_arguments_on(tmp_path: Path) -> None:
    jar = tmp_path / "delta.jar"
    jar.touch()
    found = submit("--print-command", "job.py", "--url", "a b", SPARKTXLOG_JARS=str(jar))
    assert found.returncode == 0, found.stderr
    assert f"--jars {jar}" in found.stdout
    assert found.stdout.rstrip().endswith(r"job.py --url a\ b")
    assert "--py-files" not in found.stdout


def test_a_cluster_gets_the_package_as_a_zip(tmp_path: Path) -> None:
    import zipfile

    jar = tmp_path / "delta.jar"
    jar.touch()
    found = submit(
        "--print-command",
        "--master",
        "spark://h:7077",
        "job.py",
        SPARKTXLOG_JARS=str(jar),
        SPARKTXLOG_IVY=str(tmp_path / "ivy"),
    )
    assert found.returncode == 0, found.stderr
    archive = tmp_path / "ivy" / "sparktxlog.zip"
    assert f"--py-files {archive}" in found.stdout
    with zipfile.ZipFile(archive) as opened:
        assert "sparktxlog/api/session.py" in opened.namelist()


def test_jars_and_files_that_are_given_come_with_those_of_delta(tmp_path: Path) -> None:
    jar = tmp_path / "delta.jar"
    jar.touch()
    env = {"SPARKTXLOG_JARS": str(jar), "SPARKTXLOG_IVY": str(tmp_path / "ivy")}
    end = ("job.py", "--jars", "c.jar")
    for given in (
        ("--jars", "a.jar,b.jar", "--py-files=x.py"),
        ("--py-files", "x.py", "--jars=a.jar", "--jars", "b.jar"),
        ("--conf", "spark.jars=a.jar,b.jar", "--conf=spark.submit.pyFiles=x.py"),
    ):
        found = submit("--print-command", *given, *end, **env).stdout
        assert found.count(f"--jars {jar},a.jar,b.jar ".replace(",", r"\,")) == 1, found
        assert "--py-files x.py " in found
        assert found.rstrip().endswith(" job.py --jars c.jar")
        assert found.count("--jars ") == 2 and found.count("--py-files ") == 1
    far = submit("--print-command", "--master", "spark://h:1", "--py-files", "x.py", *end, **env)
    assert rf"--py-files {tmp_path}/ivy/sparktxlog.zip\,x.py " in far.stdout


def test_own_spark_configuration_is_kept(tmp_path: Path) -> None:
    jar = tmp_path / "delta.jar"
    jar.touch()
    found = submit(
        "--print-command", "job.py", SPARKTXLOG_JARS=str(jar), SPARK_CONF_DIR=str(tmp_path)
    )
    assert "--load-spark-defaults --properties-file" in found.stdout


def test_stores_of_a_job_and_of_the_environment_become_settings(tmp_path: Path) -> None:
    jar = tmp_path / "delta.jar"
    jar.touch()
    env = {"SPARKTXLOG_JARS": str(jar), "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    for given in (("job.py", "--stores", "azure,s3"), ("job.py", "--stores=s3")):
        found = submit("--print-command", *given, **env)
        assert "--conf spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:1" in found.stdout, found
        assert "fs.gs" not in found.stdout
    both = submit("--print-command", "job.py", "--stores", "s3", SPARKTXLOG_STORES="gcs", **env)
    assert "fs.s3a.endpoint" in both.stdout and "fs.gs.impl" in both.stdout
    # Without them, and for an option of another name, all is as it was.
    assert "spark.hadoop" not in submit("--print-command", "job.py", "--table", "s3", **env).stdout
    wrong = submit("job.py", "--stores", "minio", **env)
    assert wrong.returncode == 1
    assert "there is no object store 'minio'" in wrong.stderr


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SPARKTXLOG_JARS": "/nowhere/delta.jar"}, ("/nowhere/delta.jar", "delta-spark")),
        ({"SPARKTXLOG_PYTHON": "/nowhere/python"}, ("/nowhere/python", "3.11")),
        ({"SPARK_HOME": "/nowhere/spark"}, ("/nowhere/spark", "SPARK_HOME")),
        ({"JAVA_HOME": "/nowhere/jdk"}, ("/nowhere/jdk", "Java 17")),
    ],
)
def test_what_is_missing_is_named(env: dict[str, str], words: tuple[str, ...]) -> None:
    found = submit("job.py", **env)
    assert found.returncode == 1, found.stderr
    for word in words:
        assert word in found.stderr


@pytest.mark.spark
def test_jars_that_cannot_be_resolved_are_named_with_the_way_out(tmp_path: Path) -> None:
    """An empty cache and a network that refuses everything."""
    closed = " ".join(
        f"-D{kind}.proxyHost=127.0.0.1 -D{kind}.proxyPort=9" for kind in ("http", "https")
    )
    found = submit(
        "--resolve",
        SPARKTXLOG_IVY=str(tmp_path),
        JAVA_TOOL_OPTIONS=f"{closed} -Duser.home={tmp_path}",
        SPARKTXLOG_JARS="",
    )
    assert found.returncode == 1, found.stderr
    for words in ("io.delta:delta-spark", "not found", str(tmp_path), "SPARKTXLOG_JARS"):
        assert words in found.stderr
    # No list of JARs is left that a later start would trust.
    assert list(tmp_path.glob("*.jars")) == []


@pytest.mark.spark
def test_a_job_writes_delta_and_its_exit_code_is_handed_through(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import sys\n"
        "from sparktxlog.api.jobs.progress_lines import say, start_logging\n"
        "from sparktxlog.api.session import build_session\n"
        "spark = build_session(master=None)\n"
        f"spark.range(3).write.format('delta').save({str(tmp_path / 'table')!r})\n"
        "print(spark.sparkContext.master, spark.conf.get('spark.sql.session.timeZone'))\n"
        # Spark merges a driver's stderr into its stdout, which script and job undo.
        "start_logging()\n"
        "say('for people')\n"
        "sys.exit(3)\n"
    )
    found = submit("--master", "local[1]", str(job))
    assert found.returncode == 3, found.stderr[-2000:]
    assert found.stdout == "local[1] UTC\n"
    assert "for people\n" in found.stderr
    assert (tmp_path / "table" / "_delta_log").is_dir()
