"""Messages that a person reads on a phone: words, titles, escaping, and a body that fits."""

import re

import pytest

from tunewarden.adapters.dingtalk import LIMIT_BYTES, body_of
from tunewarden.domain.message import Change, Message, Notice, NoticeKind, Severity
from tunewarden.domain.reason import Reason
from tunewarden.domain.target import Language, Secret, Target
from tunewarden.messages.render import Renderer, Shape, Thread
from tunewarden.messages.view import TITLE_LIMIT
from tunewarden.messages.words import Status, Words
from tunewarden.messages.words_en import EN
from tunewarden.messages.words_zh import ZH

FULL = Shape(limit_bytes=LIMIT_BYTES)
CHANGES = (
    Change(knob="batch_size", before="4", after="2"),
    Change(knob="gradient_accumulation", before="2", after="4"),
)
DECIDED = Notice(
    kind=NoticeKind.DECIDED,
    reason=Reason.POLICY_MATCHED,
    short_id="R-7F3K2M",
    job_name="cat-lora",
    node="gpu-1",
    alert_name="GpuMemoryNearlyFull",
    changes=CHANGES,
    facts={"action": "replace", "vram_ratio": 0.968, "second_sign": "exhaustion"},
)
OUTCOME = Notice(
    kind=NoticeKind.OUTCOME,
    reason=Reason.RECOVERED,
    short_id="R-7F3K2M",
    job_name="cat-lora",
    node="gpu-1",
    alert_name="GpuMemoryNearlyFull",
    changes=CHANGES,
    facts={
        "step": 120,
        "checkpoint": "/data/out/state-120",
        "resumed_step": 120,
        "step_now": 180,
        "config_path": "/data/my_lora.tunewarden-g2.yaml",
        "effective_batch_before": 8,
        "effective_batch_after": 8,
    },
)
BROKEN = Notice(
    kind=NoticeKind.OUTCOME,
    reason=Reason.DIED_OF_OOM_AGAIN,
    short_id="R-9",
    job_name="cat-lora",
    mention=True,
    facts={"resume_command": "tunewarden run -- python train.py --config my_lora.yaml"},
)
IDLE = Notice(
    kind=NoticeKind.NOTICE,
    reason=Reason.NOTIFY_ONLY,
    short_id="E-12",
    job_name="cat-lora",
    alert_name="GpuUtilizationLow",
    numbers={"gpu_utilization": 0.21, "data_wait_share": 0.72},
    facts={"cause": "loader"},
)
OBSERVED = Notice(
    kind=NoticeKind.NOTICE,
    reason=Reason.OBSERVE_MODE,
    short_id="E-13",
    job_name="cat-lora",
    changes=CHANGES,
    facts={"action": "replace"},
)
FINISHED = Notice(
    kind=NoticeKind.NOTICE,
    reason=Reason.NOTIFY_ONLY,
    job_name="cat-lora",
    alert_name="TrainingJobEnded",
    facts={"ended": "finished", "step": 1000, "exit_status": 0},
)


def target(language: Language = Language.EN, **changes: object) -> Target:
    return Target(name="ops", robot_url=Secret("x"), language=language, **changes)  # type: ignore[arg-type]


def bytes_of(message: Message) -> int:
    return len(body_of(message))


def render(*notices: Notice, to: Target | None = None, shape: Shape = FULL, repeated: bool = False) -> Message:
    threads = [Thread(notices=tuple(notices), repeated=repeated)]
    return Renderer().render(threads, to or target(), shape, bytes_of).message


def digest(notices: list[Notice], to: Target, shape: Shape = FULL) -> tuple[Message, tuple[int, ...]]:
    rendered = Renderer().render([Thread(notices=(notice,)) for notice in notices], to, shape, bytes_of)
    return rendered.message, rendered.listed


@pytest.mark.parametrize("words", [ZH, EN], ids=["zh", "en"])
def test_every_reason_has_a_sentence(words: Words):
    """No reason reaches a person as a bare code."""
    assert [reason for reason in Reason if not words.reasons.get(reason)] == []


@pytest.mark.parametrize("words", [ZH, EN], ids=["zh", "en"])
def test_every_status_has_a_word(words: Words):
    """A title always begins with a word of the target's language."""
    assert [status for status in Status if not words.statuses.get(status)] == []


