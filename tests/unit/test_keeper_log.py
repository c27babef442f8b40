"""The log of a job's output, and the look-out for out-of-memory lines."""

from pathlib import Path

import pytest

from tunewarden.supervisor.keeper_log import OomWatch, OutputLog


def test_the_log_is_rotated_once(tmp_path: Path) -> None:
    """What does not fit begins a new file; the one before is kept, the one before that is not."""
    log = OutputLog(str(tmp_path / "output.log"), rotate_bytes=10)
    for piece in (b"aaaaaa", b"bbbb", b"cccccc", b"dddddd"):
        log.write(piece)

    assert (tmp_path / "output.log").read_bytes() == b"dddddd"
    assert (tmp_path / "output.log.1").read_bytes() == b"cccccc"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_log_goes_on_where_it_was(tmp_path: Path) -> None:
    """A second writer, the agent after the keeper's death, appends and knows the size."""
    OutputLog(str(tmp_path / "output.log"), rotate_bytes=10).write(b"aaaaaa")
    OutputLog(str(tmp_path / "output.log"), rotate_bytes=10).write(b"bbbbbb")

    assert (tmp_path / "output.log").read_bytes() == b"bbbbbb"


def test_a_full_disk_costs_only_the_log() -> None:
    """/dev/full takes nothing; nothing is raised."""
    OutputLog("/dev/full").write(b"lost")


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"step 1\n", b"loss 0.1\n"], []),
        ([b"torch.OutOfMemoryError: CUDA out of memory.\n"], ["torch.OutOfMemoryError: CUDA out of memory."]),
        ([b"CUDA out of", b" memory. Tried", b"\nnext\n"], ["CUDA out of memory. Tried"]),
        ([b"bar 3%\rCUDA OUT OF MEMORY\r\nbar 4%"], ["CUDA OUT OF MEMORY"]),
        ([b"RuntimeError: CUBLAS_STATUS_ALLOC_FAILED\n", b"more\n"], ["RuntimeError: CUBLAS_STATUS_ALLOC_FAILED"]),
        ([b"x" * 5000, b" out of memory\n"], ["x" * (2048 - 14) + " out of memory"]),
        ([b"out of memory 1\nout of memory 2\n"], ["out of memory 2"]),
    ],
)
def test_out_of_memory_lines_are_found(pieces: list[bytes], lines: list[str]) -> None:
    """However the line is cut into pieces, and told once."""
    watch = OomWatch()

    assert [line for piece in pieces if (line := watch.feed(piece)) is not None] == lines


def test_a_log_whose_folder_is_gone_says_so(tmp_path: Path) -> None:
    """It can't be rotated any more; nothing is raised, and no other file is written to."""
    folder = tmp_path / "run"
    folder.mkdir()
    log = OutputLog(str(folder / "output.log"), rotate_bytes=10)
    log.write(b"aaaaaa")
    (folder / "output.log").unlink()
    folder.rmdir()
    log.write(b"bbbbbb")

    assert log.trouble == "No such file or directory"
