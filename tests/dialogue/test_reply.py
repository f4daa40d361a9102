"""The events of a reply, also of one that is given and not generated."""

from fakes import ScriptedModel, WordTokenizer

from chatapp.dialogue.reply import reply_events
from chatapp.dialogue.writers.prompt import Prompt
from chatapp.engine.events import Finished
from chatapp.engine.model import Request, Sampling, TextStream


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
    prompt = Prompt((), tuple(model.tokenizer.encode("Count")), 0)
    request = Request(prompt.ids, Sampling(), forced=begin)
    *tokens, end = reply_events(model, prompt, request)
    assert [token.text for token in tokens] == ["", " one"]
    assert isinstance(end, Finished)
    assert (end.text, end.reason, end.reply_tokens) == (" two", "stop", 2)
