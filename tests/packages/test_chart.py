"""The Helm chart: linted, rendered, checked against Kubernetes' schemas; its sites fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.architecture.source_tree import ROOT
from tests.support.package_tools import check, helm

from sparktxlog.config import NodeConfig, load_config

pytestmark = pytest.mark.packages

CHART = ROOT / "deploy" / "helm" / "sparktxlog"
#: The oldest Kubernetes of the chart that the schemas have, and the newest.
KUBERNETES = ("1.29.0", "1.37.0")
SECRET, DIGEST = "0123456789abcdef", "sha256:" + "5" * 64
GIVEN = {"clusterSecret": SECRET + "1", "clientToken": SECRET + "2", "adminToken": SECRET + "3"}
EXISTING = {"existingSecret": "mine", "existing": {"adminToken": False}}


def values_of(site: str, **values: Any) -> dict[str, Any]:
    peers = [
        {"id": other, "url": f"http://{other.lower()}-sparktxlog-peers.logs.svc:7070"}
        for other in "ABC"
        if other != site
    ]
    return {"node": {"id": site}, "peers": peers, "secrets": GIVEN, **values}


def rendered(path: Path, values: dict[str, Any], release: str = "a") -> dict[str, dict[str, Any]]:
    """Return the resources by kind and name, each valid for old and new Kubernetes."""
    given = path / "values.json"
    given.write_text(json.dumps(values))
    lint = helm("lint", "--strict", str(CHART), "--values", str(given))
    assert lint.returncode == 0, lint.stdout + lint.stderr
    done = helm("template", release, str(CHART), "--namespace", "logs", "--values", str(given))
    assert done.returncode == 0, done.stderr
    out = path / "rendered.yaml"
    out.write_text(done.stdout)
    for version in KUBERNETES:
        checked = check("kubernetes_validate", "--strict", "-k", version, str(out))
        assert checked.returncode == 0, checked.stdout + checked.stderr
    found = [resource for resource in yaml.safe_load_all(done.stdout) if resource]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def config_of(path: Path, resources: dict[str, dict[str, Any]], name: str) -> NodeConfig:
    """Read the node's configuration as the node does, with the secrets that it would find."""
    text = resources[f"ConfigMap/{name}"]["data"]["node.toml"]
    for file, value in zip(("cluster.secret", "client.token", "admin.token"), "123", strict=True):
        (path / file).write_text(SECRET + value)
        (path / file).chmod(0o440)
    file = path / "node.toml"
    file.write_text(text.replace("/etc/sparktxlog/secrets", str(path)))
    return load_config(file, environ={})


def test_three_releases_are_one_cluster(tmp_path: Path) -> None:
    configs = []
    for site in "ABC":
        resources = rendered(tmp_path, values_of(site), site.lower())
        configs.append(config_of(tmp_path, resources, f"{site.lower()}-sparktxlog"))
        assert f"Service/{site.lower()}-sparktxlog-peers" in resources
    assert {config.members for config in configs} == {("A", "B", "C")}
    assert len({config.shared_hash() for config in configs}) == 1
    own, peers = configs[0].master_url, {peer.url for peer in configs[1].peers}
    assert own in peers


