"""A chat as one HTML file, to read in a browser or to print.

Invariant: a text of the chat is only text: no HTML in it takes effect, nothing is loaded, and a
link leads to a web address or is shown as text.
"""

from collections.abc import Sequence
from datetime import datetime
from html import escape

from markdown_it import MarkdownIt

from chatapp.common.foreign import printable
from chatapp.dialogue.store.rows import StoredChat, StoredMessage
from chatapp.dialogue.tools.tool import call_in_words

_NAMES = {"user": "You", "assistant": "Assistant"}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }}
header p, .note {{ opacity: 0.75; font-size: 0.9rem; }}
section {{ margin: 1.5rem 0; }}
section > h2 {{ font-size: 0.9rem; margin: 0; }}
.user {{ border-left: 3px solid #2f8f7b; padding-left: 1rem; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; padding: 0.6rem; border: 1px solid #8886; }}
table {{ border-collapse: collapse; }} td, th {{ border: 1px solid #8886; padding: 0.2rem 0.5rem; }}
</style>
</head>
<body>
<header><h1>{title}</h1><p>{facts}</p></header>
{messages}
</body>
</html>
"""


def to_html(chat: StoredChat, messages: Sequence[StoredMessage]) -> str:
    """A chat as a page of its own. Replies are laid out as Markdown if the chat shows them so."""
    facts = [_time(chat.created), f"model {chat.model}", chat.tags]
    title = escape(printable(chat.title or "Untitled chat"))
    system = [_section("Instructions", "system", _plain(chat.system), [])] if chat.system else []
    # No links to schemes other than the web's, and no images: markdown-it renders what is here.
    markdown = MarkdownIt("gfm-like", {"html": False}).disable("image")
    sections = [_message(message, markdown if chat.markdown else None) for message in messages]
    return _PAGE.format(
        title=title,
        facts=escape(printable(" · ".join(filter(None, facts)))),
        messages="\n".join(system + sections),
    )


def _message(message: StoredMessage, markdown: MarkdownIt | None) -> str:
    text = printable(message.text)
    is_laid_out = markdown is not None and message.role == "assistant"
    body = markdown.render(text) if markdown is not None and is_laid_out else _plain(text)
    calls = "".join(
        f"<pre>{escape(printable(call_in_words(call.name, call.arguments)))}\n"
        f"{escape(printable(call.result))}</pre>"
        for call in message.calls
    )
    status = "" if message.status == "complete" else message.status
    notes = [_time(message.created), status, "edited" * message.is_edited, message.changes]
    notes += [
        f"[{source.number}] {source.file}, {source.place}"
        for source in message.sources
        if source.number
    ]
    return _section(_NAMES[message.role], message.role, body + calls, notes)


def _section(name: str, kind: str, body: str, notes: Sequence[str]) -> str:
    words = escape(printable(" · ".join(filter(None, notes))))
    note = f'<p class="note">{words}</p>' if words else ""
    return f'<section class="{kind}"><h2>{name}</h2>\n{body}\n{note}</section>'


def _plain(text: str) -> str:
    return f'<div class="text">{escape(printable(text))}</div>'


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "minutes")
