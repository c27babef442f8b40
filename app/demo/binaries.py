"""The programs that the demo plays with: found on PATH, or installed by apt-get when we are root."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tunewarden.errors import SettingsError

# Name here -> (names to look for, Debian package). Debian calls Alertmanager's binary prometheus-alertmanager.
PROGRAMS: Mapping[str, tuple[Sequence[str], str]] = {
    "prometheus": (("prometheus",), "prometheus"),
    "alertmanager": (("alertmanager", "prometheus-alertmanager"), "prometheus-alertmanager"),
}
_POLICY = Path("/usr/sbin/policy-rc.d")


def find() -> dict[str, str]:
    """The paths of the programs that are there, by our name for them."""
    found = {}
    for name, (names, _) in PROGRAMS.items():
        path = next((path for candidate in names if (path := shutil.which(candidate))), None)
        if path:
            found[name] = path
    return found


def find_or_install(say: Callable[[str], None], environment: Mapping[str, str]) -> dict[str, str]:
    """All programs, installed first when one is missing and we are root on Debian or Ubuntu.

    Raises SettingsError with the line to type when they can't be installed.
    """
    found = find()
    missing = [package for name, (_, package) in PROGRAMS.items() if name not in found]
    if not missing:
        return found
    line = f"apt-get install --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SettingsError(
            f"the demo needs {', '.join(missing)}, which are not on PATH: run `sudo {line}`, then again"
        )
    say(f"installing {', '.join(missing)} by apt-get (their own services are not started)")
    _apt_get(line.split(), environment)
    found = find()
    if len(found) < len(PROGRAMS):
        raise SettingsError(f"`{line}` ended, but the programs are not on PATH: install Prometheus and Alertmanager")
    return found


def _apt_get(install: list[str], environment: Mapping[str, str]) -> None:
    """Run apt-get so that no package starts a service of its own: it would take the machine's ports."""
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        _POLICY.chmod(0o755)
    try:
        quiet = {**environment, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], [install[0], install[1], "-y", "-qq", *install[2:]]):
            done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SettingsError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)
