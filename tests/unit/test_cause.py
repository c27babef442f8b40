"""Why a generation ended, decided from texts that real trainers print."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunewarden.domain.cause import Cause
from tunewarden.supervisor.cause import cause_of, is_oom_line
from tunewarden.supervisor.death import Crash, Ending
from tunewarden.supervisor.generation_log import TAIL_BYTES, GenerationLog, LogStart

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB "
    "of which 1.10 GiB is free."
)
OLD_TORCH = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 12.00 GiB total capacty; …)"
LAUNCHER = (
    "Traceback (most recent call last):\n  File 'accelerate', line 8\n"
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."
)
KILLED_CHILD = "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>."
BAR = "\rsteps:  10%|#         | 10/100 [00:01<00:09, 9.9it/s]"


def ending(status: int | None, tail: str = "", crash: str | Crash | None = None, **more: Any) -> Ending:
    said = Crash(error=crash) if isinstance(crash, str) else crash
    return Ending(exit_status=status, crash=said, tail=tail, near_end=more.pop("near_end", None), **more)


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (ending(1, TORCH), Cause.CUDA_OOM),
        (ending(1, "[rank0]: " + TORCH), Cause.CUDA_OOM),
        (ending(1, OLD_TORCH), Cause.CUDA_OOM),
        (ending(1, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried"), Cause.CUDA_OOM),
        (ending(1, BAR + BAR + "\n" + TORCH + "\n" + LAUNCHER), Cause.CUDA_OOM),
        (ending(1, "RuntimeError: CUDA error: out of memory"), Cause.CUDA_OOM),
        (ending(1, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), Cause.CUDA_OOM),
        (ending(1, "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), Cause.CUDA_OOM),
        (
            ending(-6, "terminate called after throwing an instance of 'c10::Error'\nCUDA error: out of memory"),
            Cause.CUDA_OOM,
        ),
        (ending(1, "", crash=TORCH), Cause.CUDA_OOM),
        # The text without an end, and an end without the text.
        (ending(0, TORCH), Cause.FINISHED),
        (ending(-9), Cause.KILLED),
        (ending(137, "Killed"), Cause.KILLED),
        (ending(1, KILLED_CHILD), Cause.KILLED),
        (ending(-9, "OOM during training step, skipping batch\n" + TORCH), Cause.KILLED),
        (ending(1, TORCH + "\ncaught, trying a smaller batch\n" + KILLED_CHILD), Cause.KILLED),
        (ending(1, TORCH + "\nskipping batch\nTraceback (most recent call last):\nKeyError: 'x'"), Cause.FAILED),
        (ending(1, TORCH, crash="ValueError: bad latent"), Cause.FAILED),
        # Caught and survived, by the steps that follow; advice, and no exception.
        (ending(1, TORCH + "\n" + BAR + BAR.replace("10/", "60/") + "\nno more data"), Cause.FAILED),
        (ending(1, TORCH + "\n" + BAR + "\n" + BAR + "\n" + LAUNCHER), Cause.CUDA_OOM),
        (ending(1, "Tip: if you see RuntimeError: CUDA out of memory, lower it\nerror: bad argument"), Cause.FAILED),
        (ending(1, "ERROR train: " + TORCH), Cause.CUDA_OOM),
        # crash.json of an exception that was caught, and then a kill: a kill never says anything of the card.
        (ending(-9, crash=TORCH), Cause.KILLED),
        (ending(137, "Killed", crash=TORCH), Cause.KILLED),
        (ending(1, KILLED_CHILD, crash=TORCH), Cause.KILLED),
        (ending(1, TORCH + "\nexitcode  : -9 (pid: 12)", crash=TORCH), Cause.CUDA_OOM),
        (ending(1, "Out of memory: Killed process 4711 (python)"), Cause.KILLED),
        (ending(1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"), Cause.HOST_OOM),
        (ending(1, "FileNotFoundError: [Errno 2] No such file"), Cause.FAILED),
        (ending(-11), Cause.FAILED),
        (ending(-15), Cause.KILLED),
        (ending(0, near_end=True), Cause.FINISHED),
        (ending(0, near_end=False), Cause.UNKNOWN),
        (ending(None, TORCH), Cause.UNKNOWN),
    ],
)
def test_causes(given: Ending, cause: Cause) -> None:
    """cuda_oom takes the exception's text and a bad end; a bare SIGKILL is killed."""
    assert cause_of(given).cause is cause


