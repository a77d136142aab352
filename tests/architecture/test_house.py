"""Each rule of `tools/house.py`, which `make lint` runs over all files, finds what breaks it."""

from __future__ import annotations

import pytest
from tools import house
from tools.house import Source

SHIPPED, TEST = "src/sparktxlog/worker/apply/place.py", "tests/unit/test_place.py"
HEAD = '"""What a place is."""\nfrom __future__ import annotations\n'
LONG = "def f() -> None:\n" + "    g()\n" * house.MAX_FUNCTION_LINES
SWALLOWS = "try:\n    f()\nexcept (OSError, Exception):\n    pass\n"
BY_HAND = f"def f() -> None:\n    x = [1,  2]  {house.LAYOUT_MARK}\n"
#: What breaks a rule: path, text, what is said of it.
BROKEN = {
    "a path of a machine": ("docs/a.md", "see /wo" + "rk/main", "machine's path"),
    "a long file": (TEST, "x = 1\n" * (house.MAX_FILE_LINES + 1), "801 lines"),
    "an unfinished line": (TEST, "# TO" + "DO: more", "unfinished"),
    "a long function": (TEST, LONG, "f has 71 lines"),
    "a layout by hand": (TEST, BY_HAND, "formatter"),
    "a swallowed error": ("tools/a.py", SWALLOWS, "catches everything"),
    "a module without docstring": (SHIPPED, "", "no docstring"),
    "a class without docstring": (SHIPPED, HEAD + "class Place:\n    pass\n", "no docstring"),
    "a name for anything": (SHIPPED.replace("place", "utils"), HEAD, "could hold anything"),
    "annotations that run": (SHIPPED, '"""A place."""\nx = 1\n', "__future__"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_finds_what_breaks_it(name: str) -> None:
    path, text, said = BROKEN[name]
    (found,) = house.check([Source(path, text)])
    assert found.path == path and said in str(found)


def test_what_is_right_is_not_found() -> None:
    right = HEAD + f"TABLE = [1,  2]  {house.LAYOUT_MARK}\n\n\ndef _place() -> None: ...\n"
    assert house.check([Source(SHIPPED, right), Source(TEST, SWALLOWS)]) == []


def test_a_folder_holds_few_modules_and_a_name_stands_once() -> None:
    names = [chr(ord("a") + number) for number in range(house.MAX_MODULES + 1)]
    full = [Source(f"src/sparktxlog/worker/apply/{name}.py", HEAD) for name in names]
    (found,) = house.check(full)
    assert "has 16 modules" in str(found)
    twice = [Source(f"src/sparktxlog/{room}/place.py", HEAD) for room in ("worker", "storage")]
    (found,) = house.check(twice)
    assert "place is also in src/sparktxlog/worker/place.py" in str(found)
