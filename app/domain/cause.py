"""Why a generation ended. docs/reference/causes.md says how each is told, and what is done about it."""

from enum import StrEnum


class Cause(StrEnum):
    """The causes of an `ended` event."""

    FINISHED = "finished"
    FINISHED_WITHOUT_STEPS = "finished_without_steps"  # exit code 0, but no step where steps were due: not done
    CUDA_OOM = "cuda_oom"  # in a training step
    OOM_AT_LOAD = "oom_at_load"  # before step 1: the model itself does not fit
    OOM_IN_SAMPLING = "oom_in_sampling"  # while it made sample images
    HOST_OOM = "host_oom"  # the host's or the container's memory, by evidence; never by a bare SIGKILL
    KILLED = "killed"  # by a signal; who sent it can't be told
    NAN = "nan"  # the loss or the latents are NaN
    GPU_LOST = "gpu_lost"  # a fault of CUDA or of the card
    DISK_FULL = "disk_full"
    SHM = "shm"  # shared memory (/dev/shm) of a container
    NCCL = "nccl"  # the ranks lost each other
    USER_STOP = "user_stop"
    POLICY_STOP = "policy_stop"
    REPLACED = "replaced"
    FAILED = "failed"  # another exception
    UNKNOWN = "unknown"


# A launch with other knobs can answer these, so `run` waits for one.
RESTARTABLE = frozenset({Cause.CUDA_OOM, Cause.HOST_OOM})
# Of a card that has no memory left: the knobs before were no better.
OUT_OF_MEMORY = frozenset({Cause.CUDA_OOM, Cause.OOM_AT_LOAD, Cause.OOM_IN_SAMPLING})
# Ends of a new generation that its changed knobs may have caused: the previous ones can be brought back.
MAY_GO_BACK = frozenset({Cause.FAILED, Cause.KILLED, Cause.UNKNOWN, Cause.SHM, Cause.FINISHED_WITHOUT_STEPS})
