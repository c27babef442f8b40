"""Deaths that have a name, told by texts as trainers print them; and texts that look alike and mean something else."""

from typing import Any

import pytest

from tunewarden.domain.cause import Cause
from tunewarden.supervisor.cause import cause_of
from tunewarden.supervisor.death import Crash, Ending, Outside

BAR = "steps:  42%|####2     | 42/100 [00:31<00:44,  1.31it/s, avr_loss=0.113]"
TRACE = "Traceback (most recent call last):\n"
QUIET_LAUNCHER = "subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1."
NO_ROOM = "OSError: [Errno 28] No space left on device: '/data/out/cat-000042.safetensors'"
LATENTS = "RuntimeError: NaN detected in latents: /data/img/07.png"
BUS = (
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)
WATCHDOG = (
    "[rank1]:[E1130 03:12:44.117] ProcessGroupNCCL.cpp:632 [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=88, OpType=ALLREDUCE) ran for 600035 milliseconds before timing out."
)
DIST = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error"
XID79 = "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
KILLED = "subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGKILL: 9>."


def ending(status: int | None, tail: str = "", **more: Any) -> Ending:
    return Ending(
        exit_status=status, crash=more.pop("crash", None), tail=tail, near_end=more.pop("near_end", None), **more
    )


@pytest.mark.parametrize(
    ("status", "tail", "cause"),
    [
        # The table of reference texts, row by row.
        (1, NO_ROOM, Cause.DISK_FULL),
        (
            1,
            "RuntimeError: [enforce fail] . PytorchStreamWriter failed writing file data/7: file write",
            Cause.DISK_FULL,
        ),
        (1, "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left", Cause.DISK_FULL),
        (1, "Could not save backup. Check your disk space!", Cause.DISK_FULL),
        (1, BUS, Cause.SHM),
        (1, "ERROR: Unexpected bus error: insufficient shared memory (shm).\n" + BUS, Cause.SHM),
        (1, LATENTS, Cause.NAN),
        (1, "RuntimeError: Training loss became NaN. This may be due to invalid parameters.", Cause.NAN),
        (-6, WATCHDOG + "\nterminate called after throwing an instance of 'c10::DistBackendError'", Cause.NCCL),
        (1, "[rank0]: " + DIST, Cause.NCCL),
        (1, "RuntimeError: CUDA error: unspecified launch failure", Cause.GPU_LOST),
        (1, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", Cause.GPU_LOST),
        (-6, "CUDA error: device-side assert triggered\nterminate called after throwing", Cause.GPU_LOST),
        (1, "Unable to determine the device handle for GPU 0000:65:00.0: GPU is lost. Reboot", Cause.GPU_LOST),
        (1, "RuntimeError: No CUDA GPUs: no CUDA-capable device is detected", Cause.GPU_LOST),
        (
            1,
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 8053063680 bytes.",
            Cause.HOST_OOM,
        ),
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.1 GiB", Cause.HOST_OOM),
        (1, "OSError: [Errno 12] Cannot allocate memory", Cause.HOST_OOM),
        (-9, "", Cause.KILLED),
        (137, "Killed", Cause.KILLED),
        (1, KILLED, Cause.KILLED),
        (1, "exitcode  : -9 (pid: 4711)", Cause.KILLED),
        (1, "Signal 9 (SIGKILL) received by PID 4711", Cause.KILLED),
        (1, "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", Cause.KILLED),
        # A rank that waited for the one that died says so afterwards: the first word is the cause.
        (1, f"{OOM}\n[rank1]: {DIST}\n{QUIET_LAUNCHER}", Cause.CUDA_OOM),
        (1, f"{NO_ROOM}\n{WATCHDOG}", Cause.DISK_FULL),
        # Look-alikes.
        (1, f"NaN found in latents, replacing with zeros\n{BAR}\n{TRACE}KeyError: 'x'", Cause.FAILED),
        (1, "loss is nan\nKeyError: 'x'", Cause.FAILED),
        (1, "NCCL INFO NCCL error handling is on\nValueError: bad bucket", Cause.FAILED),
        (1, "worker log: 12 GiB out of disk space budget\nValueError: x", Cause.FAILED),
        (1, f"{NO_ROOM}\nretrying elsewhere\n{TRACE}KeyError: 'x'", Cause.FAILED),
        (1, "OSError: [Errno 28] No space left on device: '/dev/shm/torch_1_2'", Cause.FAILED),
        (1, f"{BUS}\nretrying with 0 workers\n{TRACE}KeyError: 'x'", Cause.FAILED),
        (1, "the CUDA-capable device is busy\nValueError: x", Cause.FAILED),
        (1, "UserWarning: illegal memory access patterns are slow\nValueError: x", Cause.FAILED),
        (0, f"{NO_ROOM}\n{BAR}", Cause.FINISHED),
    ],
)
def test_a_death_that_has_a_name(status: int, tail: str, cause: Cause) -> None:
    """Each text of the table, and texts that must not be taken for it."""
    assert cause_of(ending(status, tail)).cause is cause


def test_what_the_trainer_wrote_of_its_death_rules() -> None:
    """crash.json is nearer than a line that was printed before."""
    crash = Crash(error=f"{TRACE}{NO_ROOM}")

    assert cause_of(ending(1, OOM, crash=crash)).cause is Cause.DISK_FULL


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (ending(1, crash=Crash(error=OOM, at_load=True)), Cause.OOM_AT_LOAD),
        (ending(1, crash=Crash(error=OOM, phase="load")), Cause.OOM_AT_LOAD),
        (ending(1, crash=Crash(error=OOM, phase="train")), Cause.CUDA_OOM),
        (ending(1, crash=Crash(error=OOM, phase="load"), steps_made=7), Cause.CUDA_OOM),
        (ending(1, crash=Crash(error=OOM, where="sampling"), steps_made=7), Cause.OOM_IN_SAMPLING),
        (ending(1, crash=Crash(error=OOM, phase="sample"), steps_made=7), Cause.OOM_IN_SAMPLING),
        (ending(1, OOM, phase="cache", steps_made=0), Cause.OOM_AT_LOAD),
        (ending(1, OOM, phase="train", steps_made=0), Cause.CUDA_OOM),
        (ending(1, OOM), Cause.CUDA_OOM),
        (ending(1, f'{TRACE}  File "m.py", line 3, in from_pretrained\n{OOM}'), Cause.OOM_AT_LOAD),
        (ending(1, f'{TRACE}  File "t.py", line 9, in sample_images\n{OOM}', steps_made=3), Cause.OOM_IN_SAMPLING),
        (ending(1, f'{TRACE}  File "t.py", line 9, in forward\n{OOM}', steps_made=3), Cause.CUDA_OOM),
    ],
)
def test_where_the_card_ran_out_of_memory(given: Ending, cause: Cause) -> None:
    """Before the first step no smaller batch helps, nor while sample images are made."""
    assert cause_of(given).cause is cause


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (ending(-9, outside=Outside(kills=1)), Cause.HOST_OOM),
        (ending(1, KILLED, outside=Outside(kills=1)), Cause.HOST_OOM),
        (ending(1, KILLED, outside=Outside(victims={7: "Out of memory: Killed process 7 (python)"})), Cause.HOST_OOM),
        (ending(1, BAR, steps_made=42, outside=Outside(kills=2)), Cause.HOST_OOM),
        (ending(1, "RuntimeError: DataLoader worker (pid(s) 9) exited", outside=Outside(kills=1)), Cause.HOST_OOM),
        # Another process of the group was killed; this one died of something else.
        (ending(1, "KeyError: 'x'", outside=Outside(kills=1)), Cause.FAILED),
        (ending(1, OOM, outside=Outside(kills=1)), Cause.CUDA_OOM),
        (ending(-15, outside=Outside(kills=1)), Cause.KILLED),
        (ending(-9, outside=Outside(kills=0, memory="fine")), Cause.KILLED),
        (ending(-9, outside=Outside(memory="short")), Cause.KILLED),
        # A launcher's --quiet leaves a 1 and not a word.
        (ending(1, BAR, outside=Outside(kills=0)), Cause.UNKNOWN),
        (ending(1, "", steps_made=42), Cause.UNKNOWN),
        (ending(1, ""), Cause.FAILED),
    ],
)
def test_a_kill_is_the_hosts_memory_only_by_evidence(given: Ending, cause: Cause) -> None:
    """The control group's count or the kernel's log; a bare SIGKILL is somebody's kill, and silence is unknown."""
    assert cause_of(given).cause is cause


