"""Plan changes of the knobs in a flat YAML file, the dialect of the lora-scripts articles."""

import difflib
import hashlib
from collections.abc import Mapping
from pathlib import Path

from tunewarden.domain import effective_batch, tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import yaml_splice
from tunewarden.trainers.recipe import ConfigPlan, FileCopy, Knob, KnobChange

# Canonical name → key of the file. docs/reference/knobs.md shows this table.
FILE_KEYS: Mapping[str, str] = {
    tuning.BATCH: "batch_size",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    "resolution": "resolution",
    "cache_latents": "cache_latents",
    "data_workers": "num_workers",
    "persistent_workers": "persistent_workers",
    "pin_memory": "pin_memory",
    "gradient_checkpointing": "use_gradient_checkpointing",
    "mixed_precision": "mixed_precision",
    "network_dim": "lora_rank",
    "network_alpha": "lora_alpha",
}
_BATCH_KNOBS = frozenset({tuning.BATCH, tuning.ACCUMULATION})


def plan(
    path: Path, data: bytes, knobs: Mapping[str, str], *, allow_effective_batch_change: bool, resuming: bool
) -> ConfigPlan:
    """How the file `path`, which reads `data`, would read with `knobs` changed; see Recipe.plan.

    `resuming`: the job goes on from a checkpoint, so knobs that a checkpoint depends on are refused.
    """
    _refuse_faulty(path, knobs)
    document = yaml_splice.parse(data, where=str(path))
    spans = {knob: yaml_splice.locate(document, FILE_KEYS[knob]) for knob in knobs}
    values = _plain_values(path, spans, knobs)
    effective: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()
    if knobs.keys() & _BATCH_KNOBS:
        now, spans = _sizes(document, spans)
        line = spans[tuning.BATCH if tuning.BATCH in knobs else tuning.ACCUMULATION].line
        then = _resized(path, line, now, knobs, allow_effective_batch_change)
        values |= _as_values(then)
        effective, warnings = (now.effective, then.effective), _warnings(path, line, now, then)
    values = {knob: value for knob, value in values.items() if value != spans[knob].text}
    changes = _changes(path, spans, values)
    if resuming:
        _refuse_unloadable(changes)
    new = yaml_splice.splice(data, {FILE_KEYS[knob]: value for knob, value in values.items()}, where=str(path))
    copy = FileCopy(config_path=path, config_sha256=sha256(data), new_bytes=new, diff=_diff(path, data, new))
    return ConfigPlan(
        changes=changes, copies=(copy,) if changes else (), argv=(), effective_batch=effective, warnings=warnings
    )


def _plain_values(path: Path, spans: Mapping[str, yaml_splice.Span], knobs: Mapping[str, str]) -> dict[str, str]:
    """The new values of all knobs but batch size and accumulation."""
    values = {}
    for knob in knobs.keys() - _BATCH_KNOBS:
        answer = tuning.new_value(knob, spans[knob].text, knobs[knob])
        if isinstance(answer, tuning.Refusal):
            raise _refused(path, spans[knob].line, answer)
        values[knob] = answer
    return values


def _resized(
    path: Path, line: int, now: effective_batch.Sizes, knobs: Mapping[str, str], allow: bool
) -> effective_batch.Sizes:
    batch, accumulation = knobs.get(tuning.BATCH), knobs.get(tuning.ACCUMULATION)
    answer = effective_batch.resize(now, batch, accumulation, allow_effective_batch_change=allow)
    if isinstance(answer, tuning.Refusal):
        raise _refused(path, line, answer)
    return answer


def _changes(path: Path, spans: Mapping[str, yaml_splice.Span], values: Mapping[str, str]) -> tuple[KnobChange, ...]:
    in_order = sorted(values, key=lambda knob: spans[knob].start)
    return tuple(
        KnobChange(knob=knob, old=spans[knob].text, new=values[knob], file=path, line=spans[knob].line)
        for knob in in_order
    )


def _refuse_faulty(path: Path, knobs: Mapping[str, str]) -> None:
    for knob, asked in knobs.items():
        fault = tuning.fault_of(knob, asked)
        if fault is not None:
            reason = Reason.KNOB_NOT_CHANGEABLE if knob in tuning.KNOBS else Reason.KNOB_NOT_FOUND
            raise Refused(reason, f"{path}:1: {fault}")


