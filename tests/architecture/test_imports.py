"""Who may import whom: the rooms of ARCHITECTURE.md, as a walk over all imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from tests.architecture.source_tree import (
    PACKAGE,
    ROOT,
    Module,
    modules_of_tests,
    package_modules,
    script_modules,
)

#: What masters say to each other: values only.
_EPOCHS = {
    "protocol.messages.balloting",
    "protocol.messages.posts",
    "protocol.messages.view",
}

#: Room, or a part of one with rules of its own → rooms (or single modules) it may import.
#: Everybody may import `errors` and `model`, and pyarrow by `lazy_arrow`.
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"api"},
    "errors": set(),
    "lazy_arrow": set(),
    "model": set(),
    "model.shown": set(),
    "supervision": set(),
    "tracing": set(),
    "config": set(),
    "protocol": set(),
    "catchup": set(),
    "health": set(),
    "delta": {"files.durability", "files.foreign_files", "files.stores"},
    "attic": {"files.durability", "files.stores"},
    "codec": {"delta.commit_contents", "delta.log_state"} | _EPOCHS,
    "storage": {
        "attic", "codec", "delta", "files.arrivals", "files.durability", "files.foreign_files",
        "files.last_use", "files.stores", "protocol.messages.recovery",
    }
    | _EPOCHS,
    "transport": {"codec", "config", "http.node_connection", "supervision"} | _EPOCHS,
    "runtime": {
        "attic", "config", "protocol", "catchup", "codec", "delta", "health", "storage",
        "files", "supervision", "tracing", "transport",
    },
    "service": {
        "config", "codec", "files.sending", "health", "runtime", "files.foreign_files",
        "storage.interfaces",
        "storage.payloads.payload_store",
    } | _EPOCHS,
    "http": {"codec", "files.durability", "tracing"},
    "files": {"codec", "http", "supervision"},
    "worker": {
        "attic", "catchup", "codec", "delta", "health", "http", "storage.commit_tables",
        "storage.interfaces", "storage.lock", "files", "supervision", "tracing",
    },
    "api": {
        "attic", "codec", "delta", "health", "http", "files.durability", "files.stores",
        "storage.interfaces", "supervision", "tracing", "worker",
    },
    "cli": {
        "api", "attic", "catchup", "codec", "config", "delta", "files.durability", "files.stores",
        "health", "http", "runtime", "service", "storage", "transport", "worker",
    },
    "pyspark_txlog": {"api"},
}  # fmt: skip

_SANS_IO = {
    "aiohttp", "asyncio", "datetime", "deltalake", "fastapi", "httptools", "logging",
    "multiprocessing", "os", "pathlib", "pyarrow", "pyspark", "random", "secrets", "socket",
    "sqlite3", "subprocess", "threading", "time", "uuid", "uvicorn",
}  # fmt: skip
#: What is not in the wheel.
_OUTSIDE = {"examples", "tests"}
_SPARK = {"pyspark", "delta"}
_WEB = {"fastapi", "starlette", "uvicorn"}

#: Room → libraries it must not import.
MUST_NOT: dict[str, set[str]] = {
    "errors": _SANS_IO,
    "model": _SANS_IO,
    # It reads no clock: it shows what others read.
    "model.shown": _SANS_IO - {"datetime"},
    "protocol": _SANS_IO,
    "catchup": _SANS_IO,
    "health": _SANS_IO,
    "config": _SPARK | _WEB | {"pyarrow", "asyncio"},
    "delta": _SPARK | _WEB | {"aiohttp", "asyncio", "random", "socket", "sqlite3"},
    "codec": _SPARK | _WEB | {"asyncio", "aiohttp", "socket", "sqlite3", "threading", "random"},
    "storage": _SPARK | _WEB | {"aiohttp", "socket"},
    "transport": _SPARK | _WEB | {"sqlite3", "deltalake"},
    "runtime": _SPARK | _WEB,
    "service": _SPARK | {"sqlite3", "deltalake", "random"},
    "files": _SPARK | _WEB | {"sqlite3", "asyncio", "random"},
    "http": _SPARK | _WEB | {"sqlite3", "asyncio", "random"},
    "worker": _WEB | {"sqlite3", "asyncio", "random"},
    "api": _WEB | {"sqlite3", "asyncio"},
}


def _room_of(target: str) -> str:
    parts = target.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _rules_of(module: Module) -> str:
    """Return the key of the rules for a module: the longest one that its name begins with."""
    if not module.name.startswith("sparktxlog"):
        return module.name
    parts = module.name.split(".")[1:]
    parts_below = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in parts_below if name in MAY_IMPORT), module.room)


def _allowed(module: Module, target: str) -> bool:
    room = _rules_of(module)
    if _room_of(target) in ("errors", "lazy_arrow", "model") or target == "sparktxlog":
        return True
    below = target.removeprefix("sparktxlog.")
    if below == room or below.startswith(f"{room}."):
        return True
    return any(below == rule or below.startswith(f"{rule}.") for rule in MAY_IMPORT[room])


def _forbidden(module: Module) -> list[str]:
    found = []
    for item in module.imports:
        where = f"{module.path.relative_to(ROOT)}:{item.line}"
        if item.target.split(".")[0] == "sparktxlog":
            if not _allowed(module, item.target):
                found.append(f"{where}: {module.room} may not import {item.target}")
        elif item.target.split(".")[0] in MUST_NOT.get(_rules_of(module), set()) | _OUTSIDE:
            found.append(f"{where}: {module.room} must not import {item.target}")
    return found


def test_every_room_keeps_its_imports() -> None:
    """No module reaches past the rooms it is allowed."""
    assert [line for module in package_modules() for line in _forbidden(module)] == []


def test_every_room_has_rules() -> None:
    """A new room or top-level module must say what it may import."""
    rooms = {m.room for m in package_modules() if m.name.startswith("sparktxlog")}
    assert rooms - set(MAY_IMPORT) == set()


@pytest.mark.parametrize(
    ("room", "line", "complaint"),
    [
        ("protocol", "import time", "must not import time"),
        ("protocol", "from sparktxlog.storage import interfaces", "may not import"),
        ("delta", "from sparktxlog.storage import lake_tables", "may not import"),
        ("delta", "import pyspark.sql", "must not import pyspark.sql"),
        ("codec", "from sparktxlog.protocol.messages import events", "may not import"),
        ("files", "import pyspark.sql", "must not import pyspark.sql"),
        ("files", "from sparktxlog.worker import replica", "may not import"),
        ("service", "import pyspark.sql", "must not import pyspark.sql"),
        ("runtime", "def f():\n    from tests.verification import cluster", "must not import"),
        ("cli", "from examples.demo import relay", "must not import"),
    ],
)
def test_a_forbidden_import_is_found(room: str, line: str, complaint: str) -> None:
    """The walk itself can fail, also inside functions."""
    module = Module(
        path=PACKAGE / room / "invented.py",
        name=f"sparktxlog.{room}.invented",
        text=line,
    )
    assert complaint in " ".join(_forbidden(module))


def test_imports_make_no_circle() -> None:
    """Neither imports that run nor imports of types; the package itself only offers names."""
    modules = {module.name: module for module in package_modules()}
    graph: dict[str, set[str]] = {name: set() for name in modules if name != "sparktxlog"}
    for name in graph:
        for item in modules[name].imports:
            if item.target in graph and item.target != name:
                graph[name].add(item.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_integrations_use_what_users_may() -> None:
    """The package's own names, its errors and values, and the judge of a status."""
    offered = ("errors", "health.site_progress", "http.tokens", "model")
    allowed = tuple(f"sparktxlog.{name}" for name in offered)
    found = [
        f"{module.name}:{item.line} {item.target}"
        for module in script_modules()
        if module.name.startswith("integrations.")
        for item in module.imports
        if item.target.startswith("sparktxlog.") and not item.target.startswith(allowed)
    ]
    assert found == []