def test_the_evidence_of_a_kill_is_the_kernels_line() -> None:
    """The line about the worker that the trainer names, not about another victim."""
    said = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed."
    death = cause_of(ending(1, said, outside=Outside(victims={8: "Killed process 8", 9: "Killed process 9"})))

    assert (death.evidence, death.facts) == ("Killed process 9", {"memory": "short"})


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (ending(0, steps_made=0, resumed=True, seconds=4.0), Cause.FINISHED_WITHOUT_STEPS),
        (ending(0, steps_made=0, planned=100, near_end=False), Cause.FINISHED_WITHOUT_STEPS),
        (ending(0, steps_made=0, resumed=True, seconds=4.0, near_end=True), Cause.FINISHED),
        (ending(0, steps_made=0, resumed=True, seconds=900.0), Cause.FINISHED),
        (ending(0, steps_made=1, resumed=True, seconds=4.0), Cause.FINISHED),
        (ending(0, resumed=True, seconds=4.0), Cause.FINISHED),
        (ending(0, steps_made=42, planned=100, near_end=False), Cause.UNKNOWN),
    ],
)
def test_exit_code_0_without_a_step(given: Ending, cause: Cause) -> None:
    """A resume that was over at once has trained nothing; where nobody counts steps it can't be told."""
    assert cause_of(given).cause is cause


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (ending(0, BAR.replace("0.113", "nan") + "\nmodel saved."), Cause.NAN),
        (ending(0, "{'loss': 'nan', 'grad_norm': 'nan'}"), Cause.NAN),
        (ending(0, BAR.replace("0.113", "nan") + "\n" + BAR), Cause.FINISHED),
        (ending(0, BAR, loss=float("nan")), Cause.NAN),
        (ending(0, BAR.replace("0.113", "nan"), loss=0.2), Cause.FINISHED),
        (ending(0, "name=nan loss_scale=inf"), Cause.FINISHED),
    ],
)
def test_a_run_that_ends_well_with_nan(given: Ending, cause: Cause) -> None:
    """sd-scripts goes on to its end with NaN and exit code 0: that is no success."""
    assert cause_of(given).cause is cause


