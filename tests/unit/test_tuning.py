"""The arithmetic of changing knobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewarden.domain.effective_batch import Sizes, resize, resize_all
from tunewarden.domain.reason import Reason
from tunewarden.domain.tuning import KNOBS, Change, Op, Refusal, fault_of, new_value, parse_change


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/2", Change(op=Op.DIVIDE, factor=2)),
        ("*2", Change(op=Op.MULTIPLY, factor=2)),
        ("/16", Change(op=Op.DIVIDE, factor=16)),
        ("4", Change(op=Op.SET, value="4")),
        (" 4 ", Change(op=Op.SET, value="4")),
        ("true", Change(op=Op.SET, value="true")),
        ("unset", Change(op=Op.UNSET)),
        ("default", Change(op=Op.UNSET)),
        ("fp16", Change(op=Op.SET, value="fp16")),
    ],
)
def test_a_change_is_a_factor_or_a_value(text: str, wanted: Change) -> None:
    """`/n` and `*n` are factors, anything else is the value itself."""
    assert parse_change(text) == wanted


@pytest.mark.parametrize("text", ["", " ", "/", "*", "/0", "/1", "*1", "/-2", "/2.5", "/x", "*2*2", "/1000000000"])
def test_what_is_no_change_is_refused(text: str) -> None:
    """A factor below two, or none at all, raises ValueError."""
    with pytest.raises(ValueError, match=r"write /2, \*2"):
        parse_change(text)


BATCHES = [
    # batch, accumulation, asked, batch then, accumulation then
    (4, 1, "/2", 2, 2),
    (4, 2, "/2", 2, 4),
    (8, 1, "/2", 4, 2),
    (6, 1, "/2", 3, 2),
    (3, 1, "/2", 1, 3),
    (5, 1, "/2", 1, 5),
    (5, 2, "/2", 2, 5),
    (7, 2, "/2", 2, 7),
    (9, 4, "/2", 4, 9),
    (16, 1, "/4", 4, 4),
    (2, 1, "/4", 1, 2),
    (2, 2, "*2", 4, 1),
    (1, 4, "*2", 2, 2),
    (1, 4, "*4", 4, 1),
    (1, 3, "*2", 3, 1),
    (4, 1, "2", 2, 2),
    (2, 2, "4", 4, 1),
    (4, 1, "1", 1, 4),
    (4, 1, "4", 4, 1),
]


@pytest.mark.parametrize(("batch", "accumulation", "asked", "batch_then", "accumulation_then"), BATCHES)
def test_accumulation_makes_up_for_the_batch(
    batch: int, accumulation: int, asked: str, batch_then: int, accumulation_then: int
) -> None:
    """A smaller batch gets as much more accumulation, so that batch × accumulation is equal."""
    now = Sizes(batch=batch, accumulation=accumulation)

    then = resize(now, asked, None, allow_effective_batch_change=False)

    assert then == Sizes(batch=batch_then, accumulation=accumulation_then)


REFUSED = [
    # batch, accumulation, batch asked, accumulation asked, sentence, sizes when it is allowed
    (4, None, "/2", None, "effective batch 4 → 2", Sizes(batch=2, accumulation=None)),
    (5, None, "/2", None, "effective batch 5 → 2", Sizes(batch=2, accumulation=None)),
    (3, None, "/4", None, "effective batch 3 → 1", Sizes(batch=1, accumulation=None)),
    (2, None, "*2", None, "effective batch 2 → 4", Sizes(batch=4, accumulation=None)),
    (4, 1, "*2", None, "effective batch 4 → 8", Sizes(batch=8, accumulation=1)),
    (4, 1, "3", None, "effective batch 4 → 3", Sizes(batch=3, accumulation=1)),
    (4, 2, "3", None, "effective batch 8 → 9", Sizes(batch=3, accumulation=3)),
    (4, 1, "2", "1", "effective batch 4 → 2", Sizes(batch=2, accumulation=1)),
    (4, 1, None, "2", "effective batch 4 → 8", Sizes(batch=4, accumulation=2)),
]


@pytest.mark.parametrize(("batch", "accumulation", "asked", "asked_accumulation", "why", "allowed"), REFUSED)
def test_another_effective_batch_needs_leave(
    batch: int, accumulation: int | None, asked: str | None, asked_accumulation: str | None, why: str, allowed: Sizes
) -> None:
    """Where accumulation can't make up, the change is refused with both numbers, and done only when it is allowed."""
    now = Sizes(batch=batch, accumulation=accumulation)

    refusal = resize(now, asked, asked_accumulation, allow_effective_batch_change=False)

    assert refusal == Refusal(reason=Reason.EFFECTIVE_BATCH_WOULD_CHANGE, why=why)
    assert resize(now, asked, asked_accumulation, allow_effective_batch_change=True) == allowed