_ASIDE = re.compile(r"\.?(attic|set-aside|quarantine|dropped|aside)")


def _sets_aside(module: Module) -> list[str]:
    """Return where a module names a directory for what is set aside, as a part of a path."""
    return [
        f"{module.name}:{node.lineno}"
        for node in module.nodes
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.Constant)
        and _ASIDE.fullmatch(str(node.right.value))
    ]


def test_only_the_attic_has_places_for_what_is_set_aside() -> None:
    """Else something is listed nowhere and removed by nobody."""
    found = {line for module in package_modules() for line in _sets_aside(module)}
    assert [line for line in found if not line.startswith("sparktxlog.attic.")] == []
    text = 'kept = lake / "_sparktxlog" / "dropped"'
    invented = Module(path=PACKAGE / "worker" / "x.py", name="sparktxlog.worker.x", text=text)
    assert _sets_aside(invented) == ["sparktxlog.worker.x:1"]


def test_one_module_has_connections_for_threads() -> None:
    """Others send requests through it, so deadlines, retries and errors are the same for all."""
    found = {
        module.name
        for module in package_modules()
        for item in module.imports
        if item.target.startswith(("http.client", "urllib.request", "urllib3", "requests", "httpx"))
    }
    assert found == {"sparktxlog.http.node_connection"}


