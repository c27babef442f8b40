"""How large a state is: measured within bounds, as the trainer alone says where it lies."""

from pathlib import Path

import pytest

from tunewarden.supervisor import state_size
from tunewarden.supervisor.state_size import size_of


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    """Files count at any depth; links, folders themselves and what is not there count nothing."""
    (tmp_path / "s" / "deep").mkdir(parents=True)
    (tmp_path / "s" / "a").write_bytes(b"x" * 10)
    (tmp_path / "s" / "deep" / "b").write_bytes(b"x" * 5)
    (tmp_path / "s" / "link").symlink_to(tmp_path / "s")
    (tmp_path / "linked").symlink_to(tmp_path / "s")

    assert size_of(tmp_path / "s") == 15
    assert size_of(tmp_path / "linked", tmp_path / "none", tmp_path / "s" / "a") == 25


def test_no_more_than_so_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path with the whole disk below it is not walked to its end."""
    for number in range(50):
        (tmp_path / str(number)).write_bytes(b"x")
    monkeypatch.setattr(state_size, "_MOST_ENTRIES", 10)

    assert size_of(tmp_path) == 9


def test_no_longer_than_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow file system ends the measuring as well."""
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setattr(state_size, "_MEASURE_S", 0.0)

    assert size_of(tmp_path) == 0
