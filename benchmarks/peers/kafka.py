"""Kafka: KRaft brokers that are controllers, too, as Kafka's own scripts start them."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cluster import free_port
from benchmarks.peers.peer import OPEN, SENDERS, Peer
from benchmarks.peers.places import JAVA_SOURCES, KAFKA, PeerMissingError, found
from benchmarks.peers.processes import Servers

#: Options of kafka-server-start.sh and kafka-run-class.sh.
_BROKER = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)
_LOG = """
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
"""


class Brokers:
    """Brokers that run.

    Args:
        relays: Broker → ports that lead to its replication and controller listeners; see `delays`.
    """

    def __init__(
        self,
        directory: Path,
        number: int = 3,
        relays: Mapping[int, tuple[int, int]] | None = None,
        ports: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.servers = Servers(directory)
        self._ids = range(1, number + 1)
        self._own = dict(ports or {i: (free_port(), free_port()) for i in self._ids})
        self._shown = dict(relays or self._own)
        self._clients = {i: free_port() for i in self._ids}
        self._path = class_path()
        (directory / "log4j2.properties").write_text(_LOG)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for i in self._ids:
            config = directory / f"{i}.properties"
            config.write_text(self._properties(i, number))
            self._tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
        for i in self._ids:
            config = directory / f"{i}.properties"
            command = [_java(), *_BROKER, *self._logging(), "-cp", self._path, "kafka.Kafka"]
            self.servers.start(f"broker-{i}", [*command, config])
        self.servers.wait(self._answer, "Kafka")

    @property
    def addresses(self) -> str:
        """Where clients begin."""
        return ",".join(f"127.0.0.1:{port}" for port in self._clients.values())

    def _properties(self, i: int, number: int) -> str:
        replication, controller = self._own[i]
        shown = self._shown[i]
        copies = min(3, number)
        lines = {
            "process.roles": "broker,controller",
            "node.id": i,
            "controller.quorum.voters": ",".join(
                f"{j}@127.0.0.1:{ports[1]}" for j, ports in self._shown.items()
            ),
            "listeners": f"CLIENTS://127.0.0.1:{self._clients[i]},"
            f"BROKERS://127.0.0.1:{replication},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{self._clients[i]},"
            f"BROKERS://127.0.0.1:{shown[0]},CONTROLLER://127.0.0.1:{shown[1]}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,"
            "CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.servers.directory / f"data-{i}",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "auto.create.topics.enable": "false",
            "replica.fetch.max.bytes": 16 << 20,
            "socket.request.max.bytes": 64 << 20,
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def _logging(self) -> list[str]:
        return [f"-Dlog4j2.configurationFile={self.servers.directory / 'log4j2.properties'}"]

    def _tool(self, *command: str) -> None:
        done = subprocess.run(
            [_java(), "-XX:TieredStopAtLevel=1", *self._logging(), "-cp", self._path, *command],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {(done.stdout + done.stderr)[-2_000:]}")

    def _answer(self) -> bool:
        for port in self._clients.values():
            socket.create_connection(("127.0.0.1", port), 1).close()
        return True


class KafkaClient:
    """`KafkaLoad`, running: one command at a time."""

    def __init__(self, directory: Path, addresses: str) -> None:
        classes = directory / "classes"
        _compile(classes)
        logging = f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"
        command = [_java(), "-Xmx512m", logging, "-cp", f"{classes}:{class_path()}", "KafkaLoad"]
        self._errors = directory / "client.log"
        with self._errors.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __call__(self, *command: object) -> list[float]:
        """Return the numbers of the answer, seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"Kafka's client ended:\n{self._errors.read_text()[-3_000:]}")
        return [float(number) for number in line.split()]

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


class Kafka(Peer):
    """One topic with one partition, so with one order, on brokers that several of these may share.

    Args:
        synced: Each set of records is synced at each broker before it is acknowledged.
        partitions: More than one has no order between them.
    """

    def __init__(
        self,
        brokers: Brokers,
        client: KafkaClient,
        *,
        synced: bool,
        replicas: int = 3,
        partitions: int = 1,
    ) -> None:
        self._brokers, self._client = brokers, client
        self.name = "Kafka, fsync" if synced else "Kafka, no fsync"
        if partitions > 1:
            self.name += f", {partitions} orders"
        self.topic = f"t{uuid.uuid4().hex[:8]}"
        client("create", self.topic, partitions, replicas, int(synced))

    @property
    def pids(self) -> Sequence[int]:
        return self._brokers.servers.pids

    @property
    def client_pid(self) -> int:
        return self._client.process.pid

    def batches(self, total: int, batch: int) -> None:
        self._client("batches", self.topic, SENDERS, batch, total)

    def singles(self, total: int) -> None:
        self._client("singles", self.topic, OPEN, total)

    def lone(self, total: int, pause_s: float) -> list[float]:
        return self._client("lone", self.topic, total, round(1_000 * pause_s))

    def close(self) -> None:
        """Nothing: brokers and client are ended by who began them."""


def class_path() -> str:
    """Return PySpark's JARs of Scala and of what writes logs, then those of Kafka.

    Raises:
        PeerMissingError: Kafka's are not installed.
    """
    import pyspark

    spark = Path(pyspark.__file__).parent / "jars"
    names = ("scala-library", "slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
    return ":".join([*(str(next(spark.glob(f"{n}-*.jar"))) for n in names), f"{found(KAFKA)}/*"])


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        raise PeerMissingError("java is missing")
    return java


def _compile(classes: Path) -> None:
    home = os.environ.get("JAVA_HOME")
    compiler = shutil.which("javac", path=f"{home}/bin" if home else None)
    if compiler is None:
        raise PeerMissingError("javac is missing: install openjdk-17-jdk-headless")
    source = str(JAVA_SOURCES / "KafkaLoad.java")
    command = [compiler, "-d", str(classes), "-cp", class_path(), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
