"""Greeters for tests: of a node that keeps a log, reaches everybody and shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from sparktxlog.codec.wire import Hello
from sparktxlog.transport.greeting import Greeter, Place

_ANSWERS: dict[str, Callable[..., Any]] = {
    "is_fresh": lambda: False,
    "is_joining": lambda _: False,
    "is_linked": lambda node_id: True,
    "shortfall": lambda node_id, standing: "",
    "is_blank": lambda node_id: False,
    "shown": lambda log_id, epoch: ("", 0, ""),
    "standing": lambda: None,
}


def make_greeter(
    own: Hello,
    places: Mapping[str, Place | str],
    instances: Mapping[str, str],
    remember: Callable[[str, str], None],
    **answers: Callable[..., Any],
) -> Greeter:
    """Return a greeter; `answers` are methods of its node (`GreetingNode`)."""
    node: Any = SimpleNamespace(**(_ANSWERS | {"remember": remember} | answers))
    return Greeter(own, places, instances, node)
