"""The sans-I/O core of the sync protocol: `Master.handle(event, now) -> list[Action]`.

Nothing here reads a clock, draws a random number, opens a file or a socket, or logs.
"""