@pytest.mark.parametrize("table", ["actions", "causes", "ends", "signs", "numbers"])
def test_both_languages_know_the_same_names(table: str):
    """A word that one language lacks would be shown as a code."""
    assert getattr(ZH, table).keys() == getattr(EN, table).keys()


@pytest.mark.parametrize("language", list(Language))
@pytest.mark.parametrize("kind", list(NoticeKind))
@pytest.mark.parametrize("reason", [Reason.RECOVERED, Reason.OBSERVE_MODE, Reason.GPU_BUSY])
def test_every_kind_renders_from_nothing(language: Language, kind: NoticeKind, reason: Reason):
    """A notice without facts still becomes a title and a text."""
    message = render(Notice(kind=kind, reason=reason), to=target(language))

    assert message.title.strip() and message.text.strip()
    assert "None" not in message.text


def test_decided_says_why_and_what_will_be_done():
    """The first message of a remediation."""
    assert render(DECIDED).text == (
        "### Acting · cat-lora\n\n"
        "**R-7F3K2M** · GpuMemoryNearlyFull · gpu-1 · GPU memory 97 %\n\n"
        "Why: the policy's conditions all hold (memory is predicted to run out)\n\n"
        "Will: save a checkpoint, stop, restart from it · batch\\_size 4 → 2, gradient\\_accumulation 2 → 4"
    )


def test_outcome_says_what_changed_and_from_where_it_went_on():
    """The second message of a remediation, in Chinese."""
    assert render(OUTCOME, to=target(Language.ZH)).text == (
        "### 已恢复 · cat-lora\n\n"
        "**R-7F3K2M** · GpuMemoryNearlyFull · gpu-1\n\n"
        "结果：训练继续进行，告警条件不再成立\n\n"
        "改动：batch\\_size 4 → 2，gradient\\_accumulation 2 → 4 · 有效批大小 8 → 8"
        " · 写在 /data/my\\_lora.tunewarden-g2.yaml\n\n"
        "检查点：第 120 步 · /data/out/state-120 · 从第 120 步继续，现在第 180 步"
    )


def test_a_diagnosis_shows_the_cause_and_the_numbers_that_decided():
    """A job that idles gets a cause, not only an alert."""
    text = render(IDLE).text

    assert "Cause: the data loader: the GPU waits for batches" in text
    assert "Measured: GPU utilisation 21 %, waiting for data 72 %" in text


def test_observe_mode_says_would_have():
    """Nothing was done, and the message doesn't look as if it was."""
    message = render(OBSERVED)

    assert message.title.startswith("Would act cat-lora")
    assert "Would have: save a checkpoint, stop, restart from it · batch\\_size 4 → 2" in message.text


def test_a_finished_job_says_so():
    """The end of a job, with step and exit code zero shown."""
    message = render(FINISHED)

    assert message.title == "Finished cat-lora"
    assert "The job finished at step 1000 · exit code 0" in message.text


def test_a_decision_that_still_waits_comes_with_its_outcome():
    """Two notices of one remediation are one message, and the why isn't lost."""
    text = render(DECIDED, OUTCOME).text

    assert "Why: the policy's conditions all hold" in text
    assert "Result: it trains on" in text


def test_a_description_is_told_once_in_a_message_of_both_languages():
    """It has one language, whichever that is: it comes at the end, whole."""
    said = " ".join(f"The loader of GPU {number} is too slow." for number in range(8))
    notice = Notice(kind=NoticeKind.NOTICE, reason=Reason.NO_TARGET, facts={"description": said})
    text = render(notice, to=target(Language.BOTH)).text

    assert text.endswith(said)
    assert text.count("The loader of GPU 0") == 1


def test_both_languages_are_in_one_message():
    """Chinese first, then English, one heading."""
    text = render(DECIDED, to=target(Language.BOTH)).text

    assert text.startswith("### 处理中 / Acting · cat-lora")
    assert text.index("原因：") < text.index("Why:")


@pytest.mark.parametrize(
    "notice",
    [
        DECIDED,
        OUTCOME,
        BROKEN,
        IDLE,
        Notice(kind=NoticeKind.OUTCOME, reason=Reason.NO_STEP, job_name="j" * 128, alert_name="A" * 200),
        Notice(kind=NoticeKind.DECIDED, reason=Reason.MANUAL, job_name="训练任务" * 30, changes=CHANGES),
    ],
)
@pytest.mark.parametrize("language", list(Language))
def test_a_title_fits_a_phones_preview(notice: Notice, language: Language):
    """Status word first, at most 40 characters, one line."""
    title = render(notice, to=target(language)).title

    assert len(title) <= TITLE_LIMIT
    assert "\n" not in title


