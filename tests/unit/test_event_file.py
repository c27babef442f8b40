"""TensorBoard's event files: real bytes, damaged ones, and what is made of them."""

import base64
import math
import os
import struct
from pathlib import Path

import pytest

from tunewarden.supervisor.event_file import EventFile, Scalar, masked_crc, scalars_of
from tunewarden.supervisor.event_progress import EventProgress
from tunewarden.supervisor.logging_dir import logging_folders

# Written by torch.utils.tensorboard (torch 2.13.0, tensorboard 2.21.0): loss/current 0.5 at step 1 (wall time 100),
# lr/unet 0.25 at 1, loss/current NaN at 2 (102), and 0.125 at 3 (104) in the newer form, as a tensor.
REAL = base64.b64decode(
    "SAAAAAAAAAD+kkidCV1i+tuGw9pBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVf"
    "d3JpdGVyWGRZCiIAAAAAAAAAeBE9/QkAAAAAAABZQBABKhUKEwoMbG9zcy9jdXJyZW50FQAAAD/Okc/CHQAAAAAAAABgL98jCQAAAAAA"
    "AFlAEAEqEAoOCgdsci91bmV0FQAAgD72BctVIgAAAAAAAAB4ET39CQAAAAAAgFlAEAIqFQoTCgxsb3NzL2N1cnJlbnQVAADAf8bQLDU0"
    "AAAAAAAAAF4zF1wJAAAAAAAAWkAQAyonCiUKDGxvc3MvY3VycmVudEIICAEqBAAAAD5KCwoJCgdzY2FsYXJzRublPw=="
)
SCALARS = [
    Scalar(tag="loss/current", step=1, value=0.5, wall=100.0),
    Scalar(tag="lr/unet", step=1, value=0.25, wall=100.0),
    Scalar(tag="loss/current", step=2, value=math.nan, wall=102.0),
    Scalar(tag="loss/current", step=3, value=0.125, wall=104.0),
]
PID = 4711
NAME = f"events.out.tfevents.1796086534.gpu-1.{PID}.0"


def record(data: bytes) -> bytes:
    """One record of an event file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def event(tag: str, step: int, value: float, wall: float) -> bytes:
    """A record with one scalar; steps below 128 only."""
    one = b"\n" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\n" + bytes([len(one)]) + one
    return record(
        b"\x09" + struct.pack("<d", wall) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    )


def test_the_bytes_of_the_real_writer(tmp_path: Path) -> None:
    """Simple values, NaN, and the newer form."""
    (tmp_path / NAME).write_bytes(REAL)

    assert repr(EventFile(tmp_path / NAME).read()) == repr(SCALARS)


def test_a_checksum_is_the_published_one() -> None:
    """RFC 3720 gives CRC-32C of 32 zero bytes as 8a9136aa; TFRecord rotates it by 15 and adds a constant."""
    crc = 0x8A9136AA

    assert masked_crc(bytes(32)) == (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_file_that_grows_byte_by_byte_is_read_once(tmp_path: Path) -> None:
    """Half a record is read when the rest is there."""
    path, found = tmp_path / NAME, []
    file = EventFile(path)
    for end in range(len(REAL) + 1):
        path.write_bytes(REAL[:end])
        found += file.read()

    assert repr(found) == repr(SCALARS)


def test_a_damaged_byte_makes_no_wrong_number(tmp_path: Path) -> None:
    """Whichever it is: what is read is right, and something is missing unless it is in the record without scalars."""
    path, whole = tmp_path / NAME, set(map(repr, SCALARS))
    for at in range(len(REAL)):
        path.write_bytes(REAL[:at] + bytes([REAL[at] ^ 0x40]) + REAL[at + 1 :])
        found = set(map(repr, EventFile(path).read()))

        assert found < whole or (found == whole and at < 88), at


def test_a_record_with_a_wrong_checksum_is_passed_over(tmp_path: Path) -> None:
    """Its length is known good, so the next one is found."""
    damaged = event("loss", 1, 1.0, 0.0)[:-1] + b"x"
    (tmp_path / NAME).write_bytes(damaged + event("loss", 2, 2.0, 0.0))

    assert [scalar.step for scalar in EventFile(tmp_path / NAME).read()] == [2]


def test_a_large_record_is_passed_over(tmp_path: Path) -> None:
    """Images lie between the scalars; here one of 5 MiB, larger than one look, and one that is not written whole."""
    image = record(bytes(5 << 20))
    path = tmp_path / NAME
    path.write_bytes(event("loss", 1, 1.0, 0.0) + image + event("loss", 2, 2.0, 0.0) + image[:100_000])
    file = EventFile(path)
    found = [scalar.step for _ in range(4) for scalar in file.read()]
    with path.open("ab") as end:
        end.write(image[100_000:] + event("loss", 3, 2.0, 0.0))

    assert (found, [scalar.step for scalar in file.read()]) == ([1, 2], [3])


@pytest.mark.parametrize("length", [1 << 31, (1 << 64) - 1])
def test_a_length_that_no_record_has_ends_the_reading(tmp_path: Path, length: int) -> None:
    """With a good checksum too."""
    raw = struct.pack("<Q", length)
    (tmp_path / NAME).write_bytes(raw + struct.pack("<I", masked_crc(raw)) + event("loss", 1, 1.0, 0.0))
    file = EventFile(tmp_path / NAME)

    assert file.read() + file.read() == []


@pytest.mark.parametrize(
    "data", [b"\xff" * 20, b"\x2a\xff", b"\x2a\x05abc", b"\x2b", b"\x10" + b"\xff" * 9 + b"\x01", b"\x09abc"]
)
def test_a_message_that_is_none_has_no_scalars(data: bytes) -> None:
    """A field longer than its message, a number without an end, an unknown wire type."""
    assert scalars_of(data) == []


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "none"])
def test_what_is_no_regular_file_is_none(tmp_path: Path, kind: str) -> None:
    """Reading returns at once: the folder is the job's."""
    path = tmp_path / NAME
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "real").write_bytes(REAL)
        path.symlink_to(tmp_path / "real")
    elif kind == "folder":
        path.mkdir()

    assert EventFile(path).read() == []


