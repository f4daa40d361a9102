"""Chats to tokens: exact masks, the chat's own tokens, and responses that are never cut."""

import numpy as np
import pytest
from fakes import WordTokenizer
from hypothesis import given
from hypothesis import strategies as st

from chatapp.engine.tokenizers import BPETokenizer
from chatapp.prompting.messages import Message, Segment, text_of
from chatapp.prompting.template import ALPACA, CHAT, PLAIN, TEMPLATES
from finetune.data.corpus import train_tokenizer
from finetune.data.encoding import ExampleEncoder, ExampleTooLong, Span
from finetune.data.formats import TrainingExample, chat_example

BPE = BPETokenizer(
    train_tokenizer([[Segment("user", "the cat sat on the mat. User: Assistant:\n" * 5)]], 300), 0
)


def chat(*texts, system=""):
    """Texts in turn, the user's first."""
    messages = [Message("system", system)] if system else []
    for index, text in enumerate(texts):
        messages.append(Message("assistant" if index % 2 else "user", text))
    return chat_example("rows.jsonl, line 1", messages)


def encode(example, template=CHAT, length=1000, too_long="raise"):
    tokenizer = WordTokenizer()
    (encoded,) = ExampleEncoder(template, tokenizer, length, too_long).encode(example)
    return encoded, tokenizer


def masked(encoded, tokenizer):
    """The tokens run by run: template as it is, «prompt», [response]."""
    quotes = {Span.TEMPLATE: ("", ""), Span.PROMPT: ("«", "»"), Span.RESPONSE: ("[", "]")}
    text, previous = "", None
    for id, span in zip(encoded.ids.tolist(), encoded.spans.tolist(), strict=True):
        if span != previous:
            text += (quotes[Span(previous)][1] if previous is not None else "") + quotes[span][0]
        text += tokenizer.piece(id)
        previous = span
    return text + quotes[Span(previous)][1]


def test_every_reply_of_a_chat_is_response_with_its_end():
    example = chat("Hello there", "Hi !", "And now?", "Bye .", system="Be brief.")
    assert masked(*encode(example)) == (
        "«Be brief.»\nUser:« Hello there»\nAssistant:[ Hi !<|endoftext|>]\n"
        "User:« And now?»\nAssistant:[ Bye .<|endoftext|>]"
    )


def test_the_instruction_of_the_template_is_template():
    assert masked(*encode(chat("Add 1 and 2.", "3"), ALPACA)) == (
        f"{ALPACA.instruction}\n\n### Instruction:«\nAdd 1 and 2.»\n\n"
        "### Response:[\n3<|endoftext|>]"
    )


def test_without_an_end_of_reply_the_last_reply_still_ends():
    assert masked(*encode(chat("a", "b", "c", "d"), PLAIN)) == (
        f"{PLAIN.instruction}\n\nUser:« a»\nAssistant:[ b]\nUser:« c»\nAssistant:[ d<|endoftext|>]"
    )


def test_a_plain_text_is_all_response():
    encoded, tokenizer = encode(TrainingExample("a.txt", "0" * 16, text="Once upon a time."))
    assert masked(encoded, tokenizer) == "[Once upon a time.<|endoftext|>]"


FEW_SHOT = ("2 + 2 =", " 4\n", "1 + 2 =", " 3")


def test_a_few_shot_prompt_is_learnt_in_its_answers():
    encoded, tokenizer = encode(TrainingExample("a.jsonl", "0" * 16, parts=FEW_SHOT))
    assert masked(encoded, tokenizer) == "«2 + 2 =»[ 4\n]«1 + 2 =»[ 3<|endoftext|>]"
    (encoded,) = ExampleEncoder(CHAT, BPE, 1000).encode(
        TrainingExample("a.jsonl", "0" * 16, parts=FEW_SHOT)
    )
    assert encoded.ids.tolist() == [*BPE.encode("".join(FEW_SHOT)), BPE.end_id]


@pytest.mark.parametrize("policy", ["raise", "truncate-history"])
def test_a_few_shot_prompt_that_does_not_fit_is_refused(policy):
    example = TrainingExample("a.jsonl, line 1", "0" * 16, parts=FEW_SHOT)
    with pytest.raises(ExampleTooLong, match=r"line 1: .* a row may have 8"):
        encode(example, length=8, too_long=policy)