def test_production_never_imports_tests() -> None:
    """`tests` holds simulated clocks and faults: nothing that ships may depend on it."""
    scripts = [m for m in script_modules() if m.path.parent.name == "jobs"]
    found = [
        f"{module.name}:{item.line}"
        for module in (*package_modules(), *scripts)
        for item in module.imports
        if item.target.split(".")[0] == "tests"
    ]
    assert found == []


def test_what_tests_import_of_each_other_is_there() -> None:
    """Types of tests are not checked: a helper that moved would be missed only when they run."""
    imported = re.compile(r"^ *(?:from|import) (tests\.[\w.]+)", re.MULTILINE)
    lost = [
        f"{module.path.relative_to(ROOT)}: {target}"
        for module in modules_of_tests()
        for target in imported.findall(module.text)
        if not ROOT.joinpath(*target.split(".")).is_dir()
        and not ROOT.joinpath(*target.split(".")).with_suffix(".py").is_file()
    ]
    assert lost == []


#: Module → what of the JVM it touches there, and why that is no obstacle for Spark Connect.
_JVM = re.compile(r"\b_jvm\b|\b_jdf\b|\b_jsparkSession\b|\bsparkContext\b|\.rdd\b")
_WITH_JVM = {
    # Makes the session of a driver that has one.
    "sparktxlog.api.session": {"_jvm", "sparkContext"},
    # Takes an estimate where there is one.
    "sparktxlog.api.staging.frame_staging": {"_jdf"},
    # The query of a `foreachBatch`: over Spark Connect it is refused before.
    "sparktxlog.api.streams.foreach_batch": {"sparkContext"},
}


def test_committing_needs_no_jvm_in_the_driver() -> None:
    """With Spark Connect the driver has none; tests/spark/api/test_spark_connect.py commits so."""
    found = {
        module.name: set(_JVM.findall(module.text))
        for module in package_modules()
        if module.room == "api" and _JVM.search(module.text)
    }
    assert found == _WITH_JVM


#: What of a log's names only `delta/` says; the model has the first, for commit files that travel.
_OF_LOGS = re.compile(
    r"_delta_log|_last_checkpoint|_sidecars|_staged_commits|(?<!delta)\.checkpoint\b"
)
_NAMES_THE_LOG = {"sparktxlog.model.tables.commit_table"}


def _texts_of_logs(module: Module) -> set[str]:
    """Return what a module says of the files of a log, docstrings left out."""
    documented = {node.value for node in module.nodes if isinstance(node, ast.Expr)}
    return {
        found
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented
        for found in _OF_LOGS.findall(node.value)
    }


def _opens_by_delta_rs(module: Module) -> bool:
    of_delta_rs = any(item.target == "deltalake" for item in module.imports)
    calls = (node.func for node in module.nodes if isinstance(node, ast.Call))
    return of_delta_rs and any(isinstance(f, ast.Name) and f.id == "DeltaTable" for f in calls)


def test_only_one_room_opens_delta_logs() -> None:
    """`worker/apply/deltalog.py` and `delta.tables` of Spark write and show rows, by the JVM."""
    others = [module for module in package_modules() if module.room != "delta"]
    named = {module.name: found for module in others if (found := _texts_of_logs(module))}
    assert {*named} == _NAMES_THE_LOG, named
    # Nor do comments: who looks for the rules of these names finds one room.
    assert {module.name for module in others if "_delta_log" in module.text} == _NAMES_THE_LOG
    assert [module.name for module in others if _opens_by_delta_rs(module)] == []
    invented = Module(
        path=PACKAGE / "worker" / "invented.py",
        name="sparktxlog.worker.invented",
        text='"""Of `_delta_log`."""\nfrom deltalake import DeltaTable\n'
        'DeltaTable(f"{table}/_delta_log/x")\n',
    )
    assert _texts_of_logs(invented) == {"_delta_log"} and _opens_by_delta_rs(invented)


