"""What a person is advised after a job's end, by its cause and what is known of it. The words are in app/messages."""

from collections.abc import Mapping

from tunewarden.domain.cause import Cause
from tunewarden.domain.xid import restart_is_useless

_OF_A_KILL = frozenset({Cause.KILLED, Cause.UNKNOWN})
_PLAIN = frozenset(
    {
        Cause.OOM_AT_LOAD,
        Cause.OOM_IN_SAMPLING,
        Cause.HOST_OOM,
        Cause.DISK_FULL,
        Cause.SHM,
        Cause.NCCL,
        Cause.FINISHED_WITHOUT_STEPS,
    }
)


def advice_of(cause: str, facts: Mapping[str, str], knobs: Mapping[str, str] | None) -> str:
    """The name of the advice, "" where there is none.

    Remedies for the card's memory are named after a kill only where host and control group are shown to have had room.
    """
    if cause in _OF_A_KILL and facts.get("memory"):
        return f"killed_memory_{facts['memory']}"
    if cause == Cause.NAN:
        return "nan_fp16" if (knobs or {}).get("mixed_precision") == "fp16" else "nan"
    if cause == Cause.GPU_LOST:
        xid = facts.get("xid", "")
        useless = xid.isdecimal() and restart_is_useless(int(xid))
        return "gpu_lost_useless" if useless else "gpu_fault" if facts.get("xid_class") == "application" else "gpu_lost"
    if cause == Cause.OOM_IN_SAMPLING and facts.get("fragmented") == "yes":
        return "oom_in_sampling_fragmented"
    return cause if cause in _PLAIN else ""
