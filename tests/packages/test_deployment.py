"""deploy/ and the units of conf/: one layout everywhere, and sites that find each other."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.architecture.source_tree import ROOT, committed_files
from tests.support.node_processes import free_ports, wait_until

from sparktxlog.config import load_config

DEPLOY = ROOT / "deploy"
#: Where programs, configuration and state are, in images, units, charts and pages.
LAYOUT = re.compile(
    r"/opt/sparktxlog(/(venv(/bin(/\w+)?)?|ivy|conf/[\w@.-]+|jobs|spark-submit\.sh))?|"
    r"/etc/sparktxlog(/(node\.toml|\w+\.env|(secrets|client|tls)(/[\w.]+)?))?|"
    r"/var/lib/sparktxlog(/(data|spark))?|/var/log/sparktxlog/\w+\.log"
)


def test_paths_are_the_same_everywhere() -> None:
    texts = {
        path: path.read_text()
        for path in committed_files()
        if path.is_relative_to(DEPLOY) or path.is_relative_to(ROOT / "conf") or path.suffix == ".md"
    }
    found = {
        (str(path.relative_to(ROOT)), place)
        for path, text in texts.items()
        for place in re.findall(r"/(?:opt|etc|var/lib|var/log)/sparktxlog[\w/.@-]*", text)
    }
    assert len(found) > 20
    assert [item for item in sorted(found) if not LAYOUT.fullmatch(item[1].rstrip("./"))] == []


def test_the_context_of_images_has_what_the_installation_reads() -> None:
    """A file that .dockerignore leaves out would be missed only where an image is built."""
    kept = [
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    read = set(re.findall(r'"\$here/([\w.-]+)"', (DEPLOY / "install.sh").read_text()))
    assert {"src", "jobs", "conf", "constraints.txt"} <= read
    assert [name for name in sorted(read) if not any(fnmatch.fnmatch(name, k) for k in kept)] == []
    assert [name for name in kept if not (ROOT / name).exists()] == []


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """Return a compose file, its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return found


def test_each_site_has_a_node_and_a_worker_on_one_volume() -> None:
    services = compose()["services"]
    assert set(services) == {"secrets"} | {f"{k}-{s}" for k in ("node", "worker") for s in "abc"}
    for site in "abc":
        node, worker = services[f"node-{site}"], services[f"worker-{site}"]
        assert f"site-{site}:/var/lib/sparktxlog" in node["volumes"]
        assert f"site-{site}:/var/lib/sparktxlog" in worker["volumes"]
        # Of the secrets a worker sees the client token alone.
        assert "client-token:/etc/sparktxlog/secrets:ro" in worker["volumes"]
        assert not any(volume.startswith("secrets:") for volume in worker["volumes"])
        assert (
            worker["environment"]["SPARKTXLOG_URL"] == node["environment"]["SPARKTXLOG_MASTER_URL"]
        )
        assert worker["depends_on"][f"node-{site}"]["condition"] == "service_healthy"
        for service in (node, worker):
            assert service["read_only"] and service["cap_drop"] == ["ALL"]
            assert {volume.split(":")[0] for volume in service["volumes"]} <= set(
                compose()["volumes"]
            )
    text = (DEPLOY / "Dockerfile").read_text()
    assert all(f"AS {s['build']['target']}\n" in text for s in services.values())
    assert "/readyz" in text


