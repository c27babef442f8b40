"""What the templates see: a notice's values in the words and number forms of one language."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tunewarden.domain.message import Change, Fact, Notice
from tunewarden.domain.reason import Reason
from tunewarden.messages.escape import Long, Safe, clip, clip_end, escape, one_line
from tunewarden.messages.words import Words, status_of

TITLE_LIMIT = 40  # characters that a phone previews
DESCRIPTION_LIMIT = 400
_JOB_MINIMUM = 12
_LIST = re.compile(r"\s*[+,]\s*")
_SHARES = frozenset(
    {"vram_ratio", "gpu_utilization", "cpu_busy", "cpu_iowait", "disk_busy", "data_wait_share", "host_memory_ratio"}
)

# The facts that templates name. One that is absent is an empty string, so a template asks `if` and nothing else.
_PLAIN_FACTS = (
    "policy",
    "step",
    "total_steps",
    "checkpoint",
    "resumed_step",
    "step_now",
    "generation",
    "effective_batch_before",
    "effective_batch_after",
    "config_path",
    "resume_key",
    "exit_status",
    "planned",
    "names",
    "unsaved_steps",
    "suggested",
    "suggested_then",
    "tried",
    "xid",
    "path",
    "states_path",
    "step_seconds_before",
    "step_seconds_after",
    "step_seconds_change",
    "detail",
    "target",
    "error",
)


def view_of(thread: Sequence[Notice], words: Words, *, plain: bool) -> dict[str, Any]:
    """The names that a template may use, for a thread of notices whose newest is last.

    `plain` leaves out what a channel may call unsafe: links and the free text of annotations.
    """
    notice = thread[-1]
    facts = notice.facts
    view: dict[str, Any] = {name: _plain(facts.get(name, "")) for name in _PLAIN_FACTS}
    return view | {
        "id": notice.short_id,
        "job": notice.job_name,
        "node": notice.node,
        "alert": notice.alert_name,
        "status": words.statuses[status_of(notice)],
        "why": words.reasons.get(notice.reason, notice.reason.value),
        "earlier": _earlier(thread, words),
        "mention": notice.mention,
        "action": _listed(words, words.actions, facts.get("action", facts.get("would_have", ""))),
        "would_have": _listed(words, words.actions, facts.get("would_have", "")),
        "missing": _listed(words, words.numbers, facts.get("missing", "")),
        "cause": _word(words.causes, facts.get("cause")),
        "ended": _word(words.ends, facts.get("ended")),
        "advice": Long(_word(words.advice, facts.get("advice"))),
        "price": _word(words.prices, facts.get("rung")),
        "phase": _word(words.phases, facts.get("phase")),
        "memory": _memory(facts, words),
        "free": _size(facts.get("free_bytes")),
        "states_size": _size(facts.get("states_bytes")),
        "sign": _word(words.signs, facts.get("second_sign")),
        "observed": notice.reason is Reason.OBSERVE_MODE,
        "changes": words.separator.join(_change(change) for change in notice.changes),
        "numbers": _numbers(notice.numbers, words),
        "vram": _number("vram_ratio", vram) if (vram := {**notice.numbers, **facts}.get("vram_ratio")) else "",
        "resume_command": Long(facts.get("resume_command", "")),
        "description": "" if plain else Long(clip_end(str(facts.get("description", "")), DESCRIPTION_LIMIT)),
        "link": None if plain else _link(facts.get("url")),
    }


def title_of(notice: Notice, status: str) -> str:
    """Status word, job, what: at most 40 characters. Plain text: a phone shows it as it is."""
    first = notice.changes[0] if notice.changes else None
    planned = str(notice.facts.get("planned", ""))
    # Of a job's end the status word says enough: the event's name would add nothing.
    name = "" if "ended" in notice.facts else notice.alert_name
    what = f"{first.knob} {first.before}→{first.after}" if first else planned or name
    job = one_line(notice.job_name)
    room = TITLE_LIMIT - len(status)
    if job:
        job = clip(job, max(_JOB_MINIMUM, room - 1 - (len(what) + 1 if what else 0)))
    title = " ".join(part for part in (status, job, one_line(what)) if part)
    return title if len(title) <= TITLE_LIMIT else title[: TITLE_LIMIT - 1] + "…"


def _earlier(thread: Sequence[Notice], words: Words) -> str:
    """Why it was decided, when that message still waited and comes with this one."""
    return words.reasons.get(thread[0].reason, thread[0].reason.value) if len(thread) > 1 else ""


def _memory(facts: Mapping[str, Fact], words: Words) -> str:
    """What a card that had no room was asked for, and what it held unused."""
    names = ("tried", "free", "total")
    sizes = {name: _size(facts.get(f"{name}_bytes")) for name in names}
    said = [words.memory.format(**sizes)] if all(sizes.values()) else []
    if facts.get("fragmented") == "yes":
        said.append(words.unused.format(unused=_size(facts.get("unused_bytes"))))
    return words.separator.join(said)


def _size(count: Fact | None) -> str:
    """Bytes as a person reads them."""
    if not isinstance(count, int):
        return ""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def _listed(words: Words, table: Mapping[str, str], names: Fact) -> str:
    """Names joined by `+` or a comma, each in words."""
    return words.separator.join(_word(table, name) for name in _LIST.split(str(names)))


def _word(table: Mapping[str, str], name: Fact | None) -> str:
    return table.get(str(name), str(name)) if name not in (None, "") else ""


def _plain(value: Fact) -> Fact:
    """Zero is a step like any other: it must not read as absent in a template."""
    return str(value) if isinstance(value, int | float) else value


def _change(change: Change) -> str:
    return f"{change.knob} {change.before} → {change.after}"


def _numbers(numbers: Mapping[str, Fact], words: Words) -> str:
    shown = {name: value for name, value in numbers.items() if name != "vram_ratio"}  # that one is in the first line
    return words.separator.join(f"{words.numbers.get(name, name)} {_number(name, n)}" for name, n in shown.items())


def _number(name: str, value: Fact) -> str:
    if isinstance(value, str):
        return value
    if name in _SHARES:
        return f"{value * 100:.0f} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _link(url: Fact | None) -> Safe | None:
    """A web address that can stand in a markdown link; anything else is left out."""
    text = str(url or "")
    if urlsplit(text).scheme not in {"http", "https"} or any(char in text for char in " ()<>\\\n"):
        return None
    return Safe(text)


def heading_of(notice: Notice, status: str, mark: str) -> str:
    """The first line of the text, escaped."""
    job = escape(notice.job_name)
    return "### " + " · ".join(part for part in (escape(status), job) if part) + (f" {mark}" if mark else "")
