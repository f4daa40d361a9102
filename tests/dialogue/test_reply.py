"""The events of a reply, also of one that is given and not generated."""

from fakes import ScriptedModel, WordTokenizer

from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import turn
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Finished
from chatapp.engine.model import Sampling, TextStream
from chatapp.prompting.template import PLAIN


class HoldingTokenizer(WordTokenizer):
    """Its last piece could be the beginning of a character, and is held back."""

    def stream(self) -> TextStream:
        return HoldingStream(self)


class HoldingStream:
    def __init__(self, tokenizer: WordTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = ""

    def push(self, id: int) -> str:
        complete, self._held = self._held, self._tokenizer.piece(id)
        return complete

    def flush(self) -> str:
        return self._held


def test_what_the_last_of_the_given_tokens_held_back_comes_with_the_end() -> None:
    model = ScriptedModel([])
    model.tokenizer = HoldingTokenizer()
    begin = [*model.tokenizer.encode(" one two"), model.tokenizer.end_id]
    writer, options = writer_for(model, PLAIN), Options(Sampling(), forced=begin)
    _, *tokens, end = turn(model, writer, [Exchange("Count")], options)
    assert [token.text for token in tokens] == ["", "one"]
    assert isinstance(end, Finished)
    assert (end.text, end.reason, end.reply_tokens) == (" two", "stop", 2)
