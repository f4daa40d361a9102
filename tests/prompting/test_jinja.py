"""A dialogue template as a Jinja chat template: the same text, rendered by the sandbox and by
transformers."""

from itertools import product

import jinja2
import pytest
from fakes import reworded
from transformers.utils.chat_template_utils import render_jinja_template

from chatapp.prompting.messages import Message, text_of
from chatapp.prompting.template import ALPACA, CHAT, PLAIN, as_jinja

END = "<|endoftext|>"

ODD = reworded(
    PLAIN,
    instruction='He said "END", {{ USER }} and {% LEAD %}\\n.\n🦙 ',
    user_marker="{#'\"USER:",
    assistant_marker="\tASSISTANT 日本:",
    after_reply="\r\n\\",
    end_of_reply=True,
)

PLAIN_TEXTS = ("What is 2 + 2?", "It is 4.", "And 3 + 3?", "6", "Thanks!", "You are welcome.")
ODD_TEXTS = (
    *("  {{ 7 * 7 }} {% if %} {# #}\n", '<|endoftext|> it\'s "it" \\n', "\u2003é 😀 \u200b\x85"),
    *("", "User: me\nAssistant: you", "line\r\nline\n\n"),
)


def conversations():
    """Twelve: with instructions, empty ones and none; of one turn and three; plain and odd."""
    made = []
    for texts, system, turns in product(
        (PLAIN_TEXTS, ODD_TEXTS), (None, "", " Be {{ it }}.\n"), (1, 3)
    ):
        chat = [] if system is None else [Message("system", system)]
        for user, reply in zip(texts[: 2 * turns : 2], texts[1 : 2 * turns : 2], strict=True):
            chat += [Message("user", user), Message("assistant", reply)]
        made.append(chat)
    return made


def by_transformers(template, chat, announce=False, start=""):
    rows = [{"role": message.role, "content": message.text} for message in chat]
    source = as_jinja(template, start)
    texts, _ = render_jinja_template(
        [rows], chat_template=source, add_generation_prompt=announce, eos_token=END
    )
    return str(texts[0])


@pytest.mark.parametrize("template", [PLAIN, ALPACA, CHAT, ODD], ids=lambda each: each.name)
@pytest.mark.parametrize("chat", conversations(), ids=range(12))
def test_transformers_renders_the_same_text(template, chat):
    assert by_transformers(template, chat) == text_of(template.render(chat))
    assert by_transformers(template, chat, announce=True) == text_of(template.render(chat))
    asked = chat[:-1]
    assert by_transformers(template, asked, announce=True) == text_of(template.render(asked))
    # Without what announces the reply, it ends with the user's own words.
    announcement = template.wording.after_user + template.wording.assistant_marker
    assert by_transformers(template, asked) + announcement == text_of(template.render(asked))


def test_chats_that_the_template_refuses_are_refused():
    for roles in (["assistant"], ["system", "assistant"], ["user", "system"]):
        chat = [Message(role, "text") for role in roles]
        with pytest.raises(ValueError, match="expected"):
            CHAT.render(chat)
        with pytest.raises(jinja2.TemplateError, match="expected"):
            by_transformers(CHAT, chat)


def test_what_a_model_expects_before_any_text_comes_first():
    chat = [Message("user", "a"), Message("assistant", "b")]
    assert by_transformers(CHAT, chat, start="<s>") == f"<s>User: a\nAssistant: b{END}"
