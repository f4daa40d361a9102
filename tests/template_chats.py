"""Chats to lay out in a template, and what transformers makes of them."""

from collections.abc import Iterator
from itertools import product

from transformers.utils.chat_template_utils import render_jinja_template

from chatapp.prompting.messages import Message

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


def conversations(texts: tuple[str, ...]) -> Iterator[list[Message]]:
    """Chats of one to five turns, with instructions and without, open and answered."""
    for system, turns, start in product((None, *texts[:2]), (1, 2, 5), range(len(texts))):
        words = [texts[(start + step) % len(texts)] for step in range(2 * turns)]
        chat = [] if system is None else [Message("system", system)]
        for user, reply in zip(words[::2], words[1::2], strict=True):
            chat += [Message("user", user), Message("assistant", reply)]
        yield chat[:-1]
        yield chat


def reference(source: str, chat: list[Message]) -> str:
    """The text that transformers gives; raises what it raises."""
    rows = [{"role": message.role, "content": message.text} for message in chat]
    announce = chat[-1].role == "user"
    texts, _ = render_jinja_template(
        [rows], chat_template=source, add_generation_prompt=announce, **VARIABLES
    )
    return str(texts[0])