def _refuse_unloadable(changes: tuple[KnobChange, ...]) -> None:
    for each in changes:
        if tuning.breaks_resume(each.knob, each.old, each.new):
            raise Refused(
                Reason.KNOB_NOT_CHANGEABLE,
                f"{each.file}:{each.line}: no checkpoint of {each.knob} {each.old} can be loaded with {each.new}; "
                "set it yourself for a new training",
            )


def _sizes(
    document: yaml_splice.Document, spans: Mapping[str, yaml_splice.Span]
) -> tuple[effective_batch.Sizes, dict[str, yaml_splice.Span]]:
    """Batch size and accumulation as the file sets them, and the spans with both in."""
    wanted = [tuning.BATCH]
    if FILE_KEYS[tuning.ACCUMULATION] in yaml_splice.keys(document):
        wanted.append(tuning.ACCUMULATION)
    both = {knob: yaml_splice.locate(document, FILE_KEYS[knob]) for knob in wanted}
    counts = {knob: _count(document.where, span) for knob, span in both.items()}
    return effective_batch.Sizes(batch=counts[tuning.BATCH], accumulation=counts.get(tuning.ACCUMULATION)), {
        **spans,
        **both,
    }


def _count(where: str, span: yaml_splice.Span) -> int:
    count = tuning.as_count(span.text)
    if not count:
        raise Refused(
            Reason.KNOB_NOT_CHANGEABLE,
            f"{where}:{span.line}: `{span.key}` is `{span.text}`, no whole number from 1; write it as a plain number",
        )
    return count


def _as_values(sizes: effective_batch.Sizes) -> dict[str, str]:
    values = {tuning.BATCH: str(sizes.batch)}
    if sizes.accumulation is not None:
        values[tuning.ACCUMULATION] = str(sizes.accumulation)
    return values


def _warnings(path: Path, line: int, now: effective_batch.Sizes, then: effective_batch.Sizes) -> tuple[str, ...]:
    if now.effective == then.effective:
        return ()
    text = f"{path}:{line}: effective batch {now.effective} → {then.effective}: the learning rate may no longer fit"
    if now.accumulation is None:
        text += f"; the file has no {FILE_KEYS[tuning.ACCUMULATION]} to make up for it"
    return (text,)


def _refused(path: Path, line: int, refusal: tuning.Refusal) -> Refused:
    advice = ""
    if refusal.reason is Reason.EFFECTIVE_BATCH_WOULD_CHANGE:
        advice = (
            f"; give the file a {FILE_KEYS[tuning.ACCUMULATION]} that can make up for it, "
            "or the policy allow_effective_batch_change"
        )
    return Refused(refusal.reason, f"{path}:{line}: {refusal.why}{advice}")


def read_knobs(path: Path, data: bytes) -> dict[str, Knob]:
    """The knobs that the file sets plainly, by canonical name. Raises Refused(config_malformed)."""
    document = yaml_splice.parse(data, where=str(path))
    knobs = {}
    for knob, key in FILE_KEYS.items():
        try:
            span = yaml_splice.locate(document, key)
        except Refused as refused:
            if refused.reason is Reason.CONFIG_MALFORMED:
                raise
            continue
        knobs[knob] = Knob(value=span.text, file=path, line=span.line)
    return knobs


def line_of(path: Path, data: bytes, key: str) -> int:
    """The line of the top-level `key`, or 1 where it can't be told."""
    try:
        return yaml_splice.find_scalar(data, key, where=str(path)).line
    except Refused:
        return 1


def read(path: Path) -> bytes:
    """The bytes of a config. Raises Refused(config_not_found)."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(
            Reason.CONFIG_NOT_FOUND, f"{path}: can't be read ({error.strerror}); give the path of the job's config"
        ) from error


def sha256(data: bytes) -> str:
    """The hash that tells whether a config was edited, in hex."""
    return hashlib.sha256(data).hexdigest()


def _diff(path: Path, old: bytes, new: bytes) -> str:
    before, after = ([line.rstrip("\r") for line in each.decode("utf-8-sig").split("\n")] for each in (old, new))
    lines = difflib.unified_diff(before, after, str(path), f"{path.name} (adjusted copy)", n=2, lineterm="")
    return "\n".join(lines)
