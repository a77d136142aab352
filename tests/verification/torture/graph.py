"""Cycles in graphs of dependencies between transactions, named as Adya named them.

A vertex is a transaction, an edge says that one must stand before the other in every serial order:

    ww  the other overwrote (here: appended after) what the one wrote
    wr  the other read what the one wrote
    rw  the other overwrote what the one read
    so  the other is of the same session, and later
    rt  the other began after the one had ended

A history is serializable if and only if its ww, wr and rw edges have no cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

WW, WR, RW, SO, RT = "ww", "wr", "rw", "so", "rt"
#: For each vertex (target, kind of the edge).
Edges: TypeAlias = Sequence[Sequence[tuple[int, str]]]
#: A way as (vertex, kind of the edge that leaves it).
Cycle: TypeAlias = list[tuple[int, str]]

#: What is added to the name of a cycle, and the edges that it has beside ww, wr and rw.
_ORDERS = (("", ()), ("-process", (SO,)), ("-realtime", (SO, RT)))


def components(edges: Edges) -> list[list[int]]:
    """Return the strongly connected components of two vertices or more (Tarjan, no recursion)."""
    index, low = [0] * len(edges), [0] * len(edges)
    is_open = bytearray(len(edges))
    stack: list[int] = []
    way: list[tuple[int, Iterator[tuple[int, str]]]] = []
    found: list[list[int]] = []
    count = 0

    def enter(vertex: int) -> None:
        nonlocal count
        count += 1
        index[vertex] = low[vertex] = count
        is_open[vertex] = True
        stack.append(vertex)
        way.append((vertex, iter(edges[vertex])))

    for root in range(len(edges)):
        if not index[root]:
            enter(root)
        while way:
            vertex, rest = way[-1]
            for target, _ in rest:
                if not index[target]:
                    enter(target)
                    break
                if is_open[target]:
                    low[vertex] = min(low[vertex], index[target])
            else:
                way.pop()
                if way:
                    before = way[-1][0]
                    low[before] = min(low[before], low[vertex])
                if low[vertex] == index[vertex]:
                    members = [stack.pop()]
                    while members[-1] != vertex:
                        members.append(stack.pop())
                    for member in members:
                        is_open[member] = False
                    if len(members) > 1:
                        found.append(members)
    return found


def worst_cycles(edges: Edges) -> Iterator[tuple[str, Cycle]]:
    """Yield one cycle for each component that has one, of the worst class there.

    The classes, worst first: G0 (ww only), G1c (ww, wr), G-single (one rw), G2 (several rw); then
    the same with the order of sessions, and with real time.
    """
    for members in components(edges):
        label = {vertex: number for number, vertex in enumerate(members)}
        inside = [[(label[t], kind) for t, kind in edges[v] if t in label] for v in members]
        name, cycle = _worst(inside)
        yield name, [(members[vertex], kind) for vertex, kind in cycle]


def _worst(edges: Edges) -> tuple[str, Cycle]:
    for suffix, more in _ORDERS:
        for name, kinds in (("G0", (WW,)), ("G1c", (WW, WR))):
            some = _only(edges, (*kinds, *more))
            for members in components(some):
                return name + suffix, _way(some, members[0], members[0])
        writes_and_reads = _only(edges, (WW, WR, *more))
        for vertex, targets in enumerate(edges):
            for target, kind in targets:
                if kind == RW and (back := _way(writes_and_reads, target, vertex)):
                    return "G-single" + suffix, [(vertex, RW), *back]
        some = _only(edges, (WW, WR, RW, *more))
        for members in components(some):
            return "G2" + suffix, _way(some, members[0], members[0])
    raise AssertionError("a component without a cycle")


def _only(edges: Edges, kinds: Collection[str]) -> Edges:
    return [[edge for edge in targets if edge[1] in kinds] for targets in edges]


def _way(edges: Edges, start: int, goal: int) -> Cycle:
    """Return a shortest way of one edge or more, empty if there is none."""
    came: dict[int, tuple[int, str]] = {}
    waiting = deque([start])
    while waiting and goal not in came:
        vertex = waiting.popleft()
        for target, kind in edges[vertex]:
            if target not in came:
                came[target] = (vertex, kind)
                waiting.append(target)
    if goal not in came:
        return []
    way = [came[goal]]
    while way[-1][0] != start:
        way.append(came[way[-1][0]])
    return way[::-1]