def test_arrays_and_key():
    example = chat("a", "b")
    encoded, _ = encode(example)
    assert (encoded.ids.dtype, encoded.spans.dtype) == (np.int32, np.uint8)
    assert encoded.key == example.key


TURN = st.text(min_size=1, max_size=30).filter(str.strip)
CHATS = st.builds(
    lambda turns, system: chat(*(t for pair in turns for t in pair), system=system),
    st.lists(st.tuples(TURN, TURN), min_size=1, max_size=4),
    st.just("") | TURN,
)


@given(CHATS, st.sampled_from(sorted(TEMPLATES)))
def test_pieces_are_the_ids_and_the_prompt_is_a_prefix(example, name):
    template = TEMPLATES[name]
    encoder = ExampleEncoder(template, BPE, 10_000)
    (encoded,) = encoder.encode(example)
    (pieces,) = encoder.chats.encode(example.messages)
    assert [id for piece in pieces for id in piece.ids] == encoded.ids.tolist()
    assert [int(piece.span) for piece in pieces for _ in piece.ids] == encoded.spans.tolist()
    # The text is that of the rendered chat, up to the end of its last reply.
    rendered = text_of(s for s in template.render(example.messages) if s.kind != "end")
    assert rendered.startswith(BPE.decode(encoded.ids.tolist()))
    # Before each reply stands what a chat would prompt with.
    for turn in range(len(example.messages)):
        if example.messages[turn].role != "assistant":
            continue
        prompt = template.render(example.messages[:turn])
        prompt_ids = [id for s in prompt for id in ([0] if s.kind == "end" else BPE.encode(s.text))]
        assert encoded.ids[: len(prompt_ids)].tolist() == prompt_ids
        assert encoded.spans[len(prompt_ids) - 1] == Span.TEMPLATE
        assert encoded.spans[len(prompt_ids)] == Span.RESPONSE
    assert encoded.spans[-1] == Span.RESPONSE
    assert encoded.ids[-1] == BPE.end_id


@given(CHATS, st.sampled_from(sorted(TEMPLATES)))
def test_the_spans_hold_the_texts(example, name):
    (encoded,) = ExampleEncoder(TEMPLATES[name], BPE, 10_000).encode(example)
    lead = TEMPLATES[name].wording.lead
    replies = "".join(lead + m.text.strip() for m in example.messages if m.role == "assistant")
    users = "".join(
        (lead if m.role == "user" else "") + m.text.strip()
        for m in example.messages
        if m.role != "assistant"
    )
    assert BPE.decode(encoded.ids[encoded.spans == Span.RESPONSE].tolist()) == replies
    assert BPE.decode(encoded.ids[encoded.spans == Span.PROMPT].tolist()) == users


@given(st.text(max_size=20))
def test_text_never_becomes_a_special_token(text):
    example = chat("a <|endoftext|>" + text, "b<|endoftext|>c")
    (encoded,) = ExampleEncoder(CHAT, BPE, 10_000).encode(example)
    assert encoded.ids.tolist().count(BPE.end_id) == 1


# --- examples that do not fit ----------------------------------------------------------------