@pytest.mark.parametrize("accumulation", [None, 1, 4])
@pytest.mark.parametrize("allow", [True, False])
def test_a_batch_of_one_is_the_minimum(accumulation: int | None, allow: bool) -> None:
    """A batch of 1 can't be halved, whatever is allowed."""
    refusal = resize(Sizes(batch=1, accumulation=accumulation), "/2", None, allow_effective_batch_change=allow)

    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.AT_MINIMUM


def test_accumulation_of_one_is_the_minimum() -> None:
    """Accumulation can't be halved below 1."""
    refusal = resize(Sizes(batch=4, accumulation=1), None, "/2", allow_effective_batch_change=True)

    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.AT_MINIMUM


def test_both_may_be_given_when_they_agree() -> None:
    """Batch and accumulation asked for together are taken as they are when their product is the old one."""
    then = resize(Sizes(batch=4, accumulation=1), "2", "2", allow_effective_batch_change=False)

    assert then == Sizes(batch=2, accumulation=2)


counts = st.integers(min_value=1, max_value=512)
factors = st.integers(min_value=2, max_value=9)


@given(batch=st.integers(min_value=2, max_value=512), accumulation=counts, factor=factors)
def test_a_division_keeps_the_effective_batch_and_is_the_largest(batch: int, accumulation: int, factor: int) -> None:
    """`/n` gives the largest divisor of the effective batch that is at most batch / n, or 1."""
    total = batch * accumulation

    then = resize(Sizes(batch=batch, accumulation=accumulation), f"/{factor}", None, allow_effective_batch_change=False)

    assert isinstance(then, Sizes)
    assert then.effective == total
    assert then.batch < batch
    assert then.batch == max([d for d in range(1, batch // factor + 1) if total % d == 0], default=1)


@given(batch=counts, accumulation=counts, factor=factors)
def test_what_divides_evenly_is_undone_by_the_same_factor(batch: int, accumulation: int, factor: int) -> None:
    """`/n` of a multiple of n and then `*n` gives the original numbers."""
    now = Sizes(batch=batch * factor, accumulation=accumulation)

    then = resize(now, f"/{factor}", None, allow_effective_batch_change=False)

    assert isinstance(then, Sizes)
    assert resize(then, f"*{factor}", None, allow_effective_batch_change=False) == now


@given(batch=st.integers(min_value=2, max_value=512), accumulation=counts, factor=factors)
def test_the_old_batch_as_a_value_undoes_every_division(batch: int, accumulation: int, factor: int) -> None:
    """Setting the batch back to what it was brings the accumulation back too."""
    now = Sizes(batch=batch, accumulation=accumulation)

    then = resize(now, f"/{factor}", None, allow_effective_batch_change=False)

    assert isinstance(then, Sizes)
    assert resize(then, str(batch), None, allow_effective_batch_change=False) == now


TOGETHER = [
    # batches, accumulation, asked, batches then, accumulation then
    ((4, 2), 1, "/2", (2, 1), 2),
    ((4, 2), 2, "*2", (8, 4), 1),
    ((6, 9), 1, "/2", (2, 3), 3),
    ((4, 4), 1, "/2", (2, 2), 2),
    ((8, 4, 12), 2, "/4", (2, 1, 3), 8),
]


@pytest.mark.parametrize(("batches", "accumulation", "asked", "wanted", "steps"), TOGETHER)
def test_several_batch_sizes_are_scaled_together(
    batches: tuple[int, ...], accumulation: int, asked: str, wanted: tuple[int, ...], steps: int
) -> None:
    """One accumulation keeps the effective batch of each data set."""
    then = resize_all(batches, accumulation, asked, None, allow_effective_batch_change=False)

    assert then == (wanted, steps)


@pytest.mark.parametrize(
    ("batches", "asked", "reason"),
    [
        ((4, 1), "/2", Reason.AT_MINIMUM),
        ((4, 3), "/2", Reason.EFFECTIVE_BATCH_WOULD_CHANGE),
        ((4, 2), "2", Reason.KNOB_NOT_CHANGEABLE),
    ],
)
def test_batch_sizes_that_can_not_be_scaled_together_are_refused(
    batches: tuple[int, ...], asked: str, reason: Reason
) -> None:
    """One at its minimum, no common divisor, or one value for unequal ones: refused, never done by halves."""
    refusal = resize_all(batches, 1, asked, None, allow_effective_batch_change=False)

    assert isinstance(refusal, Refusal)
    assert refusal.reason is reason


VALUES = [
    ("resolution", "768", "/2", "384"),
    ("resolution", "512", "/3", "128"),
    ("resolution", "768", "512", "512"),
    ("data_workers", "4", "*2", "8"),
    ("data_workers", "1", "/2", "0"),
    ("network_dim", "32", "/2", "16"),
    ("cache_latents", "false", "true", "true"),
    ("cache_latents", "False", "on", "True"),
    ("persistent_workers", "0", "true", "1"),
    ("resolution", "512,512", "/2", "256,256"),
    ("resolution", "512, 768", "/2", "256, 384"),
    ("resolution", "1024x1024", "512", "512x512"),
    ("resolution", "512,768", "1024,1536", "1024,1536"),
    ("cache_latents", "True", "true", "True"),
    ("gradient_checkpointing", "yes", "false", "no"),
    ("mixed_precision", "fp16", "bf16", "bf16"),
    ("mixed_precision", "bf16", "no", "no"),
]


@pytest.mark.parametrize(("knob", "old", "asked", "wanted"), VALUES)
def test_other_knobs_take_plain_values_and_factors(knob: str, old: str, asked: str, wanted: str) -> None:
    """A switch that already stands right is left in its own spelling; a resolution lands on a multiple of 64."""
    assert new_value(knob, old, asked) == wanted


@pytest.mark.parametrize(
    ("knob", "old", "asked", "reason"),
    [
        ("resolution", "64", "/2", Reason.AT_MINIMUM),
        ("network_dim", "1", "/2", Reason.AT_MINIMUM),
        ("resolution", "512,64", "/2", Reason.AT_MINIMUM),
        ("resolution", "512,768", "512", Reason.KNOB_NOT_CHANGEABLE),
        ("resolution", "512", "512,768", Reason.KNOB_NOT_CHANGEABLE),
        ("resolution", "512,512,512", "/2", Reason.KNOB_NOT_CHANGEABLE),
        ("network_dim", "010", "/2", Reason.KNOB_NOT_CHANGEABLE),
        ("network_dim", "1_0", "/2", Reason.KNOB_NOT_CHANGEABLE),
        ("network_dim", "${DIM}", "8", Reason.KNOB_NOT_CHANGEABLE),
        ("cache_latents", "maybe", "true", Reason.KNOB_NOT_CHANGEABLE),
    ],
)
def test_what_can_not_be_changed_is_refused(knob: str, old: str, asked: str, reason: Reason) -> None:
    """A value at its minimum, or one that is no plain number or word, is refused for that reason."""
    refusal = new_value(knob, old, asked)

    assert isinstance(refusal, Refusal)
    assert refusal.reason is reason


@pytest.mark.parametrize(
    ("knob", "text"),
    [
        ("batch", "2"),
        ("train_batch_size", "2"),
        ("batch_size", "0"),
        ("batch_size", "-1"),
        ("batch_size", "2.5"),
        ("batch_size", "two"),
        ("batch_size", "/1"),
        ("batch_size", "2\nlr: 1"),
        ("resolution", "32"),
        ("resolution", "512,32"),
        ("batch_size", "2,2"),
        ("data_workers", "-1"),
        ("cache_latents", "/2"),
        ("cache_latents", "2"),
        ("mixed_precision", "fp32"),
        ("mixed_precision", "fp16 # x"),
        ("mixed_precision", "*2"),
    ],
)
def test_a_faulty_wish_is_told_before_any_file_is_read(knob: str, text: str) -> None:
    """Unknown knobs and impossible values have a fault that names the knob."""
    fault = fault_of(knob, text)

    assert fault is not None
    assert knob in fault


@pytest.mark.parametrize(("knob", "text"), [(k, a) for k, _, a, _ in VALUES] + [("batch_size", "/2")])
def test_a_sound_wish_has_no_fault(knob: str, text: str) -> None:
    """What `new_value` takes has no fault."""
    assert knob in KNOBS
    assert fault_of(knob, text) is None
