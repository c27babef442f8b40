"""A trainer with a format of its own is not stopped over a state that it can't read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.trainer_case import case
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.execution import Execution
from tunewarden.supervisor.plan_checks import check_format

TOOLKIT = ("python run.py c.yaml", {"run.py": "from toolkit.job import get_job\n", "c.yaml": "job: extension\n"})
LOOP = ("python loop.py", {"loop.py": "from accelerate import Accelerator\nAccelerator()\n"})


def execution(folder: Path, line: str, files: dict[str, str], by: str | None) -> Execution:
    """As much of an order's execution as is asked for."""
    recipe = case(folder, line, files).recipe
    control = SimpleNamespace(hello=lambda: SimpleNamespace(by=by))
    run: Any = SimpleNamespace(control=lambda: control, recipe=lambda: recipe)
    return cast(Execution, SimpleNamespace(run=run))


def test_ai_toolkit_is_left_alone_though_the_hook_could_save(tmp_path: Path) -> None:
    """It reads only its own files: the state would be lost with the stop."""
    with pytest.raises(Refused) as caught:
        check_format(execution(tmp_path, *TOOLKIT, by="hook"))

    assert caught.value.reason is Reason.NO_SAVE_CHANNEL
    assert "ai-toolkit can't go on from what the hook saves" in str(caught.value)


@pytest.mark.parametrize(("trainer", "by"), [(TOOLKIT, None), (LOOP, "hook")])
def test_others_are_saved(tmp_path: Path, trainer: tuple[str, dict[str, str]], by: str | None) -> None:
    """One that promises by itself to save, and one that the hook can bring back."""
    check_format(execution(tmp_path, *trainer, by=by))
