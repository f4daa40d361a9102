"""A dialogue template as a Jinja chat template: the same text, rendered by the sandbox."""

from dataclasses import replace

import pytest

from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.jinja import as_jinja
from chatapp.prompting.messages import Message
from chatapp.prompting.segments import text_of
from chatapp.prompting.template import ALPACA, CHAT, PLAIN, DialogueTemplate

END = "<|endoftext|>"

ODD = replace(
    PLAIN,
    instruction='He said "END", {{ USER }} and {% LEAD %}\\n.\n🦙 ',
    user_marker="{#'\"USER:",
    assistant_marker="\tASSISTANT 日本:",
    after_reply="\r\n\\",
    end_of_reply=True,
)

USER, REPLY = "  what is {{ x }}? \n", "\n It is <|endoftext|> 🦙. "

CHATS = [
    [Message("user", USER)],
    [Message("system", " Be \n kind. "), Message("user", USER)],
    [Message("system", "  "), Message("user", "hi"), Message("assistant", REPLY)],
    [Message("user", "a"), Message("assistant", REPLY), Message("user", "b")],
    [
        *[Message("system", "s"), Message("user", "a"), Message("assistant", "")],
        *[Message("user", ""), Message("assistant", "y"), Message("user", USER)],
    ],
]


@pytest.mark.parametrize("template", [PLAIN, ALPACA, CHAT, ODD], ids=lambda each: each.name)
@pytest.mark.parametrize("messages", CHATS, ids=range(len(CHATS)))
def test_the_text_is_that_of_the_dialogue_template(
    template: DialogueTemplate, messages: list[Message]
) -> None:
    variables = {"eos_token": END}
    program = ChatTemplate(as_jinja(template), "a test", (END,), variables)
    assert text_of(program.render(messages)) == text_of(template.render(messages))
