"""What nodes show of their epoch, and what an operator does about it at a command line."""

from __future__ import annotations

from tests.support.forked_nodes import run_command
from tests.support.node_processes import Cluster, NodeProcess, wait_until

#: Ready to go on without a member after two seconds.
QUICK = ("suspect-timeout = 2", "start-timeout = 4")


def shows(node: NodeProcess, members: str) -> bool:
    """Return whether a node takes part in an epoch of these members, in this precedence."""
    status = node.status()
    return status["phase"] == "NORMAL" and "".join(status["members"]) == members


def all_show(cluster: Cluster, members: str, timeout: float = 120) -> None:
    """Wait until the members take part in an epoch of theirs, the first one being on duty."""
    nodes = [cluster.nodes[name] for name in members]

    def agreed() -> bool:
        return all(shows(n, members) and n.status()["duty"] == members[0] for n in nodes)

    wait_until(agreed, timeout, f"members {members}, {members[0]} on duty")


def waits_for(node: NodeProcess) -> list[str]:
    """Return whom a node says it waits for, each once."""
    return sorted({item["peer"] for item in node.status()["waiting_for"]})


def told(node: NodeProcess, *arguments: str, **environment: str) -> tuple[int, str]:
    """Return exit code and what a command says that is asked of a node, errors included."""
    answer = run_command(*arguments, "--url", node.url, **environment)
    return answer.returncode, answer.stdout + answer.stderr


def operate(node: NodeProcess, *arguments: str, **environment: str) -> str:
    """Let a node carry out a command, which the members must decide upon; return what it says."""
    code, said = told(node, *arguments, **environment)
    assert code == 0, f"{' '.join(arguments)}: {said}"
    return said
