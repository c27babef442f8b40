"""Tokens are made once, private, and never quoted; doors compare them and tell nothing."""

import base64
import multiprocessing
import os
from pathlib import Path

import pytest

from tunewarden.adapters.tokens import alertmanager_lines, ensure_token, read_token
from tunewarden.api.auth import Door, Entry
from tunewarden.errors import SettingsError


def test_a_token_is_made_once(tmp_path: Path) -> None:
    """32 random bytes, mode 0600; the second start reads the same."""
    path = tmp_path / "state" / "webhook.token"

    token, fresh = ensure_token(path)

    assert fresh
    assert len(token) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_token(path) == (token, False)
    assert list(path.parent.iterdir()) == [path]


def test_two_starts_at_once_agree(tmp_path: Path) -> None:
    """Nobody reads half a token, and all read the same."""
    path = str(tmp_path / "webhook.token")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        made = pool.map(_made, [path] * 8)

    assert len({token for token, _fresh in made}) == 1
    assert sum(fresh for _token, fresh in made) == 1


def _made(path: str) -> tuple[str, bool]:
    return ensure_token(Path(path))


@pytest.mark.parametrize("text", ["", "\n", "two words\n", "SECRETX\nSECRETX\n", "é\n"])
def test_a_token_file_that_holds_no_token_stops_the_start(tmp_path: Path, text: str) -> None:
    """The service never runs open; the message does not quote the file."""
    path = tmp_path / "webhook.token"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(SettingsError) as error:
        ensure_token(path)

    assert str(path) in str(error.value)
    assert "SECRETX" not in str(error.value)


def test_a_folder_that_can_not_be_made_stops_the_start(tmp_path: Path) -> None:
    """With the reason of the system."""
    (tmp_path / "file").write_text("")

    with pytest.raises(SettingsError, match="can't be made"):
        ensure_token(tmp_path / "file" / "state" / "webhook.token")


def test_a_missing_token_says_who_makes_it(tmp_path: Path) -> None:
    """The command line on a machine where the service never ran."""
    with pytest.raises(SettingsError, match="tunewarden serve"):
        read_token(tmp_path / "agent.token")


def test_the_lines_hold_no_token(tmp_path: Path) -> None:
    """They are printed and pasted: only the file's name is in them."""
    token, _ = ensure_token(tmp_path / "webhook.token")

    lines = alertmanager_lines("http://10.0.0.3:9750", tmp_path / "webhook.token")

    assert token not in lines
    assert "url: http://10.0.0.3:9750/api/v1/alertmanager" in lines


def test_a_door_without_a_token_can_not_be_built() -> None:
    """Open to everybody is not a state that exists."""
    for tokens in ((), (b"",), (b"a", b"")):
        with pytest.raises(ValueError, match="open to everybody"):
            Door(tokens=tokens)


def _basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


@pytest.mark.parametrize(
    ("authorization", "entry"),
    [
        (b"Bearer one", Entry.OPEN),
        (b"BEARER two", Entry.OPEN),
        (b"Bearer other", Entry.FORBIDDEN),
        (_basic("prom:p:w"), Entry.OPEN),
        (_basic("prom:"), Entry.UNKNOWN),
        (_basic("one"), Entry.UNKNOWN),
        (b"Basic one", Entry.UNKNOWN),
        (b"Bearer on", Entry.UNKNOWN),
        (b"Bearer onee", Entry.UNKNOWN),
        (b"Bearer \xff\xfe", Entry.UNKNOWN),
        (b"one", Entry.UNKNOWN),
        (b"", Entry.UNKNOWN),
        (None, Entry.UNKNOWN),
    ],
)
def test_a_door_knows_its_own(authorization: bytes | None, entry: Entry) -> None:
    """Two tokens (while one is changed for another), basic, and the token of another door."""
    door = Door(tokens=(b"one", b"two"), others=(b"other",), basic=b"prom:p:w")

    assert door.check(authorization) is entry


def test_basic_is_closed_where_it_is_not_set() -> None:
    """The settings name no user: an empty one does not come in."""
    assert Door(tokens=(b"one",)).check(_basic(":")) is Entry.UNKNOWN


def test_this_test_does_not_run_with_a_umask_that_hides_a_fault(tmp_path: Path) -> None:
    """The mode is the code's doing: it is 0600 under a wide-open umask too."""
    before = os.umask(0)
    try:
        ensure_token(tmp_path / "webhook.token")
    finally:
        os.umask(before)

    assert (tmp_path / "webhook.token").stat().st_mode & 0o777 == 0o600
