"""What a label may not do in a message."""

import pytest

from tunewarden.messages.escape import escape


@pytest.mark.parametrize("text", ["http://evil.example/x", "dingtalk://dingtalkclient/page", "@13800000000", "@+852-1"])
def test_a_label_can_not_make_a_link_or_a_mention(text: str):
    """DingTalk makes them of bare text; a space of no width keeps the words and takes the life out of them."""
    shown = escape(text)

    assert text.replace("_", "\\_") not in shown
    assert shown.replace("\u200b", "").replace("\\", "") == text
