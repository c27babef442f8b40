"""Runs the command of a `run_command` step on the service's own host: argv only, never a shell."""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunewarden.telemetry import redacted

OUTPUT_LIMIT = 16 * 1024  # bytes kept of what the command prints
VALUE_LIMIT = 256  # characters of one environment value
GRACE_S = 5.0  # from TERM to KILL
_DRAIN_S = 1.0  # how long output may go on after the command's end: a child of its own may hold the pipe


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command ended. `exit_status`: its code, negative for a signal, None when it could not be started."""

    exit_status: int | None
    output: str = ""
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_status == 0 and not self.timed_out


def environment_of(names: Sequence[str], own: Mapping[str, str], facts: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: of the service's `own` only the listed names, and the facts of the remediation.

    Facts come from labels, which anyone who can alert may write: control characters go, and a value is cut to 256
    characters. Their names are ours, so no label can become LD_PRELOAD.
    """
    let_through = {name: own[name] for name in names if name in own and "\0" not in own[name]}
    return {**let_through, **{name: _one_line(value) for name, value in facts.items()}}


async def run_command(
    argv: Sequence[str], *, environment: Mapping[str, str], timeout_s: float, grace_s: float = GRACE_S
) -> CommandResult:
    """Run it to its end, or for `timeout_s` seconds; then TERM, and KILL after `grace_s`, for this child only.

    Never raises for what the command does; a command that can't be started is a result without an exit status.
    """
    read_end, write_end = os.pipe()
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            env=dict(environment),
            cwd="/",
            start_new_session=True,  # Ctrl-C on the service's terminal is no order to the command
        )
    except (OSError, ValueError) as error:
        os.close(read_end)
        return CommandResult(exit_status=None, output=redacted(f"{argv[0]!r}: {error}"))
    finally:
        os.close(write_end)
    kept = bytearray()
    reading = asyncio.create_task(_read(read_end, kept))
    try:
        timed_out = not await _ended(child, timeout_s)
        if timed_out:
            await _end(child, grace_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, _DRAIN_S)
    finally:
        reading.cancel()
        if child.returncode is None:  # we are being cancelled
            child.kill()
            await child.wait()
    text = redacted(kept.decode("utf-8", "replace"))
    return CommandResult(exit_status=child.returncode, output=text, timed_out=timed_out)


async def _read(read_end: int, kept: bytearray) -> None:
    """Keep the first bytes and throw the rest away, so that a talkative command is never blocked.

    A pipe of our own: asyncio's `wait` on one of its pipes ends only when every process that inherited it has ended.
    """
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
    )
    try:
        while chunk := await reader.read(65536):
            kept.extend(chunk[: OUTPUT_LIMIT - len(kept)])
    finally:
        transport.close()


async def _ended(child: asyncio.subprocess.Process, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(child.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


async def _end(child: asyncio.subprocess.Process, grace_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    if not await _ended(child, grace_s):
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _one_line(value: str) -> str:
    return "".join(char if char.isprintable() else " " for char in value)[:VALUE_LIMIT]
