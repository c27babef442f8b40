"""The transition table as a graph, and what surrounds it."""

import pytest

from tunewarden.domain.remediation import (
    ENDING_STATES,
    TRANSITIONS,
    Effect,
    Event,
    InvalidTransition,
    State,
    points_of,
    transition,
)


def test_no_state_and_event_have_two_rows() -> None:
    """The table is a function."""
    keys = [(row.source, row.event) for row in TRANSITIONS]

    assert len(keys) == len(set(keys))


def test_an_ending_state_is_left_by_nothing() -> None:
    """What is over stays over."""
    assert [row for row in TRANSITIONS if row.source in ENDING_STATES] == []


def test_every_open_state_is_reached_and_can_end() -> None:
    """From `decided` every state is reached, and from every open one an ending is."""
    reached = _closure({State.DECIDED}, forward=True)
    can_end = _closure(set(ENDING_STATES), forward=False)

    assert reached == set(State)
    assert can_end == set(State)


def test_a_lost_agent_ends_every_state_that_waits_for_it() -> None:
    """No remediation stays open because its agent is gone."""
    waiting = {State.ORDERED, State.ACCEPTED, State.PLANNED, State.SAVED, State.HALTED, State.VERIFYING}

    assert {row.source for row in TRANSITIONS if row.event is Event.LOST} == waiting


def test_nothing_is_cancelled_after_the_go_ahead() -> None:
    """`resolved` right after our own stop is evidence, never a reason to end half-way."""
    sources = {row.source for row in TRANSITIONS if row.event is Event.CANCELLED}

    assert sources == {State.DECIDED, State.ORDERED, State.ACCEPTED}


@pytest.mark.parametrize(
    ("state", "event"),
    [(State.DONE, Event.SAVED), (State.HALTED, Event.CANCELLED), (State.DECIDED, Event.LAUNCHED)],
)
def test_a_move_without_a_row_is_refused(state: State, event: Event) -> None:
    """The table is the only way."""
    with pytest.raises(InvalidTransition):
        transition(state, event)


def test_only_an_outside_effect_has_four_moments() -> None:
    """Where nothing outside happens, intent and outcome are one commit."""
    points = {row.effect: points_of(row) for row in TRANSITIONS}

    assert points == {
        Effect.NONE: ("before_intent", "after_outcome"),
        Effect.COMMAND: ("before_intent", "after_intent", "after_effect", "after_outcome"),
    }


def _closure(known: set[State], *, forward: bool) -> set[State]:
    while True:
        more = {
            row.target if forward else row.source
            for row in TRANSITIONS
            if (row.source if forward else row.target) in known
        } - known
        if not more:
            return known
        known = known | more
