"""Why a generation ended, from its exit status, crash.json and what it printed. Texts: trainers seen with torch 2.x."""

import re
from dataclasses import dataclass
from enum import StrEnum

from tunewarden.supervisor.keeper_log import SAID_BY_US


class Cause(StrEnum):
    """The causes of docs/reference/jobs-api.md."""

    FINISHED = "finished"
    CUDA_OOM = "cuda_oom"
    USER_STOP = "user_stop"
    POLICY_STOP = "policy_stop"
    REPLACED = "replaced"
    KILLED = "killed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is known about how a generation ended by itself.

    `exit_status` is the launcher's: negative for a signal, None when nobody could reap it. `tail` is the end of what
    this generation printed. `near_end` is None when the number of steps is unknown.
    """

    exit_status: int | None
    crash: str | None
    tail: str
    near_end: bool | None


# What a job prints is judged within bounds, and each pattern below is linear: no quantifier overlaps another.
_TAIL_CHARS = 64 * 1024
_LINE_CHARS = 4 * 1024
_CRASH_CHARS = 16 * 1024
_LINE_ENDS = re.compile(r"[\r\n]+")
# "torch.OutOfMemoryError: CUDA out of memory. ..." (torch >= 2.5), "torch.cuda.OutOfMemoryError: ..." and
# "RuntimeError: CUDA out of memory. ..." before; HIP is what ROCm says.
_ERROR_NAME = re.compile(r"(?:OutOfMemoryError|RuntimeError|AcceleratorError)\b", re.IGNORECASE)
_CARD_FULL = re.compile(r"\b(?:CUDA|HIP) out of memory", re.IGNORECASE)
_OOM_NAME = re.compile(r"OutOfMemoryError\b", re.IGNORECASE)
_OOM_STATUS = re.compile(
    r"(?:CUDA|HIP) error: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|cuDNN error: CUDNN_STATUS_(?:NOT_SUPPORTED|ALLOC_FAILED)",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"(?:\[?rank\s?\d+\]?:\s*)?([A-Za-z_][\w.]*)(?::|$)")
_EXCEPTION_ENDS = ("Error", "Exception", "Interrupt", "Exit")
# What launchers add after the trainer's own traceback: not a cause.
_LAUNCHER = re.compile(r"CalledProcessError|ChildFailedError")
_KILLED = re.compile(
    r"died with <Signals\.SIGKILL|Signal 9 \(SIGKILL\)|killed by signal: Killed"
    r"|^Killed$|\bKilled\s+\S|exitcode\s*:\s*-9"
)
# Deaths that somebody else chose: an exception text before them was survived.
_FOREIGN_SIGNALS = frozenset({1, 2, 9, 15})


def is_oom_line(line: str) -> bool:
    """Whether a printed line says that the card had no memory left."""
    if _OOM_STATUS.search(line):
        return True
    if "out of memory" not in line.lower():
        return False
    named, oom = _ERROR_NAME.search(line), _OOM_NAME.search(line)
    if named is not None and _CARD_FULL.search(line, named.end()):
        return True
    return oom is not None and "out of memory" in line[oom.end() :].lower()


def lines_of(text: str) -> list[str]:
    """The lines of a log, each cut at 4 KiB, where a progress bar's carriage return ends one as well."""
    cut = (line[:_LINE_CHARS].strip() for line in _LINE_ENDS.split(text))
    return [line for line in cut if line]


def cause_of(ending: Ending) -> tuple[Cause, str]:
    """The cause and the line that shows it, "" where the exit status says it all.

    cuda_oom needs the exception's text and an end that is not 0.
    """
    if ending.exit_status is None:
        return Cause.UNKNOWN, "the exit status is unknown: the keeper was gone"
    if ending.exit_status == 0:
        return _good_end(ending)
    lines = [line for line in lines_of(ending.tail[-_TAIL_CHARS:]) if not line.startswith(SAID_BY_US)]
    oom = _oom_evidence(ending, lines)
    if oom is not None:
        return Cause.CUDA_OOM, oom
    signal = _signal_of(ending.exit_status)
    killed = next((line for line in reversed(lines[-40:]) if _KILLED.search(line)), None)
    if signal in _FOREIGN_SIGNALS or killed is not None:
        return Cause.KILLED, killed or ""
    last = _last_exception(lines)
    said = ending.crash or (lines[last] if last is not None else "") or (lines[-1] if lines else "")
    return Cause.FAILED, _short(said)


def _good_end(ending: Ending) -> tuple[Cause, str]:
    if ending.near_end is False:
        return Cause.UNKNOWN, "ended with 0 before its last step"
    return Cause.FINISHED, ""


def _oom_evidence(ending: Ending, lines: list[str]) -> str | None:
    if ending.crash is not None:
        crash = ending.crash[:_CRASH_CHARS]
        return _short(crash) if is_oom_line(crash.replace("\n", " ")) else None
    if _signal_of(ending.exit_status or 0) in _FOREIGN_SIGNALS:
        return None
    last = _last_exception(lines)
    bare = next((i for i in range(len(lines) - 1, -1, -1) if is_oom_line(lines[i])), None)
    if bare is None or any(_KILLED.search(line) for line in lines[bare:]):
        return None
    # An OOM that was caught and survived is followed by the exception that really ended the run.
    if last is not None and last > bare and not is_oom_line(lines[last]):
        return None
    return _short(lines[bare])


def _last_exception(lines: list[str]) -> int | None:
    """The place of the last line that names an exception of the trainer's own."""
    for index in range(len(lines) - 1, -1, -1):
        if _names_exception(lines[index]) and not _LAUNCHER.search(lines[index]):
            return index
    return None


def _names_exception(line: str) -> bool:
    """Whether a line begins as a traceback's last one does: `KeyError: 'x'`, `[rank0]: torch.OutOfMemoryError: …`."""
    found = _EXCEPTION.match(line)
    name = found[1].rpartition(".")[2] if found else ""
    return name.endswith(_EXCEPTION_ENDS) and name not in _EXCEPTION_ENDS and not name[0].isdigit()


def _signal_of(status: int) -> int | None:
    """The signal in a status: -9 from a reaped child, 137 from a shell between."""
    if status < 0:
        return -status
    return status - 128 if 128 < status < 160 else None


def _short(text: str) -> str:
    return " ".join(text[:_CRASH_CHARS].split())[:500]
