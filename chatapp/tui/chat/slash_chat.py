"""The actions of the slash commands on the open chat as a whole: its tags, a copy, its times."""

from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.chat.slash_actions import SlashError

NO_TAGS = "none"


async def set_tags(chat: ChatControls, argument: str) -> None:
    chat_id, store = chat.conversation.chat.id, chat.conversation.chat.store
    if chat_id is None:
        raise SlashError("a chat can have tags once it has a message")
    if not argument:
        chat.widgets.inform(f"Tags of this chat: {store.chat(chat_id).tags or 'none'}")
        return
    words = [] if argument == NO_TAGS else argument.replace(",", " ").split()
    tags = " ".join(dict.fromkeys(f"#{word.lstrip('#')}" for word in words if word.strip("#")))
    store.set_tags(chat_id, tags)
    chat.widgets.show_title()
    chat.widgets.inform(f"Tags of this chat: {tags or 'none'}")


async def fork(chat: ChatControls, argument: str) -> None:
    await chat.fork(None)


async def find(chat: ChatControls, argument: str) -> None:
    chat.widgets.find.open(argument)