HOSTILE = "lora_r16_*_[a](x) <img src=x> a|b `rm` ~~s~~ \\ &lt;\n# heading\r\n> quote\u2028- item\u202e"


def test_labels_can_not_break_the_markdown():
    """Everything that DingTalk reads as markdown or HTML is escaped, and a label stays on its line."""
    text = render(Notice(kind=NoticeKind.NOTICE, reason=Reason.NO_TARGET, short_id="E-1", alert_name=HOSTILE)).text

    assert text.splitlines()[2] == (
        "**E-1** · lora\\_r16\\_\\*\\_\\[a\\](x) &lt;img src=x&gt; a\\|b \\`rm\\` \\~\\~s\\~\\~ \\\\ &amp;lt; "
        "\\# heading &gt; quote - item"
    )


@pytest.mark.parametrize("field", ["short_id", "job_name", "node", "alert_name"])
@pytest.mark.parametrize("kind", [kind for kind in NoticeKind if kind is not NoticeKind.TEST])
def test_no_field_reaches_a_message_unescaped(field: str, kind: NoticeKind):
    """Whatever the kind, no raw HTML, table or line break of a label is in the text."""
    notice = Notice(kind=kind, reason=Reason.RECOVERED, **{field: HOSTILE})
    text = render(notice).text + digest([notice, IDLE], target())[0].text

    assert re.findall(r"(?<!\\)[|<`\[~]|^(?:\\?# heading|> quote)", text, re.MULTILINE) == []


@pytest.mark.parametrize("name", ["checkpoint", "config_path", "detail", "resume_command", "description", "error"])
def test_no_fact_reaches_a_message_unescaped(name: str):
    """Facts carry paths and annotations: the same holds for them."""
    facts = {"step": 1, name: HOSTILE}
    notices = [
        Notice(kind=kind, reason=Reason.RECOVERED, facts=facts, changes=CHANGES, mention=True) for kind in NoticeKind
    ]

    assert [n.kind for n in notices if re.search(r"(?<!\\)[|<`\[~]|^> quote", render(n).text, re.MULTILINE)] == []


def test_a_template_can_not_run_code(tmp_path):
    """Templates are sandboxed: reaching for Python's insides fails."""
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "test.md.j2").write_text("{{ ''.__class__.__mro__ }}", encoding="utf-8")
    threads = [Thread(notices=(Notice(kind=NoticeKind.TEST, reason=Reason.MANUAL),))]

    with pytest.raises(Exception, match="unsafe"):
        Renderer(tmp_path).render(threads, target(), FULL, bytes_of)


def test_a_mention_is_in_the_text_and_in_the_list():
    """DingTalk calls a number only when the text holds it too; a foreign number keeps its form."""
    message = render(BROKEN, to=target(at_mobiles=("13800000000", "+852-12345678"), at_user_ids=("li_4",)))

    assert message.text.endswith("\n\n@13800000000 @+852-12345678 @li_4")
    assert (message.at_mobiles, message.at_user_ids) == (("13800000000", "+852-12345678"), ("li_4",))


def test_nobody_is_called_when_nobody_must_act():
    """A recovery is good news: it wakes nobody."""
    message = render(OUTCOME, to=target(at_mobiles=("13800000000",)))

    assert (message.at_mobiles, "@" in message.text) == ((), False)


@pytest.mark.parametrize(
    ("keyword", "times"), [("GPU-ALERT", 1), ("GPU_ALERT", 1), ("cat-lora", 1)], ids=["lacks", "unescaped", "has"]
)
def test_the_keyword_is_there_once(keyword: str, times: int):
    """It is added, unescaped, only when the text lacks it."""
    assert render(DECIDED, to=target(keyword=keyword)).text.count(keyword) == times


@pytest.mark.parametrize(
    ("language", "mark"),
    [(Language.EN, "(possibly repeated)"), (Language.ZH, "（可能重复）")],
)
def test_a_repeated_message_says_so(language: Language, mark: str):
    """A person who sees it twice knows why."""
    assert mark in render(DECIDED, to=target(language), repeated=True).text.splitlines()[0]


