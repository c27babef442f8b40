"""What is found out about a command before its first launch: what the hook is told, and which states lie there."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunewarden.supervisor.states import mark_of
from tunewarden.trainers.table import recognise

_MOST_STATES = 200
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FirstLaunch:
    """`hook` is the body of hook.json, None for the defaults; `states_before` is path → mark of earlier trainings'."""

    hook: dict[str, Any] | None = None
    states_before: dict[str, str] = field(default_factory=dict)


def look_at(argv: Sequence[str], cwd: Path) -> FirstLaunch:
    """Reads only. A trainer that is unknown, or whose config can't be read, gets the defaults: it must start all the
    same, and the person sees from the trainer itself what is wrong.
    """
    try:
        recipe = recognise(argv, cwd)
        if recipe is None:
            return FirstLaunch()
        states = {str(state.path): mark_of(state.path) for state in recipe.states()[-_MOST_STATES:]}
        return FirstLaunch(hook=recipe.hook_settings().to_wire(), states_before=states)
    except Exception:  # whatever a recipe stumbles over, the job starts
        log.debug("no recipe for %s", argv[0], exc_info=True)
        return FirstLaunch()
