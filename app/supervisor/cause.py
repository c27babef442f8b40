"""Why a generation ended: from its exit status, crash.json, what it printed, and what the kernel and its group say.

Texts: trainers seen with torch 1.x and 2.x. docs/reference/causes.md has the rules in words.
"""

import math
import re
from collections.abc import Callable, Sequence

from tunewarden.domain.cause import Cause
from tunewarden.domain.oom_text import read_oom
from tunewarden.domain.xid import class_of
from tunewarden.supervisor.cause_signatures import (
    HOST_MEMORY,
    KILLED,
    SIGNATURES,
    Signature,
    exception_of,
    full_path,
    is_others,
    last_loss,
    pids_killed,
    was_loading,
    was_sampling,
)
from tunewarden.supervisor.death import Death, Ending, Fact
from tunewarden.supervisor.keeper_log import SAID_BY_US

# What a job prints is judged within bounds, and each pattern below is linear: no quantifier overlaps another.
_TAIL_CHARS = 64 * 1024
_LINE_CHARS = 4 * 1024
_CRASH_CHARS = 16 * 1024
_NEAR_LINES = 60  # of the end: a death without an exception's name is told there
_AT_ONCE_S = 60.0
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
_TRACEBACK = "Traceback (most recent call last)"
# Deaths that somebody else chose: an exception text before them was survived.
_FOREIGN_SIGNALS = frozenset({1, 2, 9, 15})
_LOADING = frozenset({"load", "cache"})
_WORKER_GONE = "DataLoader worker (pid"  # what torch says when one is gone without a word
_BAR = re.compile(r"%\|[^|]{0,200}\| {0,8}(\d{1,9})/(\d{1,9}) ")  # tqdm's: the last that was printed
_QUIET = "ended with {} and said nothing of why: perhaps it was killed, by whom can't be told"


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


def cause_of(ending: Ending) -> Death:
    """The cause of an end. cuda_oom needs the exception's text and an end that is not 0."""
    if ending.exit_status is None:
        return Death(cause=Cause.UNKNOWN, evidence="the exit status is unknown: the keeper was gone")
    lines = [line for line in lines_of(ending.tail[-_TAIL_CHARS:]) if not line.startswith(SAID_BY_US)]
    if ending.exit_status == 0:
        return _good_end(ending, lines)
    found = _out_of_memory(ending, lines) or _killed(ending, lines) or _signed(ending, lines)
    return found or _failed(ending, lines)


def _good_end(ending: Ending, lines: Sequence[str]) -> Death:
    """Exit code 0 is no success: a run with NaN goes on to its end, and a wrong resume makes no step."""
    if _made_nothing(ending):
        said = f"ended with 0 after {ending.seconds:.0f} s" if ending.seconds is not None else "ended with 0"
        return Death(cause=Cause.FINISHED_WITHOUT_STEPS, evidence=f"{said} without a new step", facts=_steps(ending))
    loss = _bad_loss(ending, lines)
    if loss is not None:
        return Death(cause=Cause.NAN, evidence=f"the last loss is {loss}", facts={"loss": loss})
    if ending.near_end is False:
        return Death(cause=Cause.UNKNOWN, evidence="ended with 0 before its last step")
    swallowed = next((line for line in reversed(lines[-_NEAR_LINES:]) if "Check your disk space!" in line), "")
    return Death(cause=Cause.FINISHED, evidence=_short(swallowed))


def _made_nothing(ending: Ending) -> bool:
    """No step where steps were due: planned and not all done, or a resume that was over within a minute."""
    if ending.steps_made != 0 or ending.near_end is True:
        return False
    at_once = ending.seconds is not None and ending.seconds <= _AT_ONCE_S
    return bool(ending.planned) or (ending.resumed and at_once)


def _steps(ending: Ending) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"steps_made": 0}
    return facts if ending.planned is None else {**facts, "planned_steps": ending.planned}


