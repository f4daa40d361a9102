"""Personas and prompt files for a chat, with search and preview."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from chatapp.common.foreign import printable
from chatapp.common.userfiles import is_file
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import Basis
from chatapp.rows.reading import RowsError
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.platform.actions import Action
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.widgets.dialog import Dialog, Field, MarkedOptions
from chatapp.tui.widgets.rendered import colored, legend, one_line, shot_lines

if TYPE_CHECKING:
    from chatapp.dialogue.session import Session
    from chatapp.dialogue.variants import Preview
    from chatapp.tasks.files.promptfile import Persona, PromptFile

NONE = "none"
_HINT = "↑ ↓ choose · PgUp PgDn preview · Enter uses it · Esc closes"


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """A basis for the chat. name: the entry that was chosen; `none` is nothing."""

    name: str
    basis: Basis


@dataclass(frozen=True, slots=True)
class _Item:
    """A file of the library. problem: why it cannot be used; "" when it can."""

    name: str
    words: str
    problem: str = ""
    in_use: bool = False


def choice_of(name: str) -> PromptChoice:
    """The basis for a chat by this name. Raises RowsError when the file cannot be used."""
    from chatapp.dialogue.variants import basis_of
    from chatapp.tasks.files.library import name_of

    if name == NONE:
        return PromptChoice(name, Basis())
    whole = name_of(name)
    return PromptChoice(name, basis_of(whole, _load(whole)))


def persona_of(system: str | None) -> str:
    """The name of the persona with these instructions; "" when there is none."""
    from chatapp.tasks.files.library import personas
    from chatapp.tasks.files.promptfile import Persona, load_for_chat

    if system is None:
        return ""
    with suppress(RowsError):  # the list of prompts reports the faults of a file
        for name, path in personas().items():
            persona = load_for_chat(path)
            if isinstance(persona, Persona) and persona.system == system:
                return name
    return ""


def _load(name: str) -> "PromptFile | Persona | None":
    from chatapp.tasks.files.library import find
    from chatapp.tasks.files.promptfile import load_for_chat

    return None if name == NONE else load_for_chat(find(name))


def _rows(basis: Basis) -> list[_Item]:
    """All entries. Raises RowsError when a folder cannot be read."""
    from chatapp.tasks.files.library import for_chats, personas
    from chatapp.tasks.files.promptfile import Persona, describe, load_for_chat

    rows = [_Item(NONE, "no persona and no prompt file", in_use=basis == Basis())]
    own = personas()
    for name, path in for_chats().items():
        try:
            if own.get(name) == path:
                persona = load_for_chat(path)
                in_use = isinstance(persona, Persona) and basis.system == persona.system
                rows.append(_Item(name, persona.description, in_use=in_use and not basis.prompt))
            else:
                rows.append(_Item(name, describe(path), in_use=name == basis.prompt))
        except RowsError as error:
            rows.append(_Item(name, "cannot be used", str(error)))
    if basis.prompt and basis.prompt not in {row.name for row in rows}:
        rows.insert(1, _Item(basis.prompt, "", in_use=True))
    return rows


class LibraryScreen(Dialog[PromptChoice | None]):
    """Returns a basis for the chat, or None.

    draft: the message for previews; "" is one of the file's own inputs.
    """

    BINDING_GROUP_TITLE = "Personas and prompt files"
    ALSO = (Action("Close", "f5", call="dismiss", name="prompts"),)

    @dataclass
    class _Previewed(Message):
        """The result of a request for a preview, or the reason of its failure."""

        number: int
        preview: "Preview | None"
        problem: str = ""

    def __init__(self, conversation: Conversation, draft: str) -> None:
        super().__init__()
        self._conversation = conversation
        self._draft = draft
        self._all: list[_Item] = []
        self._shown: list[_Item] = []
        self._number = 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Personas and prompt files", classes="title")
            yield Field(placeholder="Filter, or a prompt file's path", compact=True)
            with Container(id="shelf"):
                choices = MarkedOptions()
                choices.can_focus = False  # the field keeps the focus; the list follows it
                yield choices
                with VerticalScroll(can_focus=False):
                    yield Static(id="preview-about", markup=False)
                    yield Static(id="preview-text", markup=False)
            yield Static(_HINT, classes="hint")

    def on_mount(self) -> None:
        self._list = self.query_one(MarkedOptions)
        self._look_for_files()

    @work
    async def _look_for_files(self) -> None:
        try:
            self._all = await asyncio.to_thread(_rows, self._conversation.chat.basis)
        except (RowsError, StoreError) as error:
            self._show_preview(None, str(error))
            return
        used = [index for index, row in enumerate(self._all) if row.in_use]
        self._show_rows(used[0] if used else 0)

    @on(Input.Changed)
    def _filter_changed(self) -> None:
        if self._all:
            self._show_rows(0)

    def _show_rows(self, highlighted: int) -> None:
        """List the entries that match the field, or the file whose path it contains."""
        typed = self._typed
        words = typed.casefold().split()
        matching = [
            row
            for row in self._all
            if all(word in printable(f"{row.name} {row.words}").casefold() for word in words)
        ]
        self._list_rows(matching, highlighted)
        self._look_for_path(typed if typed and not matching else "")

    @property
    def _typed(self) -> str:
        return self.query_one(Field).value.strip()

    def _list_rows(self, rows: list[_Item], highlighted: int) -> None:
        self._shown = rows
        self._list.show([(row.name, self._entry(row)) for row in rows], highlighted)

    @work(exclusive=True, group="path")
    async def _look_for_path(self, path: str) -> None:
        """List the file with this path; "" is none."""
        if not path:
            return
        if await asyncio.to_thread(is_file, path):  # the disk may not answer
            self._list_rows([_Item(path, "")], 0)
        else:
            self._number += 1
            self._show_preview(None, "Nothing matches, and there is no such file.")

    def _entry(self, row: _Item) -> Content:
        return Content.assemble(
            ("● " if row.in_use else "  ", "$text-accent"),
            (one_line(row.name), "bold"),
            (f"  {one_line(row.words)}", "$text-error" if row.problem else "dim"),
        )

    # The preview

    @on(OptionList.OptionHighlighted)
    def _preview_highlighted(self) -> None:
        index = self._list.highlighted  # which may be another one by now
        if index is None:
            return
        row = self._shown[index]
        self._number += 1
        number, draft = self._number, self._draft
        self._show_preview(None, row.problem)
        if row.problem:
            return

        def compute(session: "Session") -> None:
            from chatapp.dialogue.variants import preview

            if number != self._number:
                return
            try:
                shown = preview(session, row.name, _load(row.name), draft)
            except BaseException as error:
                # The errors of a file, an encoder or a model are shown to the user.
                self.post_message(self._Previewed(number, None, in_words(error)))
            else:
                self.post_message(self._Previewed(number, shown))

        if self._conversation.in_background(compute, "the preview of a prompt file"):
            # It takes a while when examples have to be encoded.
            self.query_one("#preview-about", Static).update(Content.styled("Looking …", "dim"))
        else:
            self._show_preview(None, "The preview needs the model, which is not loaded yet.")

    @on(_Previewed)
    def _previewed(self, event: _Previewed) -> None:
        event.stop()
        if event.number == self._number:
            self._show_preview(event.preview, event.problem)

    def _show_preview(self, shown: "Preview | None", problem: str = "") -> None:
        about, text = self.query_one("#preview-about", Static), self.query_one("#preview-text")
        assert isinstance(text, Static)
        text.display = shown is not None
        if shown is None:
            about.update(Content.styled(printable(problem), "$text-error"))
        else:
            prompt = shown.prompt
            lines = [Content(shown.about)]
            if shown.generate:
                values = ", ".join(f"{name} {value}" for name, value in shown.generate.items())
                lines.append(Content.styled(f"Sampling settings of the file: {values}.", "dim"))
            message = f"{len(prompt.ids):,} tokens for the message: {one_line(shown.message)}"
            lines += [Content.styled(message, "dim"), Content("")]
            if shots := list(shot_lines(prompt.shots, prompt.dropped_shots)):
                lines += [*shots, Content("")]
            lines += [legend(prompt.segments), Content("")]
            about.update(Content("\n").join(lines))
            text.update(colored(prompt.segments))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    # Keys

    @Action("Next prompt file or persona", "down", call="cursor(1)", name="next")
    @Action("Previous prompt file or persona", "up", call="cursor(-1)", name="previous")
    def action_cursor(self, step: int) -> None:
        if step > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    @Action("Scroll the preview down", "pagedown", call="scroll(1)", name="scroll_page_down")
    @Action("Scroll the preview up", "pageup", call="scroll(-1)", name="scroll_page_up")
    def action_scroll(self, step: int) -> None:
        preview = self.query_one(VerticalScroll)
        scroll = preview.scroll_page_up if step < 0 else preview.scroll_page_down
        scroll(animate=False)

    @Action("Use it in this chat", "enter")
    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def action_choose(self) -> None:
        index = self._list.highlighted
        if index is not None and not self._shown[index].problem:
            self._choose(self._shown[index].name)
        elif not self._shown and self._typed:
            self._choose(self._typed)  # the path of a file that is still looked for

    @work(exclusive=True)
    async def _choose(self, name: str) -> None:
        number = self._number
        try:
            choice = await asyncio.to_thread(choice_of, name)
        except RowsError as error:
            if number == self._number:
                self._show_preview(None, str(error))
        else:
            self.dismiss(choice)