def test_with_buckets_each_site_has_a_prefix_of_its_own(tmp_path: Path) -> None:
    """What compose.s3.yaml adds: nodes, workers and the store agree on place and credentials."""
    services, over = compose()["services"], compose("compose.s3.yaml")["services"]
    assert set(over) == {"store", "store-secret"} | (set(services) - {"secrets"})
    secrets, client = tmp_path / "secrets", tmp_path / "client"
    secrets.mkdir()
    client.mkdir()
    made = set[str]()
    for service in [services["secrets"], over["store-secret"], over["store-secret"]]:
        (script,) = service["command"]
        program = script.replace("/etc/sparktxlog/secrets", str(secrets))
        program = program.replace("/etc/sparktxlog/client", str(client))
        subprocess.run([sys.executable, "-c", program], check=True)
        made |= {path.read_text() for path in tmp_path.glob("*/store.env")}
    assert len(made) == 1, "what is there stays, and the workers have the same"
    credentials = secrets / "store.env"
    assert re.fullmatch(r"AWS_ACCESS_KEY_ID=\w+\nAWS_SECRET_ACCESS_KEY=\w{48}\n", made.pop())
    assert credentials.stat().st_mode & 0o777 == 0o600
    urls = set[str]()
    for site in "abc":
        added = over[f"node-{site}"]["environment"]
        environ = services[f"node-{site}"]["environment"] | added
        text = "\n".join(f"{key}={value}" for key, value in environ.items())
        text = text.replace("/etc/sparktxlog/secrets", str(secrets))
        values = dict(line.split("=", 1) for line in text.splitlines())
        config = load_config(environ=values | {"SPARKTXLOG_DATA_DIR": str(tmp_path / site)})
        assert config.store_credentials_file == credentials and config.store_allow_http
        urls |= {str(config.lake_url), str(config.commit_table_url)}
        worker = over[f"worker-{site}"]
        assert worker["environment"]["AWS_ENDPOINT_URL"] == config.store_endpoint
        assert worker["environment"]["AWS_REGION"] == config.store_region
        assert worker["environment"]["SPARKTXLOG_STORES"] == "s3"
        assert worker["build"]["args"] == over[f"node-{site}"]["build"]["args"] == {"STORES": "s3"}
        assert config.store_endpoint == "http://store:8333"
    assert urls == {f"s3://lake/site-{s}/{kind}" for s in "abc" for kind in ("rows", "commits")}
    command = over["store"]["command"][-1]
    assert "-bucket=lake -s3.port=8333 " in command and "-ip=store " in command


@pytest.mark.e2e
def test_the_nodes_of_the_compose_file_find_each_other(tmp_path: Path) -> None:
    """The environment of each service, run as a process; names of hosts become ports here."""
    services = compose()["services"]
    secrets, client = tmp_path / "secrets", tmp_path / "client"
    secrets.mkdir()
    client.mkdir()
    (script,) = services["secrets"]["command"]
    for _ in range(2):  # what is there stays
        made = {path.name: path.read_text() for path in secrets.iterdir()}
        program = script.replace("/etc/sparktxlog/secrets", str(secrets))
        program = program.replace("/etc/sparktxlog/client", str(client))
        subprocess.run([sys.executable, "-c", program], check=True)
    assert {path.name: path.read_text() for path in secrets.iterdir()} == made
    assert len(made) == len(set(made.values())) == 3
    assert {path.name: path.read_text() for path in client.iterdir()} == {
        "client.token": made["client.token"]
    }
    names = [f"node-{site}" for site in "abc"]
    ports = dict(zip(names, free_ports(3), strict=True))
    environments = {}
    for name in names:
        values = services[name]["environment"]
        text = "\n".join(f"{key}={value}" for key, value in values.items())
        for other, port in ports.items():
            text = text.replace(f"//{other}:7070", f"//127.0.0.1:{port}")
        text = text.replace("0.0.0.0:7070", f"127.0.0.1:{ports[name]}")
        text = text.replace("/etc/sparktxlog/secrets", str(secrets))
        home = tmp_path / name
        environments[name] = dict(line.split("=", 1) for line in text.splitlines()) | {
            "SPARKTXLOG_DATA_DIR": str(home / "data"),
            "HOME": str(home),
            "XDG_CONFIG_HOME": "",
        }
    configs = [load_config(environ=environ) for environ in environments.values()]
    assert {config.members for config in configs} == {("A", "B", "C")}
    assert len({config.shared_hash() for config in configs}) == 1
    command = [sys.executable, "-m", "sparktxlog.cli"]
    base = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    logs = [(tmp_path / f"{name}.log").open("wb") for name in names]
    started = [
        subprocess.Popen([*command, "serve"], env=base | environ, stdout=log, stderr=log)
        for environ, log in zip(environments.values(), logs, strict=True)
    ]
    try:
        for name, port in ports.items():
            url = f"http://127.0.0.1:{port}"
            _wait_ready(url)
            # Worker and commands of the site find the token by the note in their common home.
            environ = base | environments[name] | {"SPARKTXLOG_URL": url}
            for variable in [key for key in environ if key.endswith("_TOKEN_FILE")]:
                del environ[variable]
            status = subprocess.run(
                [*command, "status", "--json"], env=environ, capture_output=True, text=True
            )
            assert '"NORMAL"' in status.stdout, status.stderr
    finally:
        for process in started:
            process.terminate()
        codes = [process.wait(60) for process in started]
        for log in logs:
            log.close()
    assert codes == [0, 0, 0], "SIGTERM is a clean end"


def _wait_ready(url: str) -> None:
    def ready() -> bool:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)

    wait_until(ready, what=f"{url} is ready")
