"""torch's allocator settings in a job's environment: the knob `expandable_segments`.

Linux only. PYTORCH_ALLOC_CONF is the newer name (torch 2.9); where it is set, newer torch ignores the older name.
"""

import re
from collections.abc import Mapping

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused

KNOB = "expandable_segments"
_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OLDER = "PYTORCH_CUDA_ALLOC_CONF"  # every torch reads it
_PARTS = re.compile(r",(?![^\[]*\])")  # not inside roundup_power2_divisions:[256:1,512:2]


def uses_expandable_segments(env: Mapping[str, str]) -> bool:
    """Whether torch is told to: the last word in each variable that is set counts."""
    return any(_keys(env[name]).get(KNOB, "").lower() == "true" for name in _NAMES if env.get(name))


def with_expandable_segments(env: Mapping[str, str], wanted: bool) -> dict[str, str]:
    """The variables to set so that torch uses expandable segments, or not: what stands there is kept.

    Raises Refused(knob_not_changeable) where the settings name another allocator, which has no segments.
    """
    changed = {}
    for name in [name for name in _NAMES if env.get(name)] or [_OLDER]:
        parts = [part for part in _PARTS.split(env.get(name, "")) if part.strip()]
        if _keys(env.get(name, "")).get("backend", "native").lower() not in ("native", ""):
            raise Refused(
                Reason.KNOB_NOT_CHANGEABLE,
                f"{name} in the job's environment names another allocator ({env[name]}), where they mean nothing",
            )
        kept = [part for part in parts if part.partition(":")[0].strip() != KNOB]
        changed[name] = ",".join([*kept, f"{KNOB}:{wanted}"])
    return changed


def merged(env: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """What a recipe adds to the environment, with its allocator settings put into those that are there.

    Raises Refused as `with_expandable_segments`.
    """
    result = {name: value for name, value in added.items() if name not in _NAMES}
    for name in set(added) & set(_NAMES):
        wish = _keys(added[name]).get(KNOB)
        result |= {name: added[name]} if wish is None else with_expandable_segments(env, wish.lower() == "true")
    return result


def _keys(value: str) -> dict[str, str]:
    pairs = [part.partition(":") for part in _PARTS.split(value)]
    return {key.strip(): rest.strip() for key, _, rest in pairs if key.strip()}
