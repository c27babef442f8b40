"""As much of PromQL as a policy needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.deciding_values import SHIPPED
from tunewarden.domain.evidence import substitute
from tunewarden.domain.promql import PromqlError, check_expression, selectors


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("up", ("up",)),
        ('up{job="a"} > 1', ('up{job="a"}',)),
        ('rate(x{a="b{"}[5m])', ('x{a="b{"}',)),
        ("sum by (a, b) (rate(x[5m])) / on (c) group_left (d) y offset 5m > 1.5e3", ("x", "y")),
        ("avg(z) by (q)", ("z",)),
        ("a:b:c and d unless e or f", ("a:b:c", "d", "e", "f")),
        ("predict_linear(x[15m:1m], 1800) > bool 0x1f", ("x",)),
        ("vector(1)", ()),
        ("x == Inf or y != NaN", ("x", "y")),
        ("x @ start() + y @ 1609746000", ("x", "y")),
        ("label_replace(x, 'a', '$1', \"b\", `c`)", ("x",)),
        ("x + x", ("x",)),
    ],
)
def test_the_series_that_an_expression_reads(expr: str, expected: tuple[str, ...]) -> None:
    """Their age is the answer's."""
    assert selectors(expr) == expected


@pytest.mark.parametrize(
    "expr", ["", "  ", "up{", "up)", "(up]", 'up{a="b}', "up # all", 'x{a="$nobody"}', 'x{a="$window"}']
)
def test_what_can_not_be_right_is_refused(expr: str) -> None:
    """Before Prometheus refuses it at three in the morning."""
    with pytest.raises(PromqlError):
        check_expression(expr)


def test_the_shipped_expressions_are_plausible() -> None:
    """All of them."""
    for policy in SHIPPED.values():
        for expr in (*(sign.expr for sign in policy.signs), *(c.expr for c in policy.confirm), policy.expect.expr):
            if expr:
                check_expression(expr)

    assert len(SHIPPED) == 8


@given(st.text(max_size=30))
def test_no_text_crashes(text: str) -> None:
    """Selectors, or PromqlError."""
    try:
        check_expression(text)
        assert isinstance(selectors(text), tuple)
    except PromqlError:
        return


@given(st.text(max_size=30))
def test_a_value_can_not_leave_its_quotes(value: str) -> None:
    """Whatever a label holds, the expression keeps its strings."""
    filled = substitute('x{a="$uuid"} > 1', {"uuid": value})

    assert filled is not None
    inside = filled.removeprefix('x{a="').removesuffix('"} > 1')
    assert not set(inside) & {'"', "\n", "'"}
    assert inside.count("\\") == sum(inside.count(f"\\{letter}") for letter in "xU")


def test_a_variable_without_a_value_leaves_no_expression() -> None:
    """An empty uuid would match every series that has none."""
    assert substitute('x{a="$uuid"}', {"node": "n"}) is None
