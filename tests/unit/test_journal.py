"""The agent's journal: what a kill leaves of it is read back, and nothing is announced before it is on disk."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tunewarden.supervisor.journal import Journal, Kind


def journal(path: Path) -> Journal:
    return Journal(path, boot_id="boot-1", monotonic=lambda: 12.5)


def test_entries_are_read_back(tmp_path: Path) -> None:
    """A second reader finds what the first wrote, in order."""
    first = journal(tmp_path / "j")
    first.append("o-1", "plan", Kind.INTENT, {"a": 1})
    first.append("o-1", "plan", Kind.OUTCOME, {"word": "größe 批"})

    found = journal(tmp_path / "j").entries()

    assert [(each.seq, each.kind, dict(each.detail)) for each in found] == [
        (1, Kind.INTENT, {"a": 1}),
        (2, Kind.OUTCOME, {"word": "größe 批"}),
    ]


@pytest.mark.parametrize("torn", [b'{"seq": 2, "ord', b"{", b"\xff\xfe"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    """What was being written when the kill came was never announced; the next entry gets a line of its own."""
    journal(tmp_path / "j").append("o-1", "plan", Kind.INTENT)
    with (tmp_path / "j").open("ab") as file:
        file.write(torn)

    second = journal(tmp_path / "j")
    second.append("o-1", "plan", Kind.OUTCOME)

    assert not second.damaged
    lines = (tmp_path / "j").read_bytes().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


def test_another_line_that_can_not_be_read_is_damage(tmp_path: Path) -> None:
    """A journal with a hole in it is not trusted."""
    journal(tmp_path / "j").append("o-1", "plan", Kind.INTENT)
    with (tmp_path / "j").open("ab") as file:
        file.write(b"nonsense\n")
    journal(tmp_path / "j").append("o-1", "plan", Kind.OUTCOME)

    assert journal(tmp_path / "j").damaged


def test_a_word_that_is_not_utf8_survives(tmp_path: Path) -> None:
    """An argument of a command may hold any byte: it is kept as Python's surrogate escape."""
    journal(tmp_path / "j").note("launch", {"argv": ["a\udcff"]})

    assert journal(tmp_path / "j").notes("launch")[0].detail["argv"] == ["a\udcff"]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    """The journal holds the job's command line: mode 0600."""
    journal(tmp_path / "j")

    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


@contextmanager
def room(most: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: the write that crosses it is cut short, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_was_cut_short_leaves_no_half_line(tmp_path: Path) -> None:
    """The intent that comes after a full disk is on a line of its own, and is read back."""
    first = journal(tmp_path / "j")
    first.append("o-1", "plan", Kind.INTENT)
    with room((tmp_path / "j").stat().st_size + 20), pytest.raises(OSError, match="too large"):
        first.append("o-1", "plan", Kind.ACKED)
    trouble = first.trouble
    first.append("o-1", "stop", Kind.INTENT)
    second = journal(tmp_path / "j")

    assert (trouble, first.trouble) == ("File too large", "")
    assert not second.damaged
    assert [(each.seq, each.phase) for each in second.entries()] == [(1, "plan"), (2, "stop")]
    assert first.entries() == second.entries()


def test_what_is_so_already_is_kept_where_the_disk_is_full(tmp_path: Path) -> None:
    """A note is there at once, and on disk, in its place, with the first write that goes through."""
    first = journal(tmp_path / "j")
    with room(10):
        first.note("event", {"n": 1})
        first.keep("o-1", "refused", Kind.ENDED, {})
    held = len(first.entries())
    first.append("o-2", "accept", Kind.INTENT)

    assert held == 2
    assert [each.phase for each in journal(tmp_path / "j").entries()] == ["event", "refused", "accept"]
