"""A file of a peer: what breaks off is no whole file."""

from __future__ import annotations

import socket
from threading import Thread

import pytest

from sparktxlog.errors import TransportError
from sparktxlog.transport.exchange import stream_file


@pytest.mark.parametrize("came", [b"", b"some", b"whole file"])
def test_a_connection_that_ends_early_is_a_break(came: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n" + came)

        peer = Thread(target=answer)
        peer.start()
        sent = stream_file(f"http://127.0.0.1:{server.getsockname()[1]}", "/file", {}, 0, 10)
        found = list[bytes]()
        if len(came) == 10:
            found.extend(sent)
        else:
            with pytest.raises(TransportError, match="broke off"):
                found.extend(sent)
        peer.join()
    assert b"".join(found) == came
