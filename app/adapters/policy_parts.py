"""The parts of a policy file that have forms of their own: signs, confirmations, steps, durations, expressions."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from tunewarden.adapters.yaml_fields import Fields, share_of, text_of, texts_of, truth_of
from tunewarden.domain.duration import parse_duration
from tunewarden.domain.ladder import Ladder
from tunewarden.domain.order import HostCheck
from tunewarden.domain.policy import Confirmation, Sign, SignKind, Step, StepKind
from tunewarden.domain.promql import check_expression
from tunewarden.domain.tuning import fault_of

_METRICS = ("memory_ratio", "utilization")


def read_sign(top: Fields, item: Any, line: int) -> Sign | None:
    fields = top.inner(item, line, "a sign")
    name = fields.read("name", text_of, "")
    kinds = [key for key in fields.keys() if key in ("promql", "step_rate_below", "oom_line")]  # noqa: SIM118 - no mapping
    if not name or len(kinds) != 1:
        fields.fault(None, "a sign needs `name` and one of `promql`, `step_rate_below` (a share) and `oom_line: true`")
    expr = fields.read("promql", expression, "")
    share = fields.read("step_rate_below", share_of, 0.0)
    line_seen = fields.read("oom_line", truth_of, False)
    fields.done()
    if expr:
        return Sign(name=name, kind=SignKind.PROMQL, expr=expr)
    if share:
        return Sign(name=name, kind=SignKind.STEP_RATE, share=share)
    if not line_seen and kinds == ["oom_line"]:
        fields.fault("oom_line", "`oom_line` can only be true; leave the sign out instead")
    return Sign(name=name, kind=SignKind.OOM_LINE) if line_seen else None


def read_confirmation(top: Fields, item: Any, line: int) -> Confirmation | None:
    fields = top.inner(item, line, "a confirmation")
    if len(fields.keys()) != 1:
        fields.fault(None, "a confirmation is one of `promql: <expression>` and `nvml: memory_ratio > 0.95`")
    expr = fields.read("promql", expression, "")
    host = fields.read("nvml", host_check, None)
    fields.done()
    return Confirmation(expr=expr, host=host) if expr or host else None


def read_step(top: Fields, item: Any, line: int) -> Step | None:
    """`- notify`, or `- replace: {batch_size: /2}` with settings of the step beside its name."""
    if isinstance(item, str) and item in ("notify", "save", "stop"):
        return Step(kind=StepKind(item))
    fields = top.inner(item, line, "a step")
    kinds = [key for key in fields.keys() if key in _STEPS]  # noqa: SIM118 - no mapping
    if len(kinds) != 1:
        words = "notify, save, stop, `replace: {batch_size: /2}` and `run_command: [program, argument]`"
        fields.fault(None, f"a step is one of {words}")
        return None
    step = _STEPS[kinds[0]](fields)
    fields.done()
    return step


def _stop(fields: Fields) -> Step:
    if fields.raw("stop") is not None:
        fields.fault("stop", "`stop` takes no value; write `- stop`, or `- stop:` with `lose_unsaved: true` beside it")
    return Step(kind=StepKind.STOP, lose_unsaved=fields.read("lose_unsaved", truth_of, False))


def _replace(fields: Fields) -> Step:
    section = fields.section("replace")
    knobs: dict[str, str] = {}
    ladder = section.read("ladder", _ladder, None) if section else None
    if section and section.has("ladder") and len(section.keys()) > 1:
        fields.fault("replace", "`ladder` chooses the knobs itself: name either a ladder or knobs")
    for knob in section.keys() if section and not section.has("ladder") else ():
        if section and (value := section.read(knob, partial(_knob, knob), "")):
            knobs[knob] = value
    if section and not section.keys():
        fields.fault("replace", "`replace` must name at least one knob, as in `replace: {batch_size: /2}`")
    return Step(
        kind=StepKind.REPLACE,
        knobs=knobs,
        ladder=ladder,
        allow_resolution_change=fields.read("allow_resolution_change", truth_of, False),
        allow_effective_batch_change=fields.read("allow_effective_batch_change", truth_of, False),
        lose_unsaved=fields.read("lose_unsaved", truth_of, False),
    )


def _run_command(fields: Fields) -> Step:
    if isinstance(fields.raw("run_command"), str):
        fields.fault("run_command", "a command is a list, for no shell reads it; write [program, argument]")
        command: tuple[str, ...] = ()
    else:
        command = fields.read("run_command", texts_of, ())
        if not command:
            fields.fault("run_command", "`run_command` must name a program, as in [program, argument]")
    return Step(
        kind=StepKind.RUN_COMMAND,
        command=command,
        environment=fields.read("environment", texts_of, ()),
        timeout=fields.read("timeout", partial(duration, least=timedelta(seconds=1)), Step.timeout),
    )


_STEPS: Mapping[str, Callable[[Fields], Step]] = {"stop": _stop, "replace": _replace, "run_command": _run_command}


def duration(value: Any, *, least: timedelta = timedelta(0)) -> timedelta:
    length = parse_duration(str(value))
    if length < least:
        raise ValueError(f"must be at least {least.total_seconds():g}s")
    return length


def expression(value: Any) -> str:
    expr = text_of(value).strip()
    check_expression(expr)
    return expr


def host_check(value: Any) -> HostCheck:
    words = text_of(value).split()
    try:
        metric, op, number = words
        check = HostCheck(metric=metric, op=op, value=float(number))
    except ValueError:
        raise ValueError("must be like `memory_ratio > 0.95` or `utilization < 0.3`") from None
    if metric not in _METRICS or op not in ("<", ">") or not 0 <= check.value <= 1:
        raise ValueError(f"must compare {' or '.join(_METRICS)} by < or > with a number from 0 to 1")
    return check


def _ladder(value: Any) -> Ladder:
    if value not in tuple(Ladder):
        raise ValueError(f"must be one of {', '.join(Ladder)}")
    return Ladder(value)


def _knob(knob: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if fault := fault_of(knob, text):
        raise ValueError(fault)
    return text