@pytest.mark.parametrize(
    ("given", "evidence"),
    [
        (ending(0), ""),
        (ending(7), ""),
        (ending(-9), ""),
        (ending(7, "tunewarden: no service answers at http://127.0.0.1:9\n"), ""),
        (ending(7, "no such file\ntunewarden: no service answers at http://127.0.0.1:9\n"), "no such file"),
        (ending(137, "Killed"), "Killed"),
        (ending(0, near_end=False), "ended with 0 before its last step"),
    ],
)
def test_evidence_says_more_than_the_exit_status(given: Ending, evidence: str) -> None:
    """The exit status is told by itself, and what we have said is not the job's."""
    assert cause_of(given).evidence == evidence


def test_the_evidence_is_the_line(tmp_path: Path) -> None:
    """What is shown to a person is the exception's own line."""
    assert cause_of(ending(1, BAR + "\n" + TORCH + "\n" + LAUNCHER)).evidence == TORCH


@pytest.mark.parametrize("line", ["loss 0.1", "out of memory budget: 3", "tunewarden: waiting for memory"])
def test_lines_that_are_none(line: str) -> None:
    """Talk about memory is no out-of-memory."""
    assert not is_oom_line(line)


def test_only_this_generation_is_read(tmp_path: Path) -> None:
    """An OOM text of the generation before is not seen."""
    path = tmp_path / "output.log"
    path.write_text(TORCH + "\n")
    start = LogStart.now(path)
    with path.open("a") as file:
        file.write("ValueError: x\n")

    log = GenerationLog(path, start)
    log.read()

    assert log.tail() == "ValueError: x\n"
    assert log.oom_lines == 0


def test_the_log_is_followed_across_its_rotation(tmp_path: Path) -> None:
    """What was printed before and after the rotation is counted once."""
    path = tmp_path / "output.log"
    path.write_text("before\n")
    log = GenerationLog(path, LogStart.now(path))
    with path.open("a") as file:
        file.write(TORCH + "\n")
    path.rename(tmp_path / "output.log.1")
    path.write_text("after\n" + TORCH[:20])

    log.read()
    with path.open("a") as file:
        file.write(TORCH[20:] + "\r")
    log.read()

    assert log.oom_lines == 2
    assert "before" not in log.tail()


def test_the_tail_is_bounded(tmp_path: Path) -> None:
    """However much is printed, 64 KiB are kept."""
    path = tmp_path / "output.log"
    log = GenerationLog(path, LogStart.now(path))
    path.write_bytes(b"x" * (3 * TAIL_BYTES))

    log.read()

    assert len(log.tail()) == TAIL_BYTES


HOSTILE = """
from tunewarden.supervisor.cause import cause_of, is_oom_line
from tunewarden.supervisor.death import Crash, Ending
text = {text!r} * ((1 << 20) // len({text!r}))
is_oom_line(text)
for crash, tail in ((Crash(error=text, frames=(text,)), ""), (None, text), (None, text + "\\n" + text)):
    for status in (0, 1):
        cause_of(Ending(exit_status=status, crash=crash, tail=tail, near_end=None))
"""


@pytest.mark.parametrize(
    "text",
    [
        *("RuntimeError ", "OutOfMemoryError ", "a.", "Killed  ", "exitcode  : ", "loss = ", "loss nan ", "%|"),
        *("SafetensorError: I/O ", "No space left on device '", "1.5 GiB ", ", in sample_image", "NCCL WARN "),
    ],
)
def test_a_hostile_mebibyte_is_judged_at_once(text: str) -> None:
    """What a job prints can't keep the agent busy: the work grows with the text, never with its square."""
    judge = [sys.executable, "-E", "-P", "-c", HOSTILE.format(text=text)]

    assert subprocess.run(judge, timeout=5, check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("OutOfMemoryError: HIP out of memory", True),
        ("RuntimeError: x; cuda OUT OF MEMORY", True),
        ("CUDA out of memory, said before RuntimeError", False),
        ("RuntimeError: out of memory", False),
        ("RuntimeErrors: CUDA out of memory", False),
    ],
)
def test_the_order_of_words_in_an_oom_line(line: str, expected: bool) -> None:
    """The exception's name comes first, then the card that is full."""
    assert is_oom_line(line) is expected


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("ValueError: x", True),
        ("[rank1]: a.b.ValueError: x", True),
        ("rank 1: KeyboardInterrupt", True),
        ("SystemExit", True),
        ("Error: x", False),
        ("a ValueError: x", False),
        ("ValueErrors: x", False),
        ("ValueError x", False),
    ],
)
def test_the_line_that_names_an_exception(line: str, named: bool) -> None:
    """It is the evidence before the last line is."""
    evidence = cause_of(ending(1, f"{line}\nthe end")).evidence

    assert evidence == (line if named else "the end")
