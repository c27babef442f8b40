"""Steps and loss out of tqdm's bars, as the trainers print them, and the count of steps that is made of them."""

import pytest

from tunewarden.supervisor.control import Progress
from tunewarden.supervisor.log_progress import LogProgress
from tunewarden.supervisor.step_counter import StepCounter

SD = "\rsteps:  {p}%|███       | {n}/100 [{t}<00:44,  1.57it/s, avr_loss={loss}]"
HF = "\r {p}%|█▌        | {n}/200 [{t}<00:20,  8.12it/s]"


def sd(n: int, seconds: int = 0, loss: str = "0.5") -> str:
    return SD.format(p=n % 101, n=n, t=f"{seconds // 60:02}:{seconds % 60:02}", loss=loss)


def hf(n: int, total: int = 200) -> str:
    return HF.format(p=n, n=n, t="00:01").replace("/200", f"/{total}")


def read(text: str, base: int = 0, size: int | None = None) -> Progress | None:
    """What is known after `text` was printed in pieces of `size` bytes."""
    log, data, rest = LogProgress(base), text.encode(), b""
    for start in range(0, len(data), size or len(data) or 1):
        rest += data[start : start + (size or len(data))]
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        log.take(rest[:end])
        rest = rest[end:]
        log.take_unfinished(rest)
    return log.progress()


LINES = [
    ("sd-scripts", sd(31), 31, 100, 0.5),
    ("sd-scripts, each step twice", sd(30) + sd(31) + sd(31, loss="nan"), 31, 100, float("nan")),
    ("below a step a second", sd(31).replace("it/s", "s/it"), 31, 100, 0.5),
    ("of hours", sd(31).replace("[00:00<", "[127:03:59<"), 31, 100, 0.5),
    ("diffusers", "\rSteps:  12%|█▏| 60/500 [00:31<03:47, 1.9it/s, lr=0.0001, step_loss=1.2e-02]", 60, 500, 0.012),
    ("ai-toolkit", "\rcat_v1:   5%|▌| 100/2000 [01:02<19:30, 1.6it/s, lr: 1.0e-04 loss: 1.234e-01]", 100, 2000, 0.1234),
    ("OneTrainer", "\rstep:  50%|█| 5/10 [00:02<00:02, 2.1it/s, loss=0.11, smooth loss=0.22]", 5, 10, 0.11),
    ("Lightning", "\rEpoch 0:  12%|█▏| 60/500 [00:31<03:47, 1.93it/s, v_num=0]", 60, 500, None),
    ("transformers 5", hf(31) + "\n{'loss': '3.892', 'grad_norm': '1', 'epoch': '0.1'}\n" + hf(31), 31, 200, 3.892),
    ("transformers 4", hf(31) + "\n{'loss': 3.892, 'learning_rate': 5e-05}\n" + hf(31), 31, 200, 3.892),
    ("with cursor moves", "\x1b[A" + sd(31) + "\x1b[B\r", 31, 100, 0.5),
]


@pytest.mark.parametrize(("text", "step", "total", "loss"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
@pytest.mark.parametrize("size", [1, 7, None])
def test_the_bars_of_the_trainers(text: str, step: int, total: int, loss: float | None, size: int | None) -> None:
    """Whatever the size of the pieces in which they come."""
    found = read(text, size=size)

    assert found is not None
    assert (found.step, found.total_steps, repr(found.loss), found.source) == (step, total, repr(loss), "log")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "epoch 4/10\n",
        "\r 50%|█████     | 25/50 [00:01<00:01, 17.2it/s]",  # latents that are cached
        "\rLoading checkpoint shards: 100%|██████| 2/2 [00:01<00:00, 1.9it/s]\n",
        "\rMap:  31%|███| 31/100 [00:19<00:44, 1.57 examples/s]",
        "\rEvaluating: 31%|███| 31/100 [00:19<00:44, 1.57it/s, loss=0.1]",
        "\rvalidation steps: 31%|███| 31/100 [00:19<00:44, 1.57it/s, val_avr_loss=0.1]",
        "\repoch:  10%|█| 1/10 [00:02<00:02, 2.1s/it]",
        "\r31it [00:19, 1.57it/s]",
        "\rsteps:  31%|███       | 31/100 [00:19<00:44,  1.57it/s, avr_lo",
        "{'loss': '3.892'}\n",
        "%|" * 5000 + "\n",
        "\r" + " " * 2040 + "%|\n",
    ],
)
def test_what_counts_no_steps(text: str) -> None:
    """Other bars, other lines, half a bar: nothing is known of steps."""
    assert read(text) is None


