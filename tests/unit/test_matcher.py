"""Alertmanager's matchers, read as Alertmanager reads them."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewarden.domain.matcher import Matcher, MatcherError, MatchOp, parse_matcher, parse_matchers


@pytest.mark.parametrize(
    ("text", "name", "op", "value"),
    [
        ('alertname="GpuMemoryNearlyFull"', "alertname", "=", "GpuMemoryNearlyFull"),
        ("alertname=GpuMemoryNearlyFull", "alertname", "=", "GpuMemoryNearlyFull"),
        ('  severity  !=  "info"  ', "severity", "!=", "info"),
        ("severity=~warning|critical", "severity", "=~", "warning|critical"),
        ('name=~"lora-.*"', "name", "=~", "lora-.*"),
        ('name!~"tmp.*"', "name", "!~", "tmp.*"),
        ('"a.b"="c"', "a.b", "=", "c"),
        ('"say \\"hi\\""="x"', 'say "hi"', "=", "x"),
        ('a="say \\"hi\\", \\\\ done"', "a", "=", 'say "hi", \\ done'),
        ('a="tab\\there"', "a", "=", "tab\there"),
        ('a="line\\nbreak"', "a", "=", "line\nbreak"),
        ('a="\\u4e2d\\u6587"', "a", "=", "中文"),
        ('a=~"10\\.0\\.0\\.\\d+"', "a", "=~", r"10\.0\.0\.\d+"),
        ('a=~"10\\\\.0"', "a", "=~", r"10\.0"),
        ('a="{x=y}"', "a", "=", "{x=y}"),
        ('a=""', "a", "=", ""),
        ("a=", "a", "=", ""),
        ("标签=值", "标签", "=", "值"),
        ("a==b", "a", "=", "=b"),
    ],
)
def test_a_matcher_is_read_as_alertmanager_reads_it(text: str, name: str, op: str, value: str) -> None:
    """Quoted or not, with escapes or without."""
    matcher = parse_matcher(text)

    assert (matcher.name, matcher.op.value, matcher.value) == (name, op, value)


@pytest.mark.parametrize(
    "text",
    ["", "a", '="b"', 'a="b', 'a=b"', 'a="b"c', '"a=b', '""="x"', "{}", '{a="b"', 'a="b"}', "a,b", 'a=~"\\bword"'],
)
def test_what_is_no_matcher_is_refused(text: str) -> None:
    """The message repeats the text, so that it can be found in the file."""
    with pytest.raises(MatcherError) as caught:
        parse_matchers(text)

    assert len(str(caught.value)) > 10


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{a="b",c=~"d"}', 2),
        ('a="b",c="d",', 2),
        ('{a="x,y", b="{}"}', 2),
        ('"a.b"="c,d"', 1),
        ("a=~b{2}", 1),
    ],
)
def test_lists_are_split_outside_quotes(text: str, count: int) -> None:
    """With braces or without, and with a comma at the end."""
    assert len(parse_matchers(text)) == count


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a=b", {"a": "b"}, True),
        ("a=b", {"a": "bc"}, False),
        ("a!=b", {}, True),
        ('a=""', {}, True),
        ("a=~b", {"a": "abc"}, False),
        ("a=~a|ab", {"a": "ab"}, True),
        ("a=~.*", {}, True),
        ("a=~.+", {}, False),
        ("a=~b", {"a": "b\n"}, False),
        ('a=~"b$"', {"a": "b\n"}, False),
        ("a=~.*", {"a": "x\ny"}, False),
        ('a=~"(?s).*"', {"a": "x\ny"}, True),
        ('a=~"(?i)gpu"', {"a": "GPU"}, True),
        ('a=~"\\\\d+"', {"a": "\u0663"}, False),
        ('a=~"\\\\s"', {"a": "\v"}, False),
        ('a=~"\\\\Qa.b\\\\E"', {"a": "a.b"}, True),
        ('a=~"\\\\Qa.b\\\\E"', {"a": "axb"}, False),
        ('a=~"\\\\x{41}[[\\\\s]"', {"a": "A["}, True),
        ('a=~"(?P<n>x)y"', {"a": "xy"}, True),
        ("a!~b.*", {"a": "bcd"}, False),
        ("a!~b.*", {"a": "cd"}, True),
    ],
)
def test_matching(text: str, labels: dict[str, str], expected: bool) -> None:
    """Whole values, missing labels as empty, RE2's meanings."""
    assert parse_matcher(text).matches(labels) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?<=a)b",
        "(?!a)",
        "(a)\\1",
        "(?>a)",
        "(?#c)",
        "a++",
        "a*+",
        "a**",
        "[[:alpha:]]",
        "\\pL",
        "\\p{Greek}",
        "\\C",
        "\\Z",
        "\\u0041",
        "(?U)a",
        "(?m)a",
        "(?x) a",
        "a(?i)b",
        "(?i)ü",
        "a{,5}",
        "a{2000}",
        "a{",
        "[a",
        "(a",
        "a)",
        "(a+)+",
        "(a*)*b",
        "((a+)b)+",
        "(.*,){2,}",
        "*a",
        "a\\",
        "[z-a]",
        "\\x{110000}",
    ],
)
def test_what_python_would_read_otherwise_is_refused(pattern: str) -> None:
    """Look-around, classes, nested repeats and the rest."""
    with pytest.raises(MatcherError):
        Matcher(name="a", op=MatchOp.REGEX, value=pattern)


@given(st.text(max_size=40), st.text(max_size=20))
def test_any_value_survives_a_round_trip(value: str, name: str) -> None:
    """What is written by str() is read back."""
    matcher = Matcher(name=name or "x", op=MatchOp.EQUAL, value=value)

    assert parse_matchers(str(matcher)) == (matcher,)


@given(st.text(alphabet="ab\\[](){}*+?|^$.,=!~\"'0-9:&i \nQE<P>x", max_size=25))
def test_no_text_crashes_the_parser(text: str) -> None:
    """Either matchers come back or MatcherError; never a warning of Python's re."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            matchers = parse_matchers(text)
        except MatcherError:
            return

    assert all(isinstance(m.matches({"a": "b"}), bool) for m in matchers)
