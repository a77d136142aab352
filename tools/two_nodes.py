"""Two sites of an installed sparktxlog, without Spark: write at both, and see one order.

`tools/release.py` runs it with the interpreter of an empty environment, in an empty directory.
Where PySpark and Java are there too, both sites apply the order, and their tables must be equal.
"""

import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import sparktxlog

ROW = {"customer": "ada", "amount": 10.0}


def free_port():
    """Return the first of two free ports that follow each other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return port


def main():
    """Print in one line what was seen; any difference ends with an error."""
    cli, port = [sys.executable, "-m", "sparktxlog.cli"], free_port()
    subprocess.run([*cli, "init", "--sites", "2", "--port", str(port)], check=True, stdout=2)
    urls = [f"http://127.0.0.1:{port + n}" for n in (0, 1)]
    nodes = [
        start([*cli, "serve", "--config", f"site-{name}.toml"], f"{name}.log") for name in "ab"
    ]
    try:
        for url in urls:
            wait_for(url)
        said = write_at_both(urls)
        if find_spec("pyspark") and which("java"):
            said += f"; {apply_at_both(urls)}"
    except BaseException:
        print(Path("a.log").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for node in nodes:
            node.terminate()
        codes = [node.wait(60) for node in nodes]
    assert codes == [0, 0], codes
    assert f"pages of this node: {urls[0]}/" in Path("a.log").read_text()
    print(said)


def start(command, log):
    """Start a node; its log goes into a file."""
    with Path(log).open("w") as target:
        return subprocess.Popen(command, stderr=target)


def wait_for(url):
    """Wait until a node is ready."""
    until = time.monotonic() + 300  # a machine that has other work takes minutes
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=2).close()  # noqa: S310 - a node of ours
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def write_at_both(urls):
    """Commit at each site; both must have the same queue."""
    a, b = (sparktxlog.Client(url) for url in urls)
    a.create_table("orders", "id bigint, customer string, amount double", keys=["id"])
    first = a.upsert("orders", [{"id": 1} | ROW])
    b.after(first)
    last = b.upsert("orders", [{"id": 2} | ROW, {"id": 1} | ROW])
    a.after(last)
    queues = [[(e["position"], e["origin"]) for e in client.queue()] for client in (a, b)]
    assert queues[0] == queues[1] and len(queues[0]) == last.position, queues
    return f"two nodes, positions {first.position} and {last.position}"


def apply_at_both(urls):
    """Let both sites apply what was committed; their tables must be equal."""
    spark = sparktxlog.build_session("local[2]")
    sites = [sparktxlog.connect(spark, url, apply="inline") for url in urls]
    for site in sites:
        site.apply()
    found = [site.table("orders").orderBy("id").collect() for site in sites]
    assert found[0] == found[1] and len(found[0]) == 2, found
    signatures = [site.snapshot().signatures for site in sites]
    assert signatures[0] == signatures[1], signatures
    spark.stop()
    return f"equal tables by Spark {spark.version}"


if __name__ == "__main__":
    main()
