"""Files named with @ in the prompt: their list, their sizes, and their contents in the message.

Invariant: a file is in a message only if its name was shown before; none, and no folder, is read on
the event loop or waited for when the program quits.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError
from chatapp.tui.widgets.prompt import Completion

if TYPE_CHECKING:
    from pathlib import Path

    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.conversation.conversation import Conversation

_T = TypeVar("_T")

_PATIENCE = 10.0
"""Seconds until files that cannot be read are given up."""
_LONGEST = 100_000
"""Characters of a prompt in which names are looked for at each key."""


class Attachments:
    """The files of the message in the prompt."""

    def __init__(self, conversation: "Conversation", widgets: "ChatWidgets") -> None:
        self._conversation = conversation
        self._widgets = widgets
        self._names: list[str] = []
        self._is_listed = False
        self._shown: str | None = None
        self._seen: frozenset[Path] = frozenset()

    def complete(self, text: str) -> list[str]:
        """The text with each file that the name at its end may be."""
        if "@" not in text[-202:]:
            return []
        from chatapp.dialogue.documents.attachments import begun_name, find_fuzzily, named

        if (begun := begun_name(text)) is None:
            self._is_listed = False  # the next name sees what is there then
            return []
        if not self._is_listed:
            self._is_listed = True
            self._widgets.prompt.run_worker(self._list())
        place, letters = begun
        return [f"{text[:place]}{named(name)} " for name in find_fuzzily(letters, self._names)]

    @staticmethod
    def described(text: str, completions: Sequence[str]) -> list[Completion]:
        """The names of the files alone."""
        from chatapp.dialogue.documents.attachments import begun_name

        begun = begun_name(text)
        start = 0 if begun is None else begun[0]
        return [Completion(completion[start:]) for completion in completions]

    async def _list(self) -> None:
        from chatapp.dialogue.documents.attachments import list_here

        try:
            self._names = await self._on_thread(list_here)
        except UserError as error:
            self._widgets.inform(str(error))
        self._widgets.prompt.suggest_again()

    def show(self, text: str) -> None:
        """Show the files that a text names, with their sizes in tokens."""
        text = text if "@" in text and len(text) <= _LONGEST else ""
        if text != self._shown:
            self._shown = text
            self._widgets.prompt.run_worker(self._show(text), exclusive=True, group="attached")

    async def _show(self, text: str) -> None:
        from chatapp.dialogue.documents.attachments import files_in

        sizes: dict[Path, str] = {}
        if text:
            sizes = await self._on_thread(lambda: {p: self._size(p) for p in files_in(text)})
        if text == self._shown:
            if text:  # a message that is sent empties the prompt first
                self._seen = frozenset(sizes)
            self._widgets.attached.update(printable("\n".join(sizes.values())))
            self._widgets.attached.display = bool(sizes)

    def _size(self, path: "Path") -> str:
        from chatapp.dialogue.documents.attachments import read_attachment

        session = self._conversation.session
        try:
            content = read_attachment(path)
        except UserError as error:
            return f"attached  {error}"
        if session is None:
            return f"attached  {path} · {len(content):,} characters"
        return f"attached  {path} · {len(session.model.tokenizer.encode(content)):,} tokens"

    def recognize(self, pasted: str) -> None:
        """Name a file whose path has been pasted as its last text."""
        if len(pasted) < 4096 and pasted.strip().strip("'\"").startswith(("/", "~", ".", "file:")):
            self._widgets.prompt.run_worker(self._recognize(pasted))

    async def _recognize(self, pasted: str) -> None:
        from chatapp.dialogue.documents.attachments import pasted_path

        named = await self._on_thread(lambda: pasted_path(pasted))
        if named:
            self._widgets.prompt.replace_last(pasted, f"{named} ")

    async def contents(self, text: str) -> str:
        """The contents of a message's files, to follow its text.

        Raises UserError, also when they were not shown yet.
        """
        if "@" not in text or len(text) > _LONGEST:
            return ""
        from chatapp.dialogue.documents.attachments import files_in, read_all

        def read() -> str:
            if unseen := [str(path) for path in files_in(text) if path not in self._seen]:
                raise UserError(f"Enter again attaches {', '.join(unseen)}")
            return read_all(text)

        with suppress(TimeoutError):
            return await asyncio.wait_for(self._on_thread(read), _PATIENCE)
        raise UserError(f"the files of the message cannot be read within {_PATIENCE:.0f} seconds")

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        future = Future[_T]()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self._conversation.start_thread(run)
        return await asyncio.wrap_future(future)