def test_the_middle_of_the_longest_prompt_is_cut():
    words = [f"w{n}" for n in range(40)]
    example = chat("short one", "r1", " ".join(words), "r2 r3", system="Be brief.")
    encoded, tokenizer = encode(example, CHAT, 36, "truncate-prompt")
    assert len(encoded.ids) == 36
    whole = len(encode(example)[0].ids)
    kept = 40 - (whole - 36)
    first, last = words[: kept - kept // 2], words[40 - kept // 2 :]
    assert masked(encoded, tokenizer) == (
        "«Be brief.»\nUser:« short one»\nAssistant:[ r1<|endoftext|>]\n"
        f"User:« {' '.join([*first, *last])}»\nAssistant:[ r2 r3<|endoftext|>]"
    )


@pytest.mark.parametrize("pairs", [1, 3])
def test_the_first_part_of_a_few_shot_prompt_can_be_cut_too(pairs):
    words = " ".join(f"w{n}" for n in range(40))
    parts = (words, " r1", *("short =", " r2") * (pairs - 1))
    example = TrainingExample("a.jsonl, line 1", "0" * 16, parts=parts)
    whole = len(encode(example)[0].ids)
    encoded, tokenizer = encode(example, length=whole - 20, too_long="truncate-prompt")
    assert len(encoded.ids) == whole - 20
    first = [f"w{n}" for n in range(10)] + [f"w{n}" for n in range(30, 40)]
    rest = "«short =»[ r2]" * (pairs - 2) + "«short =»[ r2<|endoftext|>]" * (pairs > 1)
    end = "" if pairs > 1 else "<|endoftext|>"
    assert masked(encoded, tokenizer) == f"«{' '.join(first)}»[ r1{end}]{rest}"


def test_a_prompt_is_not_cut_to_nothing():
    encoder = ExampleEncoder(CHAT, WordTokenizer(), 20, "truncate-prompt")
    with pytest.raises(ExampleTooLong, match="31 of response"):
        encoder.encode(chat(" ".join("p" * 40), " ".join("r" * 30)))
    assert not encoder.truncated


def test_the_oldest_turns_are_left_out():
    example = chat("q1", "r1", "q2", "r2", "q3", "r3", system="Be brief.")
    encoded, tokenizer = encode(example, CHAT, 18, "truncate-history")
    assert masked(encoded, tokenizer) == (
        "«Be brief.»\nUser:« q2»\nAssistant:[ r2<|endoftext|>]\n"
        "User:« q3»\nAssistant:[ r3<|endoftext|>]"
    )
    encoder = ExampleEncoder(CHAT, WordTokenizer(), 18, "truncate-history")
    encoder.encode(example)
    encoder.encode(chat("q", "r"))
    assert encoder.truncated == {"history": 1}
    assert encoder.turns_left_out == 2
    with pytest.raises(ExampleTooLong):
        ExampleEncoder(CHAT, WordTokenizer(), 6, "truncate-history").encode(example)


@given(CHATS, st.integers(8, 90), st.sampled_from(["truncate-prompt", "truncate-history"]))
def test_truncation_never_touches_a_response(example, length, too_long):
    (whole,) = ExampleEncoder(CHAT, BPE, 10_000).encode(example)
    encoder = ExampleEncoder(CHAT, BPE, length, too_long)
    try:
        (encoded,) = encoder.encode(example)
    except ExampleTooLong:
        assert len(whole.ids) > length
        return
    assert len(encoded.ids) <= length
    if len(whole.ids) <= length:
        assert encoded.ids.tolist() == whole.ids.tolist()
        assert not encoder.truncated
    replies = encoded.ids[encoded.spans == Span.RESPONSE].tolist()
    all_replies = whole.ids[whole.spans == Span.RESPONSE].tolist()
    if too_long == "truncate-prompt":
        assert replies == all_replies
        template = encoded.ids[encoded.spans == Span.TEMPLATE].tolist()
        assert template == whole.ids[whole.spans == Span.TEMPLATE].tolist()
        # No more is cut than one token a text beyond what is needed.
        if encoder.truncated:
            assert len(encoded.ids) > length - len(example.messages)
    else:
        assert replies == all_replies[len(all_replies) - len(replies) :]
        assert replies.count(BPE.end_id) * 2 + encoder.turns_left_out == sum(
            message.role != "system" for message in example.messages
        )


@given(st.text(min_size=1, max_size=200).filter(str.strip), st.integers(8, 60))
def test_a_long_text_becomes_windows_without_loss(text, length):
    encoder = ExampleEncoder(CHAT, BPE, length)
    windows = encoder.encode(TrainingExample("a.txt", "0" * 16, text=text))
    joined = np.concatenate([window.ids for window in windows]).tolist()
    assert joined == [*BPE.encode(text), BPE.end_id]
    assert all(2 <= len(window.ids) <= length for window in windows)
    assert all((window.spans == Span.RESPONSE).all() for window in windows)
    assert len({window.key for window in windows}) == len(windows)
    assert encoder.truncated == ({"windows": 1} if len(windows) > 1 else {})
