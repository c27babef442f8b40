"""The agent's journal: what a kill leaves of it is read back, and nothing is announced before it is on disk."""

import json
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
