"""Chats as Markdown, HTML, JSON and fine-tuning rows.

A chat's JSON document, which `importing` reads back:

    {
      "id": 7,
      "title": "Does a walrus eat clams?",
      "model": "bundled",          the one at its beginning
      "template": "chat",          the same
      "system": "Be brief.",       or null for the template's own instructions
      "created": 1700000000.0,     unix seconds, like all times
      "updated": 1700000002.5,
      "tags": "#sea #food",        only if there are tags
      "messages": [                those of the current path, oldest first
        {"role": "user", "content": "Does …", "status": "complete", "created": 1700000000.0},
        {"role": "assistant", "content": "Yes, mo", "status": "stopped", "created": …,
         "thoughts": "They ask …",  only if there are thoughts
         "sources": [{"file": …, "place": …, "text": …, "score": …, "number": …}],
         "calls": [{"name": …, "arguments": {…}, "result": …, "status": …, "at": 12, "inside": 0}],
         "changes": "without 3.5",  what was changed inside the model
         "original": "Yes, mo"}     what the model wrote, if the user has edited the reply
      ]
    }

Sources are the passages of documents that were found for a reply; the number is that in its
prompt, 0 if it was left out for length. Calls are those of tools; each precedes the
character `at` of the content, of which `inside` are its result, and its status is done, failed,
refused, stopped or running (when the program died). A status is complete, stopped (by the user),
error, or partial (it is being generated, or was when the program died). Several chats are a list
of such documents.

A row for supervised fine-tuning (SFT) is a line of JSON, one for a chat:

    {"messages": [{"role": "system", "content": …}, {"role": "user", "content": …},
                  {"role": "assistant", "content": …}, …]}

The thoughts before a reply are part of its content only on request, between the marks <think> and
</think>.

The rows from feedback are described in `feedback`.

Invariant: exported text is unchanged; nothing in it is escaped, shortened or left out, so that it
can be read back. In HTML, which is to be read in a browser or printed, a text of the chat is only
text: no HTML in it takes effect, nothing is loaded, and a link leads to a web address.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chatapp.common.foreign import local_time, printable
from chatapp.dialogue.store.rows import StoredChat, StoredMessage
from chatapp.dialogue.tools.tool import call_in_words
from chatapp.engine.events import THINKING
from chatapp.prompting.messages import Call

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_NAMES = {"user": "User", "assistant": "Assistant"}

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


def as_text(
    chats: Sequence[tuple[StoredChat, Sequence[StoredMessage]]],
    suffix: str,
    *,
    as_list: bool = False,
    thinking: bool = False,
) -> str:
    """Chats with their messages as the content of a file with this suffix: .md, .html (of one),
    .json or .jsonl, which is empty where there is nothing that could be trained on.

    as_list: whether the JSON of one chat is a list, too. thinking: see `to_training_rows`. Raises
    ValueError for another suffix.
    """
    if suffix == ".md":
        return "\n---\n\n".join(to_markdown(*chat) for chat in chats)
    if suffix == ".html":
        return to_html(*chats[0])
    if suffix == ".json":
        documents = [to_json(*chat) for chat in chats]
        document = documents if as_list else documents[0]
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if suffix != ".jsonl":
        raise ValueError("expected a file name that ends in .md, .html, .json or .jsonl")
    rows = (row for chat in chats for row in to_training_rows(*chat, thinking=thinking))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def to_markdown(chat: StoredChat, messages: Sequence[StoredMessage]) -> str:
    """A chat to read: a title, then each message under the name of who said it."""
    facts = ", ".join(filter(None, (_time(chat.created), f"model {chat.model}", chat.tags)))
    parts = [f"# {chat.title or 'Untitled chat'}", f"*{facts}*"]
    if chat.system:
        parts += ["## System", chat.system]
    for message in messages:
        notes = ", ".join(_notes(message))
        note = f" ({notes})" if notes else ""
        parts += [f"## {_NAMES[message.role]}{note}", message.text]
        parts += [_call_in_words(call) for call in message.calls]
        shown = [source for source in message.sources if source.number]
        parts.append(
            "\n".join(f"{source.number}. {source.file}, {source.place}" for source in shown)
        )
    return "\n\n".join(part for part in parts if part) + "\n"


def to_html(chat: StoredChat, messages: Sequence[StoredMessage]) -> str:
    """A chat as a page of its own. Replies are laid out as Markdown if the chat shows them so."""
    facts = [_time(chat.created), f"model {chat.model}", chat.tags]
    title = escape(printable(chat.title or "Untitled chat"))
    system = [_section("Instructions", "system", _plain(chat.system), [])] if chat.system else []
    from markdown_it import MarkdownIt

    # No links to schemes other than the web's, and no images: markdown-it renders what is here.
    markdown = MarkdownIt("gfm-like", {"html": False}).disable("image")
    sections = [_message(message, markdown if chat.markdown else None) for message in messages]
    return _PAGE.format(
        title=title,
        facts=escape(printable(" · ".join(filter(None, facts)))),
        messages="\n".join(system + sections),
    )


def _message(message: StoredMessage, markdown: "MarkdownIt | None") -> str:
    text = printable(message.text)
    is_laid_out = markdown is not None and message.role == "assistant"
    body = markdown.render(text) if markdown is not None and is_laid_out else _plain(text)
    calls = "".join(
        f"<pre>{escape(printable(call_in_words(call.name, call.arguments)))}\n"
        f"{escape(printable(call.result))}</pre>"
        for call in message.calls
    )
    notes = [_time(message.created), *_notes(message)]
    notes += [
        f"[{source.number}] {source.file}, {source.place}"
        for source in message.sources
        if source.number
    ]
    name = "You" if message.role == "user" else "Assistant"
    return _section(name, message.role, body + calls, notes)


def _section(name: str, kind: str, body: str, notes: Sequence[str]) -> str:
    words = escape(printable(" · ".join(filter(None, notes))))
    note = f'<p class="note">{words}</p>' if words else ""
    return f'<section class="{kind}"><h2>{name}</h2>\n{body}\n{note}</section>'


def _plain(text: str) -> str:
    return f'<div class="text">{escape(printable(text))}</div>'


def _time(seconds: float) -> str:
    return local_time(seconds).isoformat(" ", "minutes")


def _notes(message: StoredMessage) -> list[str]:
    """What is to be known of a message besides its text."""
    status = "" if message.status == "complete" else message.status
    return [note for note in (status, "edited" * message.is_edited, message.changes) if note]


def to_json(chat: StoredChat, messages: Sequence[StoredMessage]) -> dict[str, Any]:
    """A chat as the document described above."""
    return {
        "id": chat.id,
        "title": chat.title,
        "model": chat.model,
        "template": chat.template,
        "system": chat.system,
        "created": chat.created,
        "updated": chat.updated,
        **({"tags": chat.tags} if chat.tags else {}),
        "messages": [
            {
                "role": message.role,
                "content": message.text,
                "status": message.status,
                "created": message.created,
                **({"thoughts": message.thoughts} if message.thoughts else {}),
                **({"sources": list(map(asdict, message.sources))} if message.sources else {}),
                **({"calls": list(map(asdict, message.calls))} if message.calls else {}),
                **({"changes": message.changes} if message.changes else {}),
                **({"original": message.original} if message.is_edited else {}),
            }
            for message in messages
        ],
    }


def to_training_rows(
    chat: StoredChat, messages: Sequence[StoredMessage], *, thinking: bool = False
) -> list[dict[str, Any]]:
    """A chat as rows for fine-tuning: {"messages": [{"role", "content"}, …]}.

    At most one row. Exchanges without a complete reply are left out, because they would
    teach the model to break off, and so are those in which a tool told what the text alone does
    not hold, and those of a model that was changed inside; a chat of nothing else gives no row.
    thinking: with what was thought before each reply.
    """
    exchanges = []
    for message, reply in pairwise(messages):
        is_complete = reply.role == "assistant" and reply.status == "complete"
        is_complete = is_complete and all(call.inside for call in reply.calls)
        is_complete = is_complete and not reply.changes
        if is_complete and reply.text.strip():
            exchanges += [
                {"role": "user", "content": message.text},
                {"role": "assistant", "content": _content(reply, thinking=thinking)},
            ]
    if not exchanges:
        return []
    system = [{"role": "system", "content": chat.system}] if chat.system else []
    return [{"messages": system + exchanges}]


def _call_in_words(call: Call) -> str:
    """A call and its result as a code block, which no content can close."""
    lines = f"{call_in_words(call.name, call.arguments)}\n{call.result}".splitlines()
    return "\n".join(f"    {line}" for line in lines)


def _content(reply: StoredMessage, *, thinking: bool) -> str:
    if not (thinking and reply.thoughts):
        return reply.text
    begin, end = THINKING
    return f"{begin}\n{reply.thoughts.strip()}\n{end}\n\n{reply.text}"
