"""From notices to a message: templates, languages, and a body that fits."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import FileSystemLoader
from jinja2.sandbox import SandboxedEnvironment

from tunewarden.domain.message import Message, Notice
from tunewarden.domain.target import Language, Target
from tunewarden.messages.escape import clip_end, escape, one_line
from tunewarden.messages.view import TITLE_LIMIT, heading_of, title_of, view_of
from tunewarden.messages.words import Words, status_of
from tunewarden.messages.words_en import EN
from tunewarden.messages.words_zh import ZH

TEMPLATES = Path(__file__).parent / "templates"
LANGUAGES: dict[Language, tuple[Words, ...]] = {Language.ZH: (ZH,), Language.EN: (EN,), Language.BOTH: (ZH, EN)}
_HALF_ENTITY = re.compile(r"&[a-z]{0,3}$")
_ENTRY_DESCRIPTION = 60  # characters of an annotation in a digest's line


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a body must be like: at most so many bytes as sent, and `plain` once the content was called unsafe."""

    limit_bytes: int
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Thread:
    """The notices that are one message, the newest last. `repeated`: it may have been delivered before."""

    notices: tuple[Notice, ...]
    repeated: bool = False

    @property
    def newest(self) -> Notice:
        return self.notices[-1]


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A message and the indexes of the threads that it tells; the others did not fit and must wait."""

    message: Message
    listed: tuple[int, ...]


class Renderer:
    """Renders for one target at a time. `size` says how many bytes a message has once it is sent."""

    def __init__(self, templates: Path = TEMPLATES) -> None:
        # finalize escapes every value, so a template can't forget to; our own links are of type Safe.
        self._environment = SandboxedEnvironment(
            loader=FileSystemLoader(templates), finalize=escape, autoescape=False, trim_blocks=True
        )

    def render(
        self, threads: Sequence[Thread], target: Target, shape: Shape, size: Callable[[Message], int]
    ) -> Rendered:
        """One thread as a message of its own, several as a digest."""
        if len(threads) == 1:
            return Rendered(message=self._single(threads[0], target, shape, size), listed=(0,))
        return self._digest(threads, target, shape, size)

    def _single(self, thread: Thread, target: Target, shape: Shape, size: Callable[[Message], int]) -> Message:
        languages = LANGUAGES[target.language]
        status = _both(words.statuses[status_of(thread.newest)] for words in languages)
        mark = _both(words.repeated for words in languages) if thread.repeated else ""
        # An alert's description has one language: both halves together hold it once, at the end.
        blocks = [self._body(thread.notices, words, shape, described=words is languages[-1]) for words in languages]
        text = "\n\n".join([heading_of(thread.newest, status, mark), *blocks])
        return _fitted(title_of(thread.newest, status), text, target, thread.newest.mention, shape, size)

    def _body(self, notices: Sequence[Notice], words: Words, shape: Shape, *, described: bool) -> str:
        """Paragraphs of one line: a single line break is no break on a phone, a blank line is."""
        template = self._environment.get_template(f"{words.language}/{notices[-1].kind.value}.md.j2")
        view = view_of(notices, words, plain=shape.plain)
        lines = template.render(view if described else view | {"description": ""}).splitlines()
        return "\n\n".join(line.strip() for line in lines if line.strip())

    def _digest(
        self, threads: Sequence[Thread], target: Target, shape: Shape, size: Callable[[Message], int]
    ) -> Rendered:
        """The most severe first, as many as fit, and how many are left."""
        order = sorted(range(len(threads)), key=lambda index: (_urgency(threads[index].newest), index))
        entries = _entries([threads[index] for index in order], target, shape)

        def of(count: int) -> Message:
            mention = any(threads[index].newest.mention for index in order[:count])
            newest = threads[order[0]].newest
            return _digest_message(entries[:count], len(threads), newest, target, mention)

        low, high = 1, len(entries)
        while low < high:  # the largest count that fits: a body grows with every entry
            middle = (low + high + 1) // 2
            low, high = (middle, high) if size(of(middle)) <= shape.limit_bytes else (low, middle - 1)
        return Rendered(message=of(low), listed=tuple(order[:low]))


def _urgency(notice: Notice) -> tuple[bool, int]:
    return (not notice.mention, notice.severity.rank)


def _entries(threads: Sequence[Thread], target: Target, shape: Shape) -> list[str]:
    """The lines of a digest, and no more of them than could possibly fit."""
    entries: list[str] = []
    room = shape.limit_bytes
    for thread in threads:
        entries.append(_entry(thread, LANGUAGES[target.language], plain=shape.plain))
        room -= len(entries[-1].encode())
        if room < 0:
            break
    return entries


def _digest_message(entries: Sequence[str], total: int, first: Notice, target: Target, mention: bool) -> Message:
    languages = LANGUAGES[target.language]
    left = total - len(entries)
    heading = _both(words.digest_title.format(count=total) for words in languages)
    lines = [f"### {heading}", " ".join(words.digest_intro for words in languages), "\n".join(entries)]
    if left:
        lines.append(_both(words.more.format(count=left) for words in languages))
    count_words = languages[0].digest_title.format(count=total)
    title = one_line(f"{count_words} {languages[0].statuses[status_of(first)]} {first.job_name}")
    return _finished(clip_end(title, TITLE_LIMIT), "\n\n".join(lines), target, mention)


def _entry(thread: Thread, languages: tuple[Words, ...], *, plain: bool) -> str:
    """One line of a digest: a list item."""
    notice = thread.newest
    status = _both(words.statuses[status_of(notice)] for words in languages)
    views = [view_of(thread.notices, words, plain=plain) for words in languages]
    what = _both(str(view["error"] or view["cause"] or view["ended"] or view["why"]) for view in views)
    description = "" if plain else clip_end(str(views[0]["description"]), _ENTRY_DESCRIPTION)
    names = () if plain else (notice.job_name, notice.node, notice.alert_name)
    parts = [escape(part) for part in (status, *names, what, views[0]["changes"], description) if part]
    mark = _both(words.repeated for words in languages) if thread.repeated else ""
    bold = f"**{escape(notice.short_id)}** " if notice.short_id else ""
    return f"- {bold}{' · '.join(parts)}{' ' + mark if mark else ''}"


def _both(words: Iterable[str]) -> str:
    """Chinese / English where a target asks for both; one word where both are the same."""
    return " / ".join(dict.fromkeys(words))


def _fitted(
    title: str, text: str, target: Target, mention: bool, shape: Shape, size: Callable[[Message], int]
) -> Message:
    """The message, its text cut at the end so that the body fits; the mention and the keyword come after the cut."""
    message = _finished(title, text, target, mention)
    if size(message) <= shape.limit_bytes:
        return message
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = size(_finished(title, _cut(text, middle), target, mention)) <= shape.limit_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return _finished(title, _cut(text, low), target, mention)


def _cut(text: str, length: int) -> str:
    """The first characters, never with half an escape or half an entity at the end."""
    return _HALF_ENTITY.sub("", text[:length]).rstrip("\\") + "…"


def _finished(title: str, text: str, target: Target, mention: bool) -> Message:
    """With the mentions, which DingTalk wants in the text too, and the keyword that the robot may ask for."""
    mobiles = target.at_mobiles if mention else ()
    users = target.at_user_ids if mention else ()
    if mobiles or users:
        text += "\n\n" + " ".join(f"@{name}" for name in (*mobiles, *users))
    if target.keyword and target.keyword not in text:
        text += "\n\n" + target.keyword
    return Message(title=title, text=text, at_mobiles=mobiles, at_user_ids=users)
