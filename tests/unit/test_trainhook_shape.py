"""The rules of the training hook's shape: it runs inside the user's training process, under any Python from 3.8 on."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunewarden.shipped import hook_dir

FOLDER = hook_dir()
PACKAGE = "tunewarden_trainhook"
FILES = sorted(FOLDER.rglob("*.py"))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def test_the_folder_holds_nothing_else() -> None:
    """It stands first on the trainer's sys.path: a further name there could hide a module of the user's."""
    names = {path.name for path in FOLDER.iterdir()} - {"__pycache__"}

    assert names == {"sitecustomize.py", PACKAGE}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_8_understands_it(path: Path) -> None:
    """No match, no parenthesised with, no `int | None` outside of annotations that are never evaluated."""
    future = "from __future__ import annotations" in path.read_text(encoding="utf-8")
    unions = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    evaluated = [node.lineno for node in unions if isinstance(node.right, ast.Constant) and node.right.value is None]

    assert future or evaluated == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_needs_only_the_standard_library(path: Path) -> None:
    """torch and accelerate are looked up where the trainer has them; nothing of tunewarden's is there."""
    foreign = set(_imports(path)) - set(sys.stdlib_module_names) - {PACKAGE}

    assert foreign == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_silent_on_stdout(path: Path) -> None:
    """A trainer's output may be read by a program."""
    text = path.read_text(encoding="utf-8")

    assert "print(" not in text
    assert "sys.stdout" not in text.replace("sys.stdout.flush()", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_modules_and_functions_stay_small(path: Path) -> None:
    """At most 300 lines a module and 40 a function."""
    functions = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.FunctionDef)]
    long = [node.name for node in functions if (node.end_lineno or node.lineno) - node.lineno + 1 > 40]

    assert path.read_text(encoding="utf-8").count("\n") <= 300
    assert long == []


def test_a_process_that_trains_nothing_imports_only_the_finder() -> None:
    """With the hook on PYTHONPATH a plain Python starts as fast as before, and says nothing."""
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith('tunewarden')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(FOLDER), "TUNEWARDEN_CONTROL_DIR": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert (done.stdout, done.stderr) == (f"['{PACKAGE}', '{PACKAGE}.importing']\n", "")


def test_without_a_control_directory_nothing_is_installed() -> None:
    """The folder may stand on PYTHONPATH for ever."""
    code = "import sys; print([name for name in sys.modules if name.startswith('tunewarden')])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_script_that_swallows_its_end_loses_nothing_that_it_printed() -> None:
    """It is ended on the spot, and what Python still holds of its output is given out first."""
    code = (
        "import types; from tunewarden_trainhook.boundary import still_here; print('said'); "
        "still_here(types.SimpleNamespace(status=3))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(FOLDER)}, capture_output=True, timeout=30, check=False
    )

    assert (done.returncode, done.stdout) == (3, b"said\n")
