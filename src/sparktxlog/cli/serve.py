"""`sparktxlog serve`: run a node until it is asked to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sparktxlog.api.tested_releases import warn_of_untested
from sparktxlog.config import NodeConfig, check_directories, make_data_dir
from sparktxlog.errors import EXTRAS, ConfigError, missing_extra
from sparktxlog.http.tokens import note_token
from sparktxlog.model.values import split_urls

if TYPE_CHECKING:
    from sparktxlog.runtime.node import Node

_log = logging.getLogger("sparktxlog")
#: The publisher's thread must not keep the event loop waiting for the default 5 ms.
_SWITCH_INTERVAL_S = 0.001
#: New objects, less those that went, after which the collector looks for cycles among them.
#: Requests and transactions leave few; at the default of 700 it took 4 % of the processor.
_GARBAGE = 20_000
#: Bytes a connection takes beyond what is on the wire: chunks of copies must not queue up in
#: the system, where nothing could go before them and no turn could be measured.
_UNSENT_BYTES = 256 << 10


def require_node() -> None:
    """Refuse to begin work of a node if a library of the extra `node` is not installed.

    Raises:
        MissingDependencyError: One is missing; the hint has the command (definite).
    """
    for library in (name for name, extra in EXTRAS.items() if extra == "node"):
        if find_spec(library) is None:
            missing = missing_extra("a node", ModuleNotFoundError(name=library))
            assert missing is not None, library
            raise missing


def run_node(config: NodeConfig) -> int:
    """Run a node until SIGTERM or SIGINT; return 0 after a clean stop.

    Raises:
        ConfigError: A directory or the address cannot be used (definite).
        LockedError: Another process owns the data directory (definite).
        StorageError, InvariantViolation: The node had to stop.
    """
    import uvloop

    from sparktxlog.runtime.process import bound_memory, set_up_logs

    check_directories(config)
    make_data_dir(config)
    running: list[Node] = []

    def epoch() -> int | None:
        return running[-1].base.master.view.epoch if running else None

    set_up_logs(config.node_id, config.log_level, config.log_format, epoch)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    bound_memory()
    listener = _listen(config)
    _note_token(config)
    warn_of_untested()
    _log.info(ways_in(config))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config, listener, running))
    finally:
        listener.close()
    return 0


def ways_in(config: NodeConfig) -> str:
    """Return where the node's pages for people are, and what opens them; no secret is in it."""
    url = config.master_url.rstrip("/")
    if config.client_token is None:
        return f"pages of this node: {url}/ (no token is asked for)"
    if config.client_token_file is not None:
        token = f"the token in {config.client_token_file}"
    else:
        token = f"the client token ({config.origins['client-token']})"
    return f"pages of this node: {url}/ (any name, and as password {token})"


def _note_token(config: NodeConfig) -> None:
    """Note where the token is, for clients of this user on this machine."""
    if config.client_token_file is None:
        return
    host, port = config.listen
    at = f"[{host}]" if ":" in host else host
    try:
        note_token(
            [*split_urls(config.master_url), f"http://{at}:{port}"], config.client_token_file
        )
    except OSError as error:
        _log.info("the token's file is not noted: %s", error)


def _listen(config: NodeConfig) -> socket.socket:
    host, port = config.listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"listen = {host}:{port}: {error.strerror}",
            hint="Stop the process that listens there, or set listen to another port.",
            key="listen",
            value=f"{host}:{port}",
        ) from error
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    return listener


async def _run(config: NodeConfig, listener: socket.socket, running: list[Node]) -> None:
    """Run a node, and another one in its place each time it must start again.

    Args:
        running: Gets the node that runs, for the records of the log.
    """
    from sparktxlog.runtime.node import build_node

    while True:
        running[:] = [build_node(config)]
        if not await _run_once(running[0], listener):
            return


async def _run_once(running: Node, listener: socket.socket) -> bool:
    """Run a node until it stops; return whether it must start again, with another state."""
    from sparktxlog.runtime.membership.join_orders import StartAgainError
    from sparktxlog.service.application import build_app
    from sparktxlog.service.connections.listener import Server, client_places

    connections = running.base.budgets.connections
    connections.most = client_places(connections.most)
    server = Server(
        build_app(running),
        places=connections,
        certificate=running.base.certificate,
    )

    def stop() -> None:
        running.begin_stop()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    running.failed.add_done_callback(lambda _: stop())
    try:
        await running.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        # The server closes the socket it gets; connections wait while a node starts again.
        await server.serve(sockets=[listener.dup()])
    finally:
        await running.stop()
    if not running.failed.done():
        return False
    error = running.failed.result()
    if isinstance(error, StartAgainError):
        return True
    raise error
