"""torch's allocator settings: expandable segments are added to what the person has set."""

import pytest

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.allocator import merged, uses_expandable_segments, with_expandable_segments

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {OLD: "expandable_segments:True"}),
        ({OLD: ""}, {OLD: "expandable_segments:True"}),
        ({OLD: "max_split_size_mb:128"}, {OLD: "max_split_size_mb:128,expandable_segments:True"}),
        ({OLD: "expandable_segments:False,a:1"}, {OLD: "a:1,expandable_segments:True"}),
        (
            {OLD: "roundup_power2_divisions:[256:1,512:2,>:8]"},
            {OLD: "roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True"},
        ),
        ({NEW: "garbage_collection_threshold:0.8"}, {NEW: "garbage_collection_threshold:0.8,expandable_segments:True"}),
        ({NEW: "a:1", OLD: "b:2"}, {NEW: "a:1,expandable_segments:True", OLD: "b:2,expandable_segments:True"}),
    ],
)
def test_what_is_set_is_kept(env: dict[str, str], expected: dict[str, str]) -> None:
    """The name that the person uses is used; without one the older, which every torch reads."""
    assert with_expandable_segments(env, True) == expected
    assert uses_expandable_segments(env) is False
    assert uses_expandable_segments({**env, **expected}) is True


def test_they_can_be_switched_off() -> None:
    """The switch goes both ways."""
    on = {OLD: "max_split_size_mb:128,expandable_segments:True"}

    assert with_expandable_segments(on, False) == {OLD: "max_split_size_mb:128,expandable_segments:False"}


def test_another_allocator_is_left_alone() -> None:
    """cudaMallocAsync has no segments: the setting would do nothing."""
    with pytest.raises(Refused) as refused:
        with_expandable_segments({OLD: "backend:cudaMallocAsync"}, True)

    assert refused.value.reason is Reason.KNOB_NOT_CHANGEABLE


def test_what_a_recipe_adds_is_merged() -> None:
    """A recipe knows no environment: its setting is put into the one that is there."""
    env = {NEW: "max_split_size_mb:64"}

    assert merged(env, {OLD: "expandable_segments:True", "OMP_NUM_THREADS": "1"}) == {
        NEW: "max_split_size_mb:64,expandable_segments:True",
        "OMP_NUM_THREADS": "1",
    }