#: Modules outside `files/` that link, rename or sync by themselves, each with how; the list may
#: only get shorter.
_PLACES_FILES = {
    # Asks the disk itself how long a sync alone takes: no file of anybody.
    "sparktxlog.cli.doctor.disks": {"os.fsync"},
    # Its own database, closed: the old one is kept before another takes its name.
    "sparktxlog.storage.journal.journal": {"link_or_copy", "replace"},
}
_PLACING = {"link", "rename", "renames", "replace", "fsync", "fdatasync"}
#: What `files/` begins and its caller must end.
_HALVES = {"link_as", "link_or_copy"}


def _places_files(module: Module) -> set[str]:
    """Return the calls by which a module links, renames or syncs; `str.replace` takes two texts."""
    found = set[str]()
    for call in (node for node in module.nodes if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        name = name or getattr(call.func, "id", "")
        of = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(of, ast.Name) and of.id in ("os", "shutil"):
            found |= {f"{of.id}.{name}"} if name in _PLACING | {"move"} else set()
        elif name in _HALVES or (
            of is not None
            and name in ("rename", "replace")
            and (len(call.args), len(call.keywords)) == (1, 0)
        ):
            found.add(name)
    return found


def test_only_one_room_places_files() -> None:
    found = {
        module.name: placing
        for module in package_modules()
        if module.room != "files" and (placing := _places_files(module))
    }
    assert found == _PLACES_FILES


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("os.link(part, final)", {"os.link"}),
        ("shutil.move(part, final)", {"shutil.move"}),
        ("part.with_name('x').rename(final)", {"rename"}),
        ("part.replace(self.path)", {"replace"}),
        ("files.link_or_copy(part, final)", {"link_or_copy"}),
        ("text.replace('a', 'b'); replace(entry, id=''); entry.replace(tzinfo=None)", set()),
    ],
)
def test_a_module_that_places_files_is_found(line: str, found: set[str]) -> None:
    path, name = PACKAGE / "runtime" / "invented.py", "sparktxlog.runtime.invented"
    assert _places_files(Module(path=path, name=name, text=line)) == found


def _reaches_buckets(module: Module) -> bool:
    return any(item.target.split(".")[0] == "obstore" for item in module.imports)


def test_two_modules_know_the_library_of_buckets() -> None:
    """Else its errors, whose texts may name credentials, would come from anywhere."""
    found = {module.name for module in package_modules() if _reaches_buckets(module)}
    stores = "sparktxlog.files.stores"
    assert found == {f"{stores}.bucket", f"{stores}.bucket_clients"}
    text = "def f():\n    import obstore.store\n"
    invented = Module(path=PACKAGE / "api" / "x.py", name="sparktxlog.api.x", text=text)
    assert _reaches_buckets(invented)


def test_importing_the_package_stays_light() -> None:
    """`import sparktxlog` and the client load neither Spark nor a web framework."""
    code = (
        "import sys, sparktxlog\n"
        "getattr(sparktxlog, 'Client', None)\n"
        "heavy = {'pyspark', 'delta', 'fastapi', 'uvicorn', 'deltalake', 'typer', 'aiohttp'}\n"
        "heavy.add('obstore')\n"
        "print(' '.join(sorted(heavy & set(sys.modules))))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == []


def test_the_command_line_loads_spark_and_web_only_when_needed() -> None:
    """`sparktxlog --help` must not pay for Spark or FastAPI."""
    found = [
        f"{module.name}:{item.line} {item.target}"
        for module in package_modules()
        if module.name in ("sparktxlog.cli", "sparktxlog.cli.command_line")
        for item in module.imports
        if item.at_load
        and not item.typing_only
        and (
            item.target.split(".")[0] in ("pyspark", "fastapi", "uvicorn", "deltalake", "pyarrow")
            or item.target.startswith(("sparktxlog.runtime", "sparktxlog.service"))
            or item.target.startswith(("sparktxlog.worker", "sparktxlog.api"))
        )
    ]
    assert found == []


def test_jobs_are_short_and_have_a_main() -> None:
    """A job is one command of the command line: under 30 lines, one call of its `main`."""
    jobs = [module for module in script_modules() if module.path.parent.name == "jobs"]
    long = [m.path.name for m in jobs if len(m.text.splitlines()) > 30]
    entry = re.compile(r"^    main\(\"", re.MULTILINE)
    without = [m.path.name for m in jobs if not entry.search(m.text)]
    assert (long, without) == ([], [])
