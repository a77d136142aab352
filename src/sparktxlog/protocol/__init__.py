"""The core of the sync protocol, without I/O: `Master.handle(event, now) -> list[Action]`.

Nothing here reads a clock, draws a random number, opens a file or a socket, or logs.
"""
