"""What is asked of the folder where the next state will be written."""

from pathlib import Path

import pytest

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.plan_checks import check_folder


def test_a_folder_that_can_take_a_state(tmp_path: Path) -> None:
    """Of a folder that is still to be made the one above is asked; nothing is left there."""
    check_folder(tmp_path / "out" / "states", 1)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "needed", "reason"),
    [("here", 1 << 60, Reason.NO_DISK_SPACE), ("/proc/nowhere", 1, Reason.OUTPUT_NOT_WRITABLE)],
)
def test_a_folder_that_can_not(tmp_path: Path, folder: str, needed: int, reason: Reason) -> None:
    """No room, or no right to write: the reason, and a line that names the folder."""
    with pytest.raises(Refused) as refused:
        check_folder(tmp_path / folder, needed)

    assert refused.value.reason is reason
    assert str(refused.value).startswith(str(tmp_path / folder))