def test_what_a_site_consists_of(tmp_path: Path) -> None:
    resources = rendered(tmp_path, values_of("A"))
    assert sorted(resources) == [
        "ConfigMap/a-sparktxlog",
        "Deployment/a-sparktxlog-worker",
        "Pod/a-sparktxlog-whole",
        "PodDisruptionBudget/a-sparktxlog",
        "Secret/a-sparktxlog",
        "Service/a-sparktxlog",
        "Service/a-sparktxlog-peers",
        "StatefulSet/a-sparktxlog",
    ]
    node = resources["StatefulSet/a-sparktxlog"]["spec"]
    worker = resources["Deployment/a-sparktxlog-worker"]["spec"]
    labels = node["template"]["metadata"]["labels"]
    for name in ("Service/a-sparktxlog", "Service/a-sparktxlog-peers"):
        assert resources[name]["spec"]["selector"].items() <= labels.items()
    budget = resources["PodDisruptionBudget/a-sparktxlog"]["spec"]["selector"]["matchLabels"]
    assert budget.items() <= labels.items()
    assert not budget.items() <= worker["template"]["metadata"]["labels"].items()
    assert resources[f"Service/{node['serviceName']}"]["spec"]["publishNotReadyAddresses"] is True
    (claim,) = node["volumeClaimTemplates"]
    volumes = worker["template"]["spec"]["volumes"]
    assert (
        volumes[0]["persistentVolumeClaim"]["claimName"]
        == f"{claim['metadata']['name']}-a-sparktxlog-0"
    )
    (container,) = node["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    whole = resources["Pod/a-sparktxlog-whole"]
    assert whole["metadata"]["annotations"]["helm.sh/hook"] == "test"
    asked = whole["spec"]["containers"][0]["command"][-1]
    assert asked == "http://a-sparktxlog-peers.logs.svc:7070/readyz?data"
    assert resources["Service/a-sparktxlog-peers"]["spec"]["publishNotReadyAddresses"] is True


def test_images_are_named_by_digest(tmp_path: Path) -> None:
    images = {"image": {"digest": DIGEST}, "worker": {"image": {"repository": "r.example.com/w"}}}
    images["worker"]["image"]["digest"] = DIGEST
    resources = rendered(tmp_path, values_of("A", **images))
    (node,) = resources["StatefulSet/a-sparktxlog"]["spec"]["template"]["spec"]["containers"]
    (worker,) = resources["Deployment/a-sparktxlog-worker"]["spec"]["template"]["spec"][
        "containers"
    ]
    (whole,) = resources["Pod/a-sparktxlog-whole"]["spec"]["containers"]
    assert node["image"] == whole["image"] == f"sparktxlog@{DIGEST}"
    assert worker["image"] == f"r.example.com/w@{DIGEST}"
    assert rendered(tmp_path, values_of("A"))["Pod/a-sparktxlog-whole"]["spec"]["containers"][0][
        "image"
    ] == ("sparktxlog:node")


def test_a_worker_sees_the_client_token_alone(tmp_path: Path) -> None:
    resources = rendered(tmp_path, values_of("A"))
    pods = {
        kind: resources[name]["spec"]["template"]["spec"]
        for kind, name in (
            ("node", "StatefulSet/a-sparktxlog"),
            ("worker", "Deployment/a-sparktxlog-worker"),
        )
    }
    found = {
        kind: next(one["secret"] for one in pod["volumes"] if one["name"] == "secrets")
        for kind, pod in pods.items()
    }
    assert "items" not in found["node"]
    assert found["worker"]["items"] == [{"key": "client.token", "path": "client.token"}]


def test_a_network_policy_lets_in_sites_and_named_clients(tmp_path: Path) -> None:
    clients = [
        {"ipBlock": {"cidr": "10.1.0.0/16"}},
        {"namespaceSelector": {"matchLabels": {"a": "b"}}},
    ]
    policy = {"enabled": True, "clients": clients}
    resources = rendered(tmp_path, values_of("A", networkPolicy=policy))
    node = resources["NetworkPolicy/a-sparktxlog"]["spec"]
    (rule,) = node["ingress"]
    assert rule["from"][1:] == clients
    worker = resources["Deployment/a-sparktxlog-worker"]["spec"]["template"]["metadata"]["labels"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= worker.items()
    assert resources["NetworkPolicy/a-sparktxlog-worker"]["spec"]["ingress"] == []


def test_secrets_settings_and_certificates_that_are_given(tmp_path: Path) -> None:
    settings = {"tx-log-max-bytes": 53687091200, "replication.streams": 4, "eviction": "manual"}
    values = values_of(
        "A",
        node={"id": "A", "settings": settings, "url": "http://a.example.com:7070"},
        secrets=EXISTING,
        podDisruptionBudget={"scope": "cluster"},
        storage={"accessMode": "ReadWriteMany"},
    )
    resources = rendered(tmp_path, values)
    assert "Secret/a-sparktxlog" not in resources
    config = config_of(tmp_path, resources, "a-sparktxlog")
    assert config.tx_log_max_bytes == 53687091200
    assert (config.eviction, config.admin_token) == ("manual", None)
    assert config.master_url == "http://a.example.com:7070"
    worker = resources["Deployment/a-sparktxlog-worker"]["spec"]["template"]["spec"]
    assert "affinity" not in worker
    secure = rendered(tmp_path, values | {"tls": {"existingSecret": "pki"}})
    (container,) = secure["StatefulSet/a-sparktxlog"]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert (
        'tls-ca-file = "/etc/sparktxlog/tls/ca.crt"'
        in (secure["ConfigMap/a-sparktxlog"]["data"]["node.toml"])
    )


def test_a_witness_has_no_worker(tmp_path: Path) -> None:
    values = values_of("C", worker={"enabled": False})
    values["node"] = {"id": "C", "settings": {"roles": ["witness"]}}
    resources = rendered(tmp_path, values, "c")
    assert not any(name.startswith("Deployment/") for name in resources)
    assert config_of(tmp_path, resources, "c-sparktxlog").roles == ("witness",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"node": {"id": ""}}, "/node/id"),
        ({"secrets": {"clientToken": "short"}}, "/secrets"),
        ({"secrets": {}}, "/secrets"),
        ({"peers": [{"id": "B", "url": "b:7070"}]}, "/peers/0/url"),
        ({"node": {"id": "A", "settings": {"data-dir": "/x"}}}, "data-dir"),
        ({"nodes": {}}, "nodes"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
    ],
)
def test_values_that_cannot_be_are_refused(
    tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values_of("A") | wrong))
    done = helm("template", "a", str(CHART), "--values", str(given))
    assert done.returncode != 0
    assert words in done.stderr
