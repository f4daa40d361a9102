"""White space around replies, drawn tokens, and answers without a store."""

import threading
from itertools import islice

import pytest
from fakes import ScriptedModel
from hypothesis import given
from hypothesis import strategies as st

from chatapp.common.parameters import seeded
from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import Trimmer, answer, complete
from chatapp.dialogue.writers.choosing import ChatWriter
from chatapp.dialogue.writers.prompt import Exchange, MessageTooLong
from chatapp.engine.events import Finished
from chatapp.engine.model import ContextOverflow, Sampling
from chatapp.prompting.template import ALPACA, CHAT, PLAIN

PIECES = st.lists(st.text(st.sampled_from(" \n\tab")), max_size=12)


def trimmed(pieces, *, begun=False):
    """The texts as they become visible."""
    trimmer = Trimmer(begun=begun)
    return [trimmer.push(piece) for piece in pieces]


def text_of(events):
    return "".join(event.text for event in events)


class SpaceBefore(ScriptedModel):
    """A model whose tokenizer puts a token before a text that begins, as SentencePiece does."""

    SPACE = 1_000_000

    def __init__(self):
        super().__init__("")
        encode = self.tokenizer.encode

        def with_space(text, *, begins=True):
            return [self.SPACE] * begins + encode(text)

        self.tokenizer.encode = with_space


@pytest.mark.parametrize("template", [PLAIN, ALPACA, CHAT], ids=lambda each: each.name)
def test_only_the_first_segment_and_those_after_an_end_begin(template):
    writer = ChatWriter(SpaceBefore(), template)
    history = [Exchange("a", "b"), Exchange("c", "d"), Exchange("e")]
    prompt = writer.write("Be brief.", history, max_tokens=4)
    spaces = [place for place, id in enumerate(prompt.ids) if id == SpaceBefore.SPACE]
    ends = [place for place, id in enumerate(prompt.ids) if id == 0]
    assert spaces == [0, *(end + 1 for end in ends)]


# Trimming


@given(PIECES)
def test_trimming_while_streaming_is_trimming_at_the_end(pieces):
    assert "".join(trimmed(pieces)) == "".join(pieces).strip()


@given(PIECES)
def test_a_begun_reply_keeps_the_space_before_its_next_word(pieces):
    assert "".join(trimmed(pieces, begun=True)) == "".join(pieces).rstrip()


def test_words_are_shown_as_soon_as_they_come():
    pieces = [" ", " a", " b", "\n", "\n", " c", "\n"]
    assert trimmed(pieces) == ["", "a", " b", "", "", "\n\n c", ""]


def test_a_seed_is_drawn_once_and_kept():
    sampling = seeded(Sampling(temperature=0.2))
    assert sampling.seed is not None
    assert sampling.temperature == 0.2
    assert seeded(sampling) is sampling
    assert len({seeded(Sampling()).seed for _ in range(20)}) > 1


# Drawn tokens


def test_drawn_tokens_are_used_where_they_spell_the_reply():
    model = ScriptedModel([])
    writer = ChatWriter(model, CHAT)
    exchanges = [Exchange("Q", "good day"), Exchange("R")]
    encoded = writer.write(None, exchanges, max_tokens=9).ids
    drawn = [model.tokenizer.token(piece) for piece in (" go", "od", " d", "ay", "\n", "Us")]
    writer.remember("good day", drawn)
    prompt = writer.write(None, exchanges, max_tokens=9)
    assert model.tokenizer.decode(prompt.ids) == model.tokenizer.decode(encoded) == prompt.text
    start = prompt.ids.index(drawn[0])
    assert list(prompt.ids[start : start + 4]) == drawn[:4]
    assert len(prompt.ids) == len(encoded) + 2


@pytest.mark.parametrize("pieces", [["other"], ["good", " day"], ["  good", " day"], []])
def test_drawn_tokens_that_spell_something_else_are_not_used(pieces):
    """The template puts a space before the reply; the tokens have to hold it."""
    model = ScriptedModel([])
    writer = ChatWriter(model, CHAT)
    exchanges = [Exchange("Q", "good day"), Exchange("R")]
    before = writer.write(None, exchanges, max_tokens=9)
    writer.remember("good day", [model.tokenizer.token(piece) for piece in pieces])
    assert writer.write(None, exchanges, max_tokens=9) == before


# Without a store


def test_ask_is_the_first_turn_of_a_chat():
    for template in (PLAIN, ALPACA, CHAT):
        model = ScriptedModel([f"{template.wording.lead}Fine. \n"])
        sampling = Sampling(seed=3)
        events = list(answer(model, template, " How are you? ", Options(sampling)))
        assert text_of(events) == "Fine."
        assert model.prompts == [
            ChatWriter(model, template).write(None, [Exchange("How are you?")], max_tokens=9).text
        ]
        assert model.samplings == [sampling]
        assert model.stops == [template.stop]


def test_ask_takes_instructions():
    model = ScriptedModel([" Yes."])
    list(answer(model, PLAIN, "Hi", Options(Sampling(), system="Be brief.")))
    list(answer(model, PLAIN, "Hi", Options(Sampling(), system="")))
    assert model.prompts == ["Be brief.\n\nUser: Hi\nAssistant:", "User: Hi\nAssistant:"]


def test_ask_refuses_what_cannot_be_answered():
    model = ScriptedModel(["x"], context=50)
    with pytest.raises(ValueError, match="the question is empty"):
        list(answer(model, CHAT, " \n", Options(Sampling())))
    with pytest.raises(MessageTooLong, match="60 tokens long; at most 46 fit"):
        list(answer(model, CHAT, "word " * 60, Options(Sampling())))
    assert model.prompts == []


def test_ask_can_be_cancelled():
    cancel = threading.Event()
    options = Options(Sampling(), cancel)
    _, first = islice(
        events := answer(ScriptedModel([" one two three"]), CHAT, "Count", options), 2
    )
    cancel.set()
    rest = list(events)
    assert first.text == "one"
    assert isinstance(rest[-1], Finished)
    assert rest[-1].reason == "cancelled"


def test_complete_goes_on_with_the_text_as_it_stands():
    model = ScriptedModel([" scientists found\n"])
    events = list(complete(model, "In a shocking finding,  ", Options(Sampling())))
    assert text_of(events) == " scientists found\n"
    assert model.prompts == ["In a shocking finding,"]
    assert model.stops == [()]


def test_complete_refuses_what_cannot_be_continued():
    model = ScriptedModel(["x"], context=50)
    with pytest.raises(ValueError, match="the text to continue is empty"):
        list(complete(model, "  ", Options(Sampling())))
    with pytest.raises(ContextOverflow, match="the text is 60 tokens long; at most 49 fit"):
        list(complete(model, "word" + " word" * 59, Options(Sampling())))
