"""The wheel, installed into a fresh environment, away from the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAYLOAD = ROOT / "tests" / "golden" / "alertmanager-0.25" / "firing-four-gpus-grouped.json"


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A venv with the wheel in it."""

    venv: Path
    home: Path

    def command(self, *words: str, cwd: Path | None = None, **env: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [str(self.venv / "bin" / "tunewarden"), *words],
            cwd=cwd or self.home,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )

    @property
    def package(self) -> Path:
        return next(self.venv.glob("lib/python3*/site-packages/tunewarden"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built and installed as a user does it, but for the dependencies: those of this environment are lent by a .pth.

    A .pth file inside a lent folder is not read, so the editable install of the checkout is not lent with them.
    """
    folder = tmp_path_factory.mktemp("install")
    venv, home = folder / "venv", folder / "home"
    home.mkdir()
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT))
    run(sys.executable, "-m", "venv", "--without-pip", str(venv))
    (wheel,) = (folder / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel))
    made = Installed(venv=venv, home=home)
    (made.package.parent / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return made


def run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_runs_is_the_installed_package(installed: Installed) -> None:
    """Not the checkout beside which the tests lie."""
    done = subprocess.run(
        [str(installed.venv / "bin" / "python"), "-c", "import tunewarden; print(tunewarden.__file__)"],
        cwd=installed.home,
        capture_output=True,
        text=True,
        check=True,
    )

    assert Path(done.stdout.strip()).parent == installed.package
    assert installed.command("version").stdout == b"0.1.0\n"


def test_check_finds_the_shipped_policies(installed: Installed) -> None:
    """Inside the package; a settings file is not needed."""
    done = installed.command("check")
    files = {line.split("\t")[3] for line in done.stdout.decode().splitlines()[1:]}

    assert done.returncode == 0, done.stderr
    assert len(files) == len(list((ROOT / "rules" / "policies").glob("*.yaml"))) > 4
    assert {Path(file).parent for file in files} == {installed.package / "shipped" / "rules" / "policies"}


def test_rules_and_examples_are_shipped(installed: Installed) -> None:
    """All that the checkout has of them, to the byte."""
    pairs = {ROOT / "rules": "rules", ROOT / "docs" / "examples": "examples"}
    missing = [
        path
        for source, name in pairs.items()
        for path in source.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (installed.package / "shipped" / name / path.relative_to(source)).read_bytes() != path.read_bytes()
    ]

    assert missing == []


def test_the_training_hook_is_shipped(installed: Installed) -> None:
    """All its files, to the byte, in a folder that holds nothing else."""
    source = ROOT / "app" / "trainhook" / "site"
    shipped = installed.package / "trainhook" / "site"
    names = {path.relative_to(source) for path in source.rglob("*.py")}

    assert {path.relative_to(shipped) for path in shipped.rglob("*") if path.suffix not in (".pyc", "")} == names
    assert [name for name in names if (shipped / name).read_bytes() != (source / name).read_bytes()] == []


def test_simulate_works_away_from_the_checkout(installed: Installed) -> None:
    """Four alerts of a real Alertmanager's body, four answers."""
    done = installed.command("simulate", str(PAYLOAD), "--json")

    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 4


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with modules that have the names of ours, of our libraries' and of the standard library's."""
    for name in ("app", "agent", "keeper", "httpx", "json", "logging", "select", "signal"):
        (tmp_path / f"{name}.py").write_text('raise SystemExit("the project was imported")\n', encoding="utf-8")
    (tmp_path / "app.py").unlink()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("WHOSE = 'the project'\n", encoding="utf-8")
    return tmp_path


def test_a_project_with_an_app_of_its_own(installed: Installed, tmp_path: Path) -> None:
    """PYTHONPATH=. in its folder: our command starts, and the job imports the project's `app`."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("WHOSE = 'the project'\n", encoding="utf-8")
    job = [str(installed.venv / "bin" / "python"), "-c", "import app; print(app.WHOSE)"]
    version = installed.command("version", cwd=tmp_path, PYTHONPATH=".")
    done = installed.command("run", "--", *job, cwd=tmp_path, PYTHONPATH=".")

    assert version.stdout == b"0.1.0\n"
    assert (done.returncode, done.stdout) == (0, b"the project\n")


def test_keeper_and_agent_are_out_of_reach_of_the_projects_modules(installed: Installed, project: Path) -> None:
    """Files named like the standard library's lie in the working directory: both start and see the job to its end."""
    done = installed.command("run", "--name", "apart", "--", "sh", "-c", "sleep 2; exit 3", cwd=project)
    specs = (installed.home / ".local" / "state" / "tunewarden" / "runs").glob("*/spec.json")
    (folder,) = (spec.parent for spec in specs if json.loads(spec.read_text())["name"] == "apart")

    assert done.returncode == 3, done.stderr
    assert json.loads((folder / "agent.json").read_text())["pid"] > 0
    assert "the run is over" in (folder / "agent.log").read_text("utf-8")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {}])
def test_chinese_is_printed_in_any_locale(installed: Installed, tmp_path: Path, locale: dict[str, str]) -> None:
    """What the job prints, the job's own name, and our faults about a file with a Chinese name."""
    settings = tmp_path / "设置.yaml"
    settings.write_text("端口: 1\n", encoding="utf-8")
    job = installed.command("run", "--name", "猫咪", "--", "sh", "-c", "echo 你好", **locale)
    fault = installed.command("check", "--config", str(settings), **locale)

    assert (job.returncode, job.stdout.decode("utf-8")) == (0, "你好\n")
    assert fault.returncode == 2
    assert f"{settings}:1: 端口: unknown setting" in fault.stderr.decode("utf-8")
