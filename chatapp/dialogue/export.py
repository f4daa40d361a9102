"""Chats as Markdown, JSON and fine-tuning rows; `html_export` has them as HTML.

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
can be read back.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from typing import Any

from chatapp.dialogue.store.rows import StoredChat, StoredMessage
from chatapp.dialogue.tools.tool import call_in_words
from chatapp.engine.events import THINKING
from chatapp.prompting.messages import Call

_NAMES = {"user": "User", "assistant": "Assistant"}


def as_text(chat: StoredChat, messages: Sequence[StoredMessage], suffix: str) -> str:
    """A chat as the content of a file with this suffix: .md, .html, .json or .jsonl.

    Raises ValueError for another one, and when there is nothing that could be trained on.
    """
    if suffix == ".md":
        return to_markdown(chat, messages)
    if suffix == ".html":
        from chatapp.dialogue.html_export import to_html

        return to_html(chat, messages)
    if suffix == ".json":
        return json.dumps(to_json(chat, messages), indent=2, ensure_ascii=False) + "\n"
    if suffix != ".jsonl":
        raise ValueError("expected a file name that ends in .md, .html, .json or .jsonl")
    rows = to_training_rows(chat, messages)
    if not rows:
        raise ValueError("there is no complete exchange to train on")
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def to_markdown(chat: StoredChat, messages: Sequence[StoredMessage]) -> str:
    """A chat to read: a title, then each message under the name of who said it."""
    date = datetime.fromtimestamp(chat.created).astimezone().isoformat(" ", "minutes")
    facts = ", ".join(filter(None, (date, f"model {chat.model}", chat.tags)))
    parts = [f"# {chat.title or 'Untitled chat'}", f"*{facts}*"]
    if chat.system:
        parts += ["## System", chat.system]
    for message in messages:
        status = "" if message.status == "complete" else message.status
        notes = ", ".join(filter(None, (status, "edited" * message.is_edited, message.changes)))
        note = f" ({notes})" if notes else ""
        parts += [f"## {_NAMES[message.role]}{note}", message.text]
        parts += [_call_in_words(call) for call in message.calls]
        shown = [source for source in message.sources if source.number]
        parts.append(
            "\n".join(f"{source.number}. {source.file}, {source.place}" for source in shown)
        )
    return "\n\n".join(part for part in parts if part) + "\n"


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