def test_step_and_loss_of_the_jobs_own_files(tmp_path: Path) -> None:
    """Files of the job's processes only; steps and seconds by differences; another job's file is left alone."""
    folder = tmp_path / "logs" / "20261201" / "network_train"
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(b"".join(event("loss/current", n, 1 / n, 100.0 + 2 * n) for n in range(1, 11)))
    (folder / NAME.replace(str(PID), "99")).write_bytes(event("loss/current", 100, 7.0, 0.0))
    events = EventProgress([tmp_path / "logs"], base=0)
    nothing = events.progress()
    events.read(0.0, {PID})
    found = events.progress()

    assert nothing is None and found is not None
    assert (found.step, found.source, found.phase) == (10, "log", None)
    assert found.loss == pytest.approx(0.1)
    assert (found.step_seconds_count, found.step_seconds_sum) == (9, 18.0)


@pytest.mark.parametrize(
    ("tags", "loss"),
    [
        (["loss/average", "loss/current"], 2.0),
        (["loss/current", "loss/average"], 1.0),
        (["train/loss", "eval/loss"], 1.0),
        (["loss/epoch_average", "my_loss"], 2.0),
        (["lr/unet", "loss/epoch"], None),
    ],
)
def test_which_tag_is_the_loss(tmp_path: Path, tags: list[str], loss: float | None) -> None:
    """The loss of one step before a mean, and never an epoch's or an evaluation's."""
    (tmp_path / NAME).write_bytes(b"".join(event(tag, 1, float(value), 0.0) for value, tag in enumerate(tags, 1)))
    events = EventProgress([tmp_path])
    events.read(0.0, {PID})
    found = events.progress()

    assert (found.loss if found else None) == loss


def test_a_new_file_is_found_with_the_next_look_round(tmp_path: Path) -> None:
    """Every 15 s; the loss of a resumed generation counts from its base."""
    events = EventProgress([tmp_path / "logs"], base=31)
    events.read(0.0, {PID})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / NAME).write_bytes(event("loss", 1, 1.0, 0.0) + event("loss", 2, 1.0, 1.0))
    events.read(14.0, {PID})
    before = events.progress()
    events.read(15.0, {PID})
    found = events.progress()

    assert before is None and found is not None
    assert found.step == 33


@pytest.mark.parametrize(
    ("argv", "config", "folders"),
    [
        ("--logging_dir=/logs", "", ["/logs"]),
        ("--logging_dir logs", "", ["/job/logs"]),
        ("--logging-dir=logs", "", ["/job/logs"]),
        ("--output_dir out", "", ["/job/out/logs", "/job/out/runs"]),
        ("--output_dir=out --logging_dir=tb", "", ["/job/tb", "/job/out/tb", "/job/out/runs"]),
        ("", 'logging_dir = "./logs" # x', ["/job/logs"]),
        ("", "logging_dir: './output/my style/logs'", ["/job/output/my style/logs"]),
        ("", "output_dir: /out\nlogging_dir: logs", ["/job/logs", "/out/logs", "/out/runs"]),
        ("", '{\n  "logging_dir": "C",\n  "output_dir": ""\n}', ["/job/C"]),
        ("--logging_dir=mine", "logging_dir: theirs", ["/job/mine"]),
        ("--logging_dir", "# logging_dir: no\nno_logging_dir: no", []),
        ("--config x.toml", "", []),
    ],
)
def test_where_events_may_be(tmp_path: Path, argv: str, config: str, folders: list[str]) -> None:
    """Flags win over the config, which may be TOML, YAML or JSON; relative to the job's folder."""
    file = tmp_path / "config"
    file.write_text(config, encoding="utf-8")
    found = logging_folders(["python", "train.py", *argv.split()], Path("/job"), file)

    assert [str(folder) for folder in found] == folders


def test_a_config_that_is_gone_or_huge_tells_nothing(tmp_path: Path) -> None:
    """It is a guess: nothing is raised."""
    huge = tmp_path / "huge"
    huge.write_bytes(b"logging_dir: logs\n" + b"#" * (1 << 20))

    assert [logging_folders([], tmp_path, path) for path in (None, tmp_path / "none", tmp_path, huge)] == [()] * 4