def test_a_cache_before_the_training_is_forgotten() -> None:
    """The nameless bar of the latents, then the one that says steps."""
    text = "".join(hf(n, 50) for n in range(0, 51, 10)) + "\ncaching latents done\n" + sd(0) + sd(3)
    found = read(text)

    assert found is not None
    assert (found.step, found.total_steps, found.step_seconds_count) == (3, 100, 3)


def test_an_evaluation_in_transformers_is_not_the_training() -> None:
    """Both bars are nameless: the one beside which a loss was printed is the training's."""
    log = hf(0, 50) + hf(50, 50) + "\n" + hf(10) + "\n{'loss': '1.5'}\n" + hf(10)
    evaluating = log + "".join("\n" + hf(n, 7) for n in range(8))
    during, after = read(evaluating), read(evaluating + hf(20))

    assert during is not None and after is not None
    assert (during.step, during.phase, during.loss) == (10, None, 1.5)
    assert (after.step, after.phase, after.step_seconds_count) == (20, "train", 20)


@pytest.mark.parametrize(
    ("after", "phase"),
    [
        ("", "train"),
        ("\n\n", "train"),
        ("\nsaving checkpoint: /out/cat-000002.safetensors\n", None),
        ("\ngenerating sample images at step: 31\n", None),
        ("\n" + hf(3, 28) + "\n", None),
        ("\nsaving\n" + sd(32), "train"),
        (sd(100), None),
    ],
)
def test_the_phase_is_train_only_while_its_bar_is_the_newest_line(after: str, phase: str | None) -> None:
    """So a save, samples or an end are never taken for a stall."""
    found = read(sd(30) + sd(31) + after)

    assert found is not None
    assert found.phase == phase


@pytest.mark.parametrize(
    ("base", "bars", "step", "count"),
    [
        (0, [0, 1, 5], 5, 5),
        (31, [0, 1, 5], 36, 5),  # sd-scripts' bar begins at 0 after a resume
        (31, [31, 32, 36], 36, 5),  # diffusers' goes on
        (0, [500, 501], 501, 1),  # a resume that we know nothing of
        (0, [8, 9, 10, 1, 2], 12, 4),  # a bar for each epoch
        (31, [0, 10, 2], 43, 12),
        (0, [7, 7, 7], 7, 0),
    ],
)
def test_the_step_of_the_whole_training(base: int, bars: list[int], step: int, count: int) -> None:
    """Differences count, wherever the bar begins."""
    found = read("".join(sd(n) for n in bars), base)

    assert found is not None
    assert (found.step, found.step_seconds_count) == (step, count)


def test_a_bar_that_begins_anew_tells_no_total() -> None:
    """Its total is an epoch's."""
    found = read(sd(100) + sd(0) + sd(1))

    assert found is not None
    assert (found.step, found.total_steps) == (101, None)


def test_seconds_are_the_bars_own_without_pauses() -> None:
    """2 s a step; 5 minutes of samples in between count as one step more."""
    bars = [sd(n, 2 * n) for n in range(11)] + [sd(n, 300 + 2 * n) for n in range(11, 21)]
    found = read("".join(bars))

    assert found is not None
    assert (found.step_seconds_count, found.step_seconds_sum) == (20, 40.0)


@pytest.mark.parametrize(
    ("usual", "pause", "counted"),
    [(1.0, 10.9, 10.9), (1.0, 11.1, 1.0), (60.0, 299.0, 299.0), (60.0, 301.0, 60.0)],
)
def test_a_pause_is_five_times_the_usual_and_ten_seconds_more(usual: float, pause: float, counted: float) -> None:
    """A hiccup is part of a step's time."""
    counter = StepCounter()
    for n in range(11):
        counter.at(n, n * usual)
    before = counter.seconds
    counter.at(11, 10 * usual + pause)

    assert counter.seconds - before == pytest.approx(counted)


def test_a_long_log_is_read_at_once() -> None:
    """An agent that starts anew over 60,000 bars: the newest is read, and hardly a step is missed."""
    found = read("".join(sd(n).replace("/100 ", "/70000 ") for n in range(60_001)))

    assert found is not None and found.step_seconds_count is not None
    assert found.step == 60_000
    assert found.step_seconds_count > 59_900


def test_events_whose_clock_goes_on_while_their_steps_begin_again() -> None:
    """A bar's clock begins again with it, TensorBoard's does not."""
    counter = StepCounter()
    for position, wall in ((1, 1002.0), (2, 1004.0), (3, 1006.0), (1, 1008.0), (2, 1010.0)):
        counter.at(position, wall)

    assert (counter.step, counter.count, counter.seconds) == (5, 4, 8.0)