def _bad_loss(ending: Ending, lines: Sequence[str]) -> str | None:
    if ending.loss is not None:
        return None if math.isfinite(ending.loss) else str(ending.loss)
    return last_loss(lines)


def _out_of_memory(ending: Ending, lines: Sequence[str]) -> Death | None:
    said, frames = _oom_evidence(ending, lines)
    if said is None:
        return None
    facts: dict[str, Fact] = {**read_oom(said).facts()}
    crash = ending.crash
    phases = {crash.phase, crash.where} if crash is not None and (crash.phase or crash.where) else {ending.phase}
    if phases & {"sample", "sampling"} or was_sampling(frames):
        return Death(cause=Cause.OOM_IN_SAMPLING, evidence=_short(said), facts=facts)
    at_load = crash.at_load if crash is not None else None
    if at_load is None and not ending.steps_made:
        at_load = bool(phases & _LOADING) or was_loading(frames)
    return Death(cause=Cause.OOM_AT_LOAD if at_load else Cause.CUDA_OOM, evidence=_short(said), facts=facts)


def _oom_evidence(ending: Ending, lines: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """What was said of the card's memory, and the frames of its traceback."""
    if _signal_of(ending.exit_status or 0) in _FOREIGN_SIGNALS:
        return None, ()  # also with a crash.json: its exception was caught, and then somebody killed
    at = _at_the_end(lines, _is_torchs_word)
    killed = any(KILLED.search(line) for line in lines[at or 0 :])
    if ending.crash is not None:
        error = _one_line(ending.crash.error)
        caught = at is None and killed
        return (error if is_oom_line(error) and not caught else None), ending.crash.frames
    if at is None or killed or _trained_on(lines[at:]):
        return None, ()
    return lines[at], _frames(lines, at)


def _is_torchs_word(line: str) -> bool:
    """Whether a line is the exception itself, or a log's quotation of it; advice about it is neither."""
    whole = exception_of(line) is not None or "Tried to allocate" in line or _OOM_STATUS.search(line) is not None
    return whole and is_oom_line(line)


def _trained_on(lines: Sequence[str]) -> bool:
    """Whether one progress bar moved on in these lines. A bar that is closed by a death is drawn once more only."""
    counts: dict[str, set[str]] = {}
    for found in filter(None, map(_BAR.search, lines)):
        counts.setdefault(found[2], set()).add(found[1])
    return any(len(drawn) > 1 for drawn in counts.values())


def _killed(ending: Ending, lines: Sequence[str]) -> Death | None:
    """A signal, and whether it was the kernel's for want of memory: by evidence, never by the word "Killed"."""
    last = _last_exception(lines)
    words = _one_line(ending.crash.error) if ending.crash else lines[last] if last is not None else ""
    if HOST_MEMORY.matches(words):
        return Death(cause=Cause.HOST_OOM, evidence=_short(words), facts={"memory": ending.outside.memory})
    signal = _signal_of(ending.exit_status or 0)
    killed = next((line for line in (words, *reversed(lines[-40:])) if KILLED.search(line)), None)
    kernel = _kernels_word(ending, killed or "")
    silent = signal is None and (not words or _WORKER_GONE in words)
    if kernel is not None and (signal == 9 or killed is not None or silent):
        facts: dict[str, Fact] = {"memory": "short"}
        if ending.outside.kills:
            facts["oom_kills"] = ending.outside.kills
        return Death(cause=Cause.HOST_OOM, evidence=_short(kernel), facts=facts)
    if signal in _FOREIGN_SIGNALS or killed is not None:
        return Death(cause=Cause.KILLED, evidence=_short(killed or ""), facts={"memory": ending.outside.memory})
    return None


def _kernels_word(ending: Ending, killed: str) -> str | None:
    """The kernel's line about a process of the job, or the count of its control group."""
    outside = ending.outside
    named = next((outside.victims[pid] for pid in pids_killed(killed) if pid in outside.victims), None)
    line = named or next(iter(outside.victims.values()), None)
    if line is None and outside.kills:
        return f"the kernel killed {outside.kills} of the job's control group for want of memory"
    return line


def _signed(ending: Ending, lines: Sequence[str]) -> Death | None:
    """A death that has a name: the trainer's own words first, then what it printed."""
    for signature in SIGNATURES:
        said = _said_by(signature, ending, lines)
        if said is not None:
            return Death(cause=signature.cause, evidence=_short(said), facts=_facts_of(signature.cause, said, ending))
    xid = next(iter(ending.outside.xids), None)
    if xid is not None:
        return Death(cause=Cause.GPU_LOST, evidence=_short(xid[1]), facts=_xid_facts(xid[0]))
    return None


def _said_by(signature: Signature, ending: Ending, lines: Sequence[str]) -> str | None:
    if ending.crash is not None:
        error = _one_line(ending.crash.error)
        return error if signature.matches(error) else None
    near = lines[-_NEAR_LINES:]
    at = _at_the_end(near, signature.matches, others=signature.cause is Cause.NCCL)
    return None if at is None else near[at]


def _facts_of(cause: Cause, said: str, ending: Ending) -> dict[str, Fact]:
    if cause is Cause.DISK_FULL and (path := full_path(said)) is not None:
        return {"path": path}
    xids = (*ending.outside.xids, *ending.outside.card_xids)
    return _xid_facts(xids[0][0]) if cause is Cause.GPU_LOST and xids else {}


def _xid_facts(xid: int) -> dict[str, Fact]:
    return {"xid": xid, "xid_class": class_of(xid).value}


def _failed(ending: Ending, lines: Sequence[str]) -> Death:
    """Another exception; or nothing but a code, which a launcher's --quiet leaves of a kill."""
    last = _last_exception(lines)
    if ending.crash is not None or last is not None:
        said = ending.crash.error if ending.crash is not None else lines[last or 0]
        return Death(cause=Cause.FAILED, evidence=_short(said))
    trained = ending.steps_made or (lines and _BAR.search(lines[-1]))
    if ending.exit_status == 1 and trained:
        facts: dict[str, Fact] = {"memory": ending.outside.memory}
        return Death(cause=Cause.UNKNOWN, evidence=_QUIET.format(ending.exit_status), facts=facts)
    return Death(cause=Cause.FAILED, evidence=_short(lines[-1] if lines else ""))


def _at_the_end(lines: Sequence[str], matches: Callable[[str], bool], *, others: bool = False) -> int | None:
    """The place of the last line that matches, unless it was caught and survived.

    What was survived is followed by the exception that really ended the run. What launchers and other ranks say after
    it is none (`others`: but it is what is looked for).
    """
    found = next((index for index in range(len(lines) - 1, -1, -1) if matches(lines[index])), None)
    last = _last_exception(lines, others=others)
    if found is None or (last is not None and last > found and not matches(lines[last])):
        return None
    return found


def _last_exception(lines: Sequence[str], *, others: bool = False) -> int | None:
    """The place of the last line that names an exception of the trainer's own."""
    for index in range(len(lines) - 1, -1, -1):
        if exception_of(lines[index]) is not None and (others or not is_others(lines[index])):
            return index
    return None


def _frames(lines: Sequence[str], at: int) -> Sequence[str]:
    """The traceback above a line."""
    for index in range(at, -1, -1):
        if lines[index].endswith((_TRACEBACK, f"{_TRACEBACK}:")):
            return lines[index:at]
    return ()


def _signal_of(status: int) -> int | None:
    """The signal in a status: -9 from a reaped child, 137 from a shell between."""
    if status < 0:
        return -status
    return status - 128 if 128 < status < 160 else None


def _one_line(text: str) -> str:
    return text[:_CRASH_CHARS].replace("\n", " ")


def _short(text: str) -> str:
    return " ".join(text[:_CRASH_CHARS].split())[:500]