@pytest.mark.parametrize(
    ("outside", "facts"),
    [
        (Outside(xids=((79, XID79),)), {"xid": 79, "xid_class": "node"}),
        (Outside(card_xids=((79, XID79),)), {"xid": 79, "xid_class": "node"}),
        (Outside(xids=((31, "NVRM: Xid (…): 31"),)), {"xid": 31, "xid_class": "application"}),
        (Outside(), {}),
    ],
)
def test_a_lost_card_comes_with_its_xid(outside: Outside, facts: dict[str, Any]) -> None:
    """The kernel's number says whether a restart can help."""
    said = "RuntimeError: CUDA error: unspecified launch failure"

    assert cause_of(ending(1, said, outside=outside)).facts == facts


@pytest.mark.parametrize(
    ("outside", "cause"),
    [(Outside(xids=((48, "NVRM: Xid 48"),)), Cause.GPU_LOST), (Outside(card_xids=((48, "x"),)), Cause.FAILED)],
)
def test_a_fault_of_the_card_without_a_word_of_cuda(outside: Outside, cause: Cause) -> None:
    """Only a fault that the driver puts down to the job's own process speaks for itself."""
    assert cause_of(ending(-6, "", outside=outside)).cause is cause


def test_a_full_disk_names_the_file() -> None:
    """The path of the message goes into the facts."""
    assert cause_of(ending(1, NO_ROOM)).facts == {"path": "/data/out/cat-000042.safetensors"}


def test_the_facts_of_an_out_of_memory_are_its_numbers() -> None:
    """Fragmentation is told from real need."""
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "24.00 GiB of which 1.00 GiB is free. Of the allocated memory 14.70 GiB is allocated by PyTorch, and 6.40 GiB "
        "is reserved by PyTorch but unallocated."
    )
    facts = cause_of(ending(1, said)).facts

    assert (facts["fragmented"], facts["tried_bytes"]) == ("yes", 2 << 30)
