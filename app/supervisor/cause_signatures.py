"""What trainers and libraries print when they die of something that has a name. Texts: docs/reference/causes.md.

Every pattern is linear: a line is at most 4 KiB, and no quantifier overlaps another.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunewarden.domain.cause import Cause

_EXCEPTION = re.compile(r"(?:\[?rank\s?\d+\]?:\s*)?([A-Za-z_][\w.]*)(?::|$)")
_EXCEPTION_ENDS = ("Error", "Exception", "Interrupt", "Exit")
# What launchers and the other ranks add after the trainer's own traceback: not a cause.
_LAUNCHER = re.compile(r"CalledProcessError|ChildFailedError")
_NCCL = re.compile(
    r"Watchdog caught collective operation timeout"
    r"|NCCL error\b"
    r"|DistBackendError"
    r"|\bnccl(?:UnhandledCudaError|SystemError|InternalError|RemoteError)\b"
)
_NCCL_CHATTER = re.compile(r"\bNCCL (?:INFO|WARN|TRACE)\b")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Lines that mean `cause`: each must match `pattern`; `raised`: only where the line names an exception."""

    cause: Cause
    pattern: re.Pattern[str]
    raised: bool = False
    ignores: re.Pattern[str] | None = None

    def matches(self, line: str) -> bool:
        if self.pattern.search(line) is None or (self.ignores is not None and self.ignores.search(line)):
            return False
        return not self.raised or exception_of(line) is not None


SIGNATURES: Sequence[Signature] = (
    Signature(
        cause=Cause.SHM,
        pattern=re.compile(r"killed by signal: Bus error|insufficient shared memory \(shm\)"),
    ),
    Signature(
        cause=Cause.DISK_FULL,
        pattern=re.compile(
            r"\[Errno 28\]|No space left on device|PytorchStreamWriter failed writing file"
            r"|SafetensorError: .{0,200}I/?O ?error|Check your disk space!",
            re.IGNORECASE,
        ),
        ignores=re.compile(r"/dev/shm/"),  # noqa: S108 - a text that is searched for: a full /dev/shm is no full disk
    ),
    Signature(
        cause=Cause.GPU_LOST,
        pattern=re.compile(
            r"CUDA error: (?:unspecified launch failure|an illegal memory access|device-side assert"
            r"|uncorrectable (?:NVLink|ECC) error|the launch timed out|hardware stack error)"
            r"|\bGPU is lost\b|no CUDA-capable device|fallen off the bus"
            r"|Unable to determine the device handle for GPU",
            re.IGNORECASE,
        ),
    ),
    Signature(
        cause=Cause.NAN,
        pattern=re.compile(
            r"NaN (?:detected|found) in latents|loss (?:became|is) NaN|(?:loss|gradient)s? .{0,60}\bNaN\b",
            re.IGNORECASE,
        ),
        raised=True,
    ),
    Signature(cause=Cause.NCCL, pattern=_NCCL, ignores=_NCCL_CHATTER),
)
# The trainer's own words that the host had no memory: an allocation that failed, no kill.
HOST_MEMORY = Signature(
    cause=Cause.HOST_OOM,
    pattern=re.compile(
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|\[Errno 12\] Cannot allocate memory"
        r"|^(?:\[rank\d{1,4}\]: )?(?:numpy\.[\w.]{0,64})?(?:_Array)?MemoryError\b"
    ),
)
KILLED = re.compile(
    r"died with <Signals\.SIGKILL|Signal 9 \(SIGKILL\)|killed by signal: Killed"
    r"|^Killed$|\bKilled\s+\S|exitcode\s*:\s*-9"
)
_PIDS = (
    re.compile(r"worker \(pid (\d{1,10})\) is killed by signal: Killed"),
    re.compile(r"exitcode\s{0,8}:\s{0,8}-9 \(pid: (\d{1,10})\)"),
    re.compile(r"received by PID (\d{1,10})"),
)
# The frames of a traceback that say what the trainer was at.
_SAMPLING = re.compile(
    r", in (?:sample_image\w{0,40}|log_validation|generate_sample\w{0,40}|sample_prompts?|do_sampling)$"
)
_LOADING = re.compile(
    r", in (?:from_pretrained|load_state_dict|_?load_\w{0,40}(?:model|checkpoint|weights|unet|vae|text_encoder)\w{0,40}"
    r"|cache_\w{0,40}latents\w{0,40})$"
)
_PATHS = re.compile(r"No space left on device[^'\"]{0,8}['\"]([^'\"]{1,1024})['\"]")
_LOSS = re.compile(
    r"\b(?:avr_|step_|smooth |train_)?loss['\"]?\s{0,2}[=:]\s{0,2}['\"]?(-?[\w.+-]{1,24})", re.IGNORECASE
)
_NOT_FINITE: Mapping[str, str] = {"nan": "nan", "inf": "inf", "-inf": "-inf", "-nan": "nan", "infinity": "inf"}


def exception_of(line: str) -> str | None:
    """The exception that a line begins with, as a traceback's last one does: `KeyError: 'x'`, `[rank0]: a.BError: …`.

    None for a line that names none, and for a bare `Error`.
    """
    found = _EXCEPTION.match(line)
    name = found[1].rpartition(".")[2] if found else ""
    named = name.endswith(_EXCEPTION_ENDS) and name not in _EXCEPTION_ENDS and not name[0].isdigit()
    return name if named else None


def is_others(line: str) -> bool:
    """Whether a launcher said it of its child, or a rank of another rank."""
    return _LAUNCHER.search(line) is not None or _NCCL.search(line) is not None


def pids_killed(line: str) -> frozenset[int]:
    """The processes of the job that a line calls killed."""
    return frozenset(int(found[1]) for pattern in _PIDS if (found := pattern.search(line)))


def full_path(line: str) -> str | None:
    """The file that found no room, where the message names it."""
    found = _PATHS.search(line)
    return found[1] if found else None


def was_sampling(frames: Sequence[str]) -> bool:
    """Whether the traceback goes through the making of sample images."""
    return any(_SAMPLING.search(line) for line in frames)


def was_loading(frames: Sequence[str]) -> bool:
    """Whether the traceback goes through the loading of a model, or the caching before the first step."""
    return any(_LOADING.search(line) for line in frames)


def last_loss(lines: Sequence[str]) -> str | None:
    """`nan`, `inf` or `-inf` where the last loss that was printed is none; else None."""
    for line in reversed(lines[-40:]):
        found = _LOSS.findall(line)
        if found:
            return _NOT_FINITE.get(found[-1].lower())
    return None
