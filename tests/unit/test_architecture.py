"""The rules of the code's shape, as tests: imports run one way, the environment has one reader, modules stay small."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

APP = Path(__file__).resolve().parents[2] / "app"
# What runs inside the user's training process is no part of the package: Python 3.8, no import of ours, torch only
# where the trainer has it already. tests/unit/test_trainhook_shape.py has its rules.
HOOK = APP / "trainhook" / "site"
MODULES = sorted(
    path for path in APP.rglob("*.py") if "migrations/versions" not in path.as_posix() and HOOK not in path.parents
)
LEAVES = {"domain", "errors", "ports", "shipped"}

# Who may import whom, by the first part below `tunewarden`. Anything not listed is an edge against the direction.
ALLOWED: dict[str, set[str]] = {
    "domain": set(),
    "shipped": set(),
    "errors": {"domain"},
    "ports": {"domain"},
    "processes": {"domain"},
    "sampling": {"domain", "processes"},
    "trainers": {"domain", "errors"},
    "messages": {"domain", "errors"},
    "telemetry": {"domain"},
    "config": LEAVES | {"config_sections", "config_sources"},
    "config_sections": LEAVES,
    "config_sources": LEAVES,
    "testing": LEAVES,
    "adapters": LEAVES | {"telemetry", "messages"},
    "pipeline": LEAVES | {"telemetry", "messages", "adapters"},
    "api": LEAVES | {"telemetry", "adapters"},
    "supervisor": LEAVES | {"processes", "sampling", "trainers"},
    "wiring": LEAVES | {"config", "telemetry", "messages", "adapters", "pipeline", "api"},
    "bootstrap": LEAVES | {"config", "telemetry", "adapters", "api", "pipeline", "wiring"},
    "commandline": LEAVES | {"config", "bootstrap", "adapters", "pipeline", "trainers", "supervisor", "sampling"},
    "demo": LEAVES | {"config", "bootstrap", "adapters"},
    "cli": LEAVES | {"config", "bootstrap", "commandline", "demo"},
    "__main__": {"cli"},
}


def _name(path: Path) -> str:
    return path.relative_to(APP).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(_tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_run_one_way(path: Path) -> None:
    """A module imports only what stands below it."""
    layer = _name(path).split(".")[0]
    against = [
        f"{path.name}:{line} imports {module}"
        for module, line in _imports(path)
        if module.startswith("tunewarden.")
        and (below := module.split(".")[1]) != layer
        and below not in ALLOWED.get(layer, set())
        and path != APP / "__init__.py"
    ]

    assert against == []


@pytest.mark.parametrize("path", [path for path in MODULES if _name(path).startswith("domain")], ids=_name)
def test_the_domain_needs_only_the_standard_library(path: Path) -> None:
    """The domain knows no clock, no I/O and no third-party package."""
    allowed = set(sys.stdlib_module_names) - {"time", "os", "socket", "subprocess", "pathlib", "threading", "asyncio"}
    foreign = [name for name, _ in _imports(path) if name.split(".")[0] not in allowed | {"tunewarden"}]

    assert foreign == []


def test_one_module_reads_the_environment() -> None:
    """Settings come from config.py; the supervisor may copy the environment whole, and does so in named modules."""
    readers = {
        _name(path)
        for path in MODULES
        for node in ast.walk(_tree(path))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"))
    }

    assert readers <= {
        "config",
        "supervisor.start",
        "supervisor.launch",
        "supervisor.keeper",
        "supervisor.agent_process",
    }


def test_no_import_hides_in_a_function() -> None:
    """Imports stand at the top, so that the graph can be read."""
    hidden = [
        f"{_name(path)}:{node.lineno}"
        for path in MODULES
        for function in _functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]

    assert hidden == []


def test_modules_and_functions_stay_small() -> None:
    """At most 400 lines a module and 60 a function; nine of ten modules under 300."""
    lengths = {_name(path): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    long_functions = [
        f"{_name(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in _functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > 60
    ]
    over = {name: count for name, count in lengths.items() if count > 300}

    assert {name: count for name, count in over.items() if count > 400} == {}
    assert len(over) <= len(lengths) // 10, over
    assert long_functions == []


def test_there_is_no_import_cycle() -> None:
    """No chain of imports comes back to where it began."""
    graph = {
        f"tunewarden.{_name(path)}": {module for module, _ in _imports(path) if module.startswith("tunewarden")}
        for path in MODULES
    }

    def visit(name: str, trail: tuple[str, ...]) -> list[str]:
        if name in trail:
            return [" -> ".join((*trail[trail.index(name) :], name))]
        if name in done:
            return []
        found = [cycle for below in sorted(graph.get(name, ())) for cycle in visit(below, (*trail, name))]
        done.add(name)
        return found

    done: set[str] = set()

    assert [cycle for name in sorted(graph) for cycle in visit(name, ())] == []


def test_importing_everything_needs_no_environment_and_does_nothing() -> None:
    """Every module can be imported with an empty environment; nothing is opened, started or printed."""
    names = [f"tunewarden.{_name(path)}" for path in MODULES if _name(path) not in ("__init__", "__main__")]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            "import importlib,sys\nfor n in sys.argv[1:]: importlib.import_module(n)",
            *names,
        ],
        env={"PATH": os.defpath},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
