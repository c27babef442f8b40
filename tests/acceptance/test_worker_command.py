"""run_command's process: argv only, its environment, its end, its output."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tunewarden.adapters.command import OUTPUT_LIMIT, CommandResult, environment_of, run_command

HOSTILE = '$(touch /tmp/x); `id` | rm -rf / "quoted"'


def run(*argv: str, timeout_s: float = 10.0, grace_s: float = 0.2, **environment: str) -> CommandResult:
    return asyncio.run(
        run_command(argv, environment={"PATH": "/usr/bin:/bin", **environment}, timeout_s=timeout_s, grace_s=grace_s)
    )


def test_no_shell_reads_the_words() -> None:
    """What looks like shell is a word like any other."""
    result = run("printf", "%s", HOSTILE)

    assert (result.exit_status, result.output) == (0, HOSTILE)


def test_only_named_variables_and_facts_get_in() -> None:
    """A label can't bring a variable along, nor end one early."""
    own = {"PATH": "/usr/bin:/bin", "HOME": "/root", "AWS_SECRET": "x", "BAD": "a\0b"}
    facts = {"REMEDIATION_JOB_NAME": "a\nLD_PRELOAD=/x\0" + "y" * 1000}
    environment = environment_of(("PATH", "HOME", "BAD", "NOT_SET"), own, facts)

    assert sorted(environment) == ["HOME", "PATH", "REMEDIATION_JOB_NAME"]
    assert environment["REMEDIATION_JOB_NAME"].startswith("a LD_PRELOAD=/x ")
    assert len(environment["REMEDIATION_JOB_NAME"]) == 256


def test_the_command_sees_exactly_its_environment() -> None:
    """Nothing of the service's own is inherited."""
    result = run("env", NAME="value")

    assert sorted(result.output.split()) == ["NAME=value", "PATH=/usr/bin:/bin"]


@pytest.mark.parametrize(
    ("argv", "status"), [(("false",), 1), (("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -9 $$"), -9)]
)
def test_a_failure_is_a_result(argv: tuple[str, ...], status: int) -> None:
    """Its code, or the signal that ended it."""
    result = run(*argv)

    assert (result.ok, result.exit_status) == (False, status)


@pytest.mark.parametrize("argv", [("/no/such/command",), ("/etc/passwd",), ("a\0b",)])
def test_what_cannot_start_is_a_result_too(argv: tuple[str, ...]) -> None:
    """A missing file, one that isn't executable, and a word that no argv can hold."""
    result = run(*argv)

    assert (result.ok, result.exit_status) == (False, None)
    assert result.output


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, trap: str) -> None:
    """TERM, and KILL for one that ignores it; what it had started itself is not ours to end."""
    pids = tmp_path / "pids"
    script = f"{trap}sleep 30 >/dev/null 2>&1 & echo $$ $! > {pids}; while :; do sleep 0.05; done"
    begun = time.monotonic()
    result = run("sh", "-c", script, timeout_s=0.5)
    child, grandchild = (int(pid) for pid in pids.read_text().split())
    alive = Path(f"/proc/{grandchild}").exists()
    os.kill(grandchild, 9)

    assert (result.ok, result.timed_out) == (False, True)
    assert time.monotonic() - begun < 8
    assert not Path(f"/proc/{child}").exists()
    assert alive


def test_output_is_bounded_and_never_blocks_the_command() -> None:
    """A talkative command runs to its end; the first bytes are kept."""
    result = run("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' 'x'; exit 4")

    assert (result.exit_status, len(result.output)) == (4, OUTPUT_LIMIT)


def test_a_secret_in_the_output_is_not_kept() -> None:
    """Whatever the command prints ends up where people read."""
    result = run("printf", "%s", "curl https://x/?access_token=abcdef123 -H 'Authorization: Bearer qwertyuiop'")

    assert "abcdef123" not in result.output
    assert "qwertyuiop" not in result.output


def test_a_child_that_holds_the_pipe_does_not_hold_us() -> None:
    """The command is over when it is over, whatever it left behind."""
    begun = time.monotonic()
    result = run("sh", "-c", "sleep 5 & echo started")

    assert (result.exit_status, result.output) == (0, "started\n")
    assert time.monotonic() - begun < 4.0


def test_a_service_that_ends_takes_its_command_along(tmp_path: Path) -> None:
    """Cancelled: the child is ended and reaped, not left to act on its own."""
    pid_file = tmp_path / "pid"

    async def cancelled() -> None:
        running = asyncio.create_task(
            run_command(("sh", "-c", f"echo $$ > {pid_file}; exec sleep 30"), environment={}, timeout_s=60)
        )
        while not pid_file.exists() or not pid_file.read_text():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())

    assert not Path(f"/proc/{int(pid_file.read_text())}").exists()