def test_plain_leaves_out_links_and_annotations():
    """What DingTalk called unsafe is sent once more without the parts that can be."""
    facts = {"action": "save", "url": "https://console.example/r/1", "description": "see http://x"}
    notice = Notice(kind=NoticeKind.DECIDED, reason=Reason.POLICY_MATCHED, facts=facts)

    assert "[Details](https://console.example/r/1)" in render(notice).text
    assert "http" not in render(notice, shape=Shape(limit_bytes=LIMIT_BYTES, plain=True)).text


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://x/a) [b](https://y", "file:///etc"])
def test_only_a_web_address_becomes_a_link(url: str):
    """A link from outside can't hide another one."""
    notice = Notice(kind=NoticeKind.DECIDED, reason=Reason.POLICY_MATCHED, facts={"url": url})

    assert "](" not in render(notice).text


def test_a_command_to_go_on_is_never_cut_in_its_middle():
    """A person copies it: half a command is worse than none."""
    command = "cd /data && tunewarden run -- python train.py " + " ".join(f"--option{n} {n}" for n in range(40))
    notice = Notice(kind=NoticeKind.OUTCOME, reason=Reason.NO_STEP, mention=True, facts={"resume_command": command})

    assert command in render(notice).text


def alerts(count: int) -> list[Notice]:
    """Distinct notices with long Chinese descriptions; every tenth is critical."""
    return [
        Notice(
            kind=NoticeKind.NOTICE,
            reason=Reason.NO_TARGET,
            short_id=f"E-{number:04d}",
            alert_name="GpuMemoryNearlyFull",
            severity=Severity.CRITICAL if number % 10 == 9 else Severity.INFO,
            mention=number % 10 == 9,
            facts={"description": "显存使用率过高请检查训练任务" * 22},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("language", list(Language))
def test_a_digest_of_500_alerts_fits(language: Language):
    """At most 20,000 bytes of UTF-8, whole characters, the most severe kept, the rest counted, the mention kept."""
    to = target(language, at_mobiles=("13800000000", "+852-12345678"), keyword="GPU-ALERT")
    message, listed = digest(alerts(500), to)

    assert 15_000 < bytes_of(message) <= LIMIT_BYTES
    assert body_of(message).decode("utf-8").count("�") == 0
    assert set(range(9, 500, 10)) <= set(listed)
    assert f"{500 - len(listed)} " in message.text
    assert "@13800000000 @+852-12345678" in message.text
    assert message.text.endswith("GPU-ALERT")


def test_a_digest_lists_each_once():
    """60 notices are 60 lines."""
    message, listed = digest(alerts(60), target())

    assert len(listed) == 60
    assert [message.text.count(f"E-{number:04d}") for number in range(60)] == [1] * 60


@pytest.mark.parametrize("limit", [600, 700, 801, 1500])
def test_a_single_message_is_cut_to_fit(limit: int):
    """The end of the text goes; mention and keyword stay, and no escape is cut in half."""
    facts = {"resume_command": "训练_<任务>" * 200}
    notice = Notice(kind=NoticeKind.OUTCOME, reason=Reason.NO_STEP, mention=True, job_name="cat", facts=facts)
    to = target(at_mobiles=("+852-12345678",), keyword="GPU-ALERT")
    message = render(notice, to=to, shape=Shape(limit_bytes=limit))
    text = message.text.removesuffix("\n\n@+852-12345678\n\nGPU-ALERT")

    assert limit - 20 <= bytes_of(message) <= limit
    assert text.endswith("…")
    assert re.search(r"(\\|&[a-z]{0,3})…$", text) is None


def test_a_job_that_died_is_not_said_to_be_saved():
    """The decision about a dead job says how it ended, and that it is started again with which knob."""
    died = Notice(
        kind=NoticeKind.DECIDED,
        reason=Reason.POLICY_MATCHED,
        short_id="R-1",
        job_name="cat-lora",
        alert_name="TrainingJobEnded",
        facts={"ended": "cuda_oom", "action": "relaunch", "planned": "batch_size /2"},
    )
    text = render(died).text

    assert "The job ran out of GPU memory" in text
    assert "Will: start the job again from its last checkpoint · batch\\_size /2" in text
