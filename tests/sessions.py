"""A session for tests that vary what its chat is held with."""

from collections.abc import Sequence

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Basis
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.tasks.files.documents import DocumentSet


def session_with(
    store: Store,
    model: LanguageModel,
    template: ChatTemplate | None = None,
    *,
    chat_id: int | None = None,
    system: str | None = None,
    prompt: str = "",
    asked_template: str = "",
    documents: DocumentSet | None = None,
    tools: Sequence[str] = (),
    sampling: Sampling | None = None,
) -> Session:
    """A session with the chat `chat_id`, or with a new one."""
    basis = Basis(system, prompt, asked_template)
    chat = Chat(store, chat_id, basis=basis, documents=documents, tools=tools)
    return Session(chat, model, template=template, sampling=sampling)
