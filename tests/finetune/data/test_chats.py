"""Chats in a model's own template: which tokens are learnt, and in which text."""

import os
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from fakes import WordTokenizer
from tiny_finetune import CHATML
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chatapp.engine.tokenizers import TransformersTokenizer
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.messages import Message
from chatapp.prompting.template import CHAT
from chatapp.rows.reading import BadRow, Row
from finetune.data.encoding import ChatEncoder, ExampleEncoder, ExampleTooLong, Span
from finetune.data.formats import chat_example, detect

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<turn>", "[INST]", "[/INST]")
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

# The last reply thinks, earlier ones have forgotten what they thought.
FORGETFUL = """\
{%- for m in messages %}
    {{- '<turn>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and loop.last %}{{ '(hm)\\n' }}{% endif %}
    {{- m.content + '</s>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>assistant\\n' }}{% endif %}"""

# The prompt opens a thought, which the chat with its reply has not.
OPENING = """\
{%- for m in messages %}
    {{- ('[/INST]' if m.role == 'assistant' else '[INST]') + m.content }}
    {%- if m.role == 'assistant' %}{{ '</s>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[/INST](thinks' }}{% endif %}"""

# What ends a reply stands before the next turn alone.
UNENDED = """\
{%- for m in messages %}
    {{- ('<turn>' if m.role == 'user' else ' says ') + m.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ ' says' }}{% endif %}"""

# No special token at all.
PLAIN = """\
{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""

ALTERNATING = """\
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
SILENT = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
STRICT = "{{ bos_token }}{% if messages|length > 2 %}{{ raise_exception('no') }}{% endif %}"
STRICT += CHATML


def chat(*texts, system=""):
    """Texts in turn, the user's first."""
    messages = [Message("system", system)] if system else []
    for index, text in enumerate(texts):
        messages.append(Message("assistant" if index % 2 else "user", text))
    return messages


def opened(source, special=SPECIAL):
    return ChatTemplate(source, "a.jinja", tuple(special), VARIABLES)


def encoder(source, **options):
    return ChatEncoder(opened(source), WordTokenizer(SPECIAL), **options)


@pytest.fixture(scope="module")
def fast():
    """transformers' tokenizer with a token for each byte."""
    bytewise = Tokenizer(models.BPE({byte: id for id, byte in enumerate(BYTES)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytewise, additional_special_tokens=list(SPECIAL), **VARIABLES
    )


def shown(pieces, tokenizer):
    """The template as it is, «prompt», [response]; a special token in capitals."""
    names = set(tokenizer.special.values())
    text = ""
    for span, run in groupby(pieces, key=lambda piece: piece.span):
        ids = [id for piece in run for id in piece.ids]
        words = "".join(
            tokenizer.piece(id).upper() if id in names else tokenizer.piece(id) for id in ids
        )
        text += {Span.TEMPLATE: words, Span.PROMPT: f"«{words}»", Span.RESPONSE: f"[{words}]"}[span]
    return text


def taught(source, messages):
    encodes = encoder(source)
    assert isinstance(encodes.tokenizer, WordTokenizer)
    return [shown(pieces, encodes.tokenizer) for pieces in encodes.encode(messages)]


def test_replies_are_learnt_with_their_end_of_turn():
    assert taught(CHATML, chat("Hello", "Hi !", "So ?", "Bye .", system="Be brief.")) == [
        "<|IM_START|>system\n«Be brief.»<|IM_END|>\n"
        "<|IM_START|>user\n«Hello»<|IM_END|>\n<|IM_START|>assistant\n[Hi !<|IM_END|>\n]"
        "<|IM_START|>user\n«So ?»<|IM_END|>\n<|IM_START|>assistant\n[Bye .<|IM_END|>\n]"
    ]


def test_instructions_of_the_template_are_template():
    (text,) = taught(CHATML, chat("Hello", "Hi"))
    assert text.startswith("<|IM_START|>system\nBe good.<|IM_END|>\n<|IM_START|>user\n«Hello»")


def test_what_a_user_types_is_no_special_token():
    (text,) = taught(CHATML, chat("<|im_end|>\n<|im_start|>", "<|im_end|>"))
    assert "user\n«<|im_end|>\n<|im_start|>»<|IM_END|>" in text
    assert text.endswith("assistant\n[<|im_end|><|IM_END|>\n]")


def test_a_reply_is_learnt_in_the_text_it_is_generated_in():
    """Turns that are written differently later are examples of their own."""
    assert taught(FORGETFUL, chat("Hello", "Hi", "So", "Bye")) == [
        "<TURN>user\n«Hello»</S><TURN>assistant\n[(hm)\nHi</S>]",
        "<TURN>user\n«Hello»</S><TURN>assistant\n«Hi»</S><TURN>user\n«So»</S>"
        "<TURN>assistant\n[(hm)\nBye</S>]",
    ]


def test_a_prompt_that_the_whole_chat_has_not_is_still_the_prompt():
    assert taught(OPENING, chat("Hello", " Hi")) == ["[INST]«Hello»[/INST](thinks[ Hi</S>]"]


def test_a_reply_that_nothing_ends_is_ended_by_what_chats_stop_at():
    assert opened(UNENDED).stop == ("<turn>",)
    assert taught(UNENDED, chat("Hello", "Hi", "So", "Bye")) == [
        "<TURN>«Hello» says[ Hi<TURN>]«So» says[ Bye<TURN>]"
    ]
    assert taught(PLAIN, chat("Hello", "Hi")) == ["user: «Hello»\nassistant: [Hi\n<|ENDOFTEXT|>]"]


def test_what_the_model_puts_first_is_left_out():
    (with_start,) = encoder(STRICT, start=[1]).encode(chat("Hello", "Hi"))
    (without,) = encoder(STRICT).encode(chat("Hello", "Hi"))
    assert without[0].ids == [1]
    assert with_start == without[1:]


@pytest.mark.parametrize(
    ("source", "words"), [(STRICT, "refuses this chat: no"), (SILENT, "leaves a message out")]
)
def test_a_refused_chat_is_a_bad_row(source, words):
    messages = chat("Hello", "Hi", "So", "Bye")
    with pytest.raises(ChatTemplateError, match=words):
        encoder(source).encode(messages)
    rows = ExampleEncoder(opened(source), WordTokenizer(SPECIAL), 100)
    with pytest.raises(BadRow, match=rf"a\.json, row 3: a\.jinja: .*{words}") as caught:
        rows.encode(chat_example("a.json, row 3", messages))
    assert caught.value.reason == "refused by the chat template"


def test_the_examples_of_a_chat_stay_together():
    rows = ExampleEncoder(opened(FORGETFUL), WordTokenizer(SPECIAL), 100)
    example = chat_example("a.json, row 1", chat("Hello", "Hi", "So", "Bye"))
    encoded = rows.encode(example)
    assert [each.key for each in encoded] == [example.key] * 2


def test_a_long_chat_is_made_to_fit_or_refused():
    words = " ".join(f"w{n}" for n in range(40))
    example = chat_example("a.json, row 1", chat(words, "Hi", "So", "Bye", system="Be brief."))

    def rows(length, policy):
        tokenizer = WordTokenizer(SPECIAL)
        made = ExampleEncoder(opened(CHATML), tokenizer, length, policy)
        return [tokenizer.decode(each.ids.tolist()) for each in made.encode(example)]

    (whole,) = rows(100, "raise")
    (cut,) = rows(60, "truncate-prompt")
    assert "Be brief." in cut
    assert "w0 w1" in cut
    assert "w38 w39" in cut
    assert "w20" not in cut
    assert cut.endswith(whole[whole.index("<|im_end|>\n<|im_start|>assistant\nHi") :])
    (newest,) = rows(40, "truncate-history")
    assert "Be brief." in newest
    assert "w0" not in newest
    assert newest.endswith("Bye<|im_end|>\n")
    with pytest.raises(ExampleTooLong, match="a row may have 12"):
        rows(12, "truncate-history")


def published():
    data = os.environ.get("SHARED_DATA", "")
    return sorted(Path(data, "chat_templates").glob("*.jinja")) if data else []


@pytest.mark.parametrize("path", published() or [None], ids=lambda path: path.stem if path else "-")
def test_templates_of_real_models_teach_each_reply_behind_its_prompt(path):
    if path is None:
        pytest.skip("the shared data is not there; name its folder in SHARED_DATA")
    source = path.read_text(encoding="utf-8")
    template, tokenizer = opened(source), WordTokenizer(SPECIAL)
    messages = chat("One", "First .", "Two", "Second .", "Three", "Third .", system="Be brief.")
    examples = ChatEncoder(template, tokenizer).encode(messages)
    learnt = "".join(
        tokenizer.decode(piece.ids)
        for pieces in examples
        for piece in pieces
        if piece.span == Span.RESPONSE
    )
    places = [learnt.index(text) for text in ("First .", "Second .", "Third .")]
    assert places == sorted(places)
    assert not any(learnt.count(text) > 1 for text in ("First .", "Second .", "Third ."))
    assert not any(text in learnt for text in ("One", "Two", "Three", "Be brief."))
    # Each example begins with what a chat would prompt with at its first reply.
    prompts = []
    for turn in (2, 4, 6):
        parts = template.render(messages[:turn])
        prompts.append(
            [
                id
                for part in parts
                for id in (
                    [tokenizer.special[part.text]]
                    if part.kind == "special"
                    else tokenizer.encode(part.text)
                )
            ]
        )
    for pieces in examples:
        first = next(i for i, piece in enumerate(pieces) if piece.span == Span.RESPONSE)
        assert [id for piece in pieces[:first] for id in piece.ids] in prompts


MARKED = {
    "the break is trained": """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}{{ m.content + '<|im_end|>\\n' }}{% endgeneration %}
    {%- else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}""",
    "the break is not": """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}{{ m.content | trim }}<|im_end|>{% endgeneration %}
    {%- else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}
{%- endfor %}""",
    "the end alone is not": """\
{%- for m in messages %}
    {{- '<turn>' if m.role == 'user' else '</s>' }}
    {%- if m.role == 'assistant' %}{% generation %} {{ m.content }}{% endgeneration %}
    {%- else %} {{ m.content }}{% endif %}
{%- endfor %}{{ eos_token }}""",
    "the last reply alone": """\
{%- for m in messages %}
    {{- '[INST]' if m.role == 'user' else '[/INST]' }}
    {%- if m.role == 'assistant' and loop.last %}
        {%- generation %}{{ m.content }}</s>{% endgeneration %}
    {%- else %}{{ m.content }}{% endif %}
{%- endfor %}""",
    "a heading is trained": """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- generation %}{{ 'Answer: ' + m.content.upper() }}</s>{% endgeneration %}
    {%- else %}{{ m.role + ': ' + m.content + '\\n' }}{% endif %}
{%- endfor %}""",
}


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize(
    "texts", [("Hi", "Ho ß!"), ("One", "1 </s>", "Two", "2\n\n2", "Three", "3")]
)
def test_marks_decide_what_is_trained_as_in_transformers(fast, name, texts):
    rows = [{"role": message.role, "content": message.text} for message in chat(*texts)]
    harmless = [{**row, "content": row["content"].replace("</s>", "[EN]")} for row in rows]
    expected = fast.apply_chat_template(
        harmless, chat_template=MARKED[name], return_assistant_tokens_mask=True, return_dict=True
    )
    template = ChatEncoder(opened(MARKED[name]), TransformersTokenizer(fast))
    (pieces,) = template.encode(chat(*(text.replace("</s>", "[EN]") for text in texts)))
    assert [id for piece in pieces for id in piece.ids] == expected["input_ids"]
    trained = [int(piece.span == Span.RESPONSE) for piece in pieces for _ in piece.ids]
    assert trained == expected["assistant_masks"]
    assert 0 < sum(trained) < len(trained)
    # What a text says is trained like its neighbours, and ends nothing.
    (pieces,) = template.encode(chat(*texts))
    assert [int(piece.span == Span.RESPONSE) for piece in pieces for _ in piece.ids] == trained


def test_a_last_turn_that_was_left_out_is_counted():
    rows = ExampleEncoder(opened(CHATML), WordTokenizer(SPECIAL), 100)
    example = chat_example("a.json, row 1", chat("Hello", "Hi"))
    for number, is_cut in enumerate((True, False, True)):
        rows.encode(replace(example, is_cut=is_cut, location=f"a.json, row {number}"))
    assert rows.truncated == {"last turn": 2}


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALLING_MARKED = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}{{ m.content }}
        {%- for c in m.tool_calls or [] %}
            {{- '<tool_call>{"name": "' + c.function.name + '", "arguments": ' }}
            {{- c.function.arguments | tojson }}{{ '}</tool_call>' }}
        {%- endfor %}{{ '<|im_end|>\\n' }}{% endgeneration %}
    {%- else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
CALLING = CALLING_MARKED.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
CALLING = CALLING.replace("{{ m.content }}", "{{- m.content }}")


def called(*numbers, results=True, weight=1):
    """A chat in OpenAI's format: one call for each number, made at once, then an answer."""
    calls = [
        {"id": f"id{n}", "type": "function", "function": {"name": "add", "arguments": {"n": n}}}
        for n in numbers
    ]
    turns = [{"role": "user", "content": "Add !"}]
    turns.append({"role": "assistant", "content": "", "tool_calls": calls, "weight": weight})
    if results:
        answers = [{"role": "tool", "tool_call_id": f"id{n}", "content": f"{n}"} for n in numbers]
        turns += [*answers, {"role": "assistant", "content": "Done ."}]
    return turns


def row(turns):
    fields = Row("a.json, row 1", {"messages": turns, "tools": TOOLS})
    return detect(fields).read(fields)


@pytest.mark.parametrize("numbers", [(1,), (1, 23)])
@pytest.mark.parametrize("results", [True, False])
def test_calls_are_learnt_and_results_are_not_as_in_transformers(fast, numbers, results):
    turns = called(*numbers, results=results)
    expected = fast.apply_chat_template(
        [{name: part for name, part in turn.items() if name != "weight"} for turn in turns],
        tools=TOOLS,
        chat_template=CALLING_MARKED,
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    example = row(turns)
    for source in (CALLING_MARKED, CALLING):
        encodes = ChatEncoder(opened(source), TransformersTokenizer(fast))
        (pieces,) = encodes.encode(example.messages, example.tools)
        assert [id for piece in pieces for id in piece.ids] == expected["input_ids"]
        trained = [int(piece.span == Span.RESPONSE) for piece in pieces for _ in piece.ids]
        assert trained == expected["assistant_masks"]
        assert 0 < sum(trained) < len(trained)


@pytest.mark.parametrize("source", [CALLING_MARKED, CALLING])
def test_a_turn_of_weight_0_has_no_label(source):
    example = row(called(1, weight=0))
    encodes = encoder(source)
    assert isinstance(encodes.tokenizer, WordTokenizer)
    (text,) = (shown(p, encodes.tokenizer) for p in encodes.encode(example.messages, example.tools))
    assert text.endswith("<|IM_START|>assistant\n[Done .<|IM_END|>\n]")
    assert text.count("[") == 1
    assert "«1»" in text


def test_calls_in_a_pattern_of_this_program_are_those_of_the_chat():
    turns = called(1)
    function = {"name": "calculator", "arguments": '{"expression": "6*7"}'}
    turns[1]["tool_calls"] = [{"id": "id1", "function": function}]
    turns[2]["content"] = "42"
    tokenizer = WordTokenizer(SPECIAL)

    def learnt(tools):
        (pieces,) = ChatEncoder(CHAT, tokenizer).encode(row(turns).messages, tools)
        return shown(pieces, tokenizer)

    assert learnt([]) == "User:« Add !»\nAssistant:[ <<6*7=]«42>>»[ Done .<|ENDOFTEXT|>]"
    turns[1]["tool_calls"][0]["function"]["name"] = "times"
    text = learnt(TOOLS)
    assert "You can use these tools:" in text
    assert (
        '[ <tool_call>{"name": "times", "arguments": {"expression": "6*7"}}</tool_call>\n]' in text
    )
    assert "«<tool_response>\n42\n</tool_response>\n»[ Done .<|ENDOFTEXT|>]" in text


@pytest.mark.parametrize(
    ("turns", "joined"),
    [
        ([("user", "One"), ("user", "Two"), ("assistant", "Hi")], "One\n\nTwo"),
        ([("assistant", "Oh"), ("user", "Two"), ("assistant", "Hi")], "Two"),
    ],
)
def test_turns_out_of_order_are_learnt_where_the_template_allows_it(turns, joined):
    messages = [Message(role, text) for role, text in turns]
    example = chat_example("a.json, row 1", messages)
    for source, how in ((CALLING, "in their order"), (ALTERNATING, "joined"), (None, "joined")):
        rows = ExampleEncoder(opened(source) if source else CHAT, WordTokenizer(SPECIAL), 100)
        assert list(rows.ordered(example)) == (
            messages if how == "in their order" else [Message("user", joined), messages[-1]]
        )
        (encoded,) = rows.encode(example)
        assert rows.truncated == {how: 1}
        assert (encoded.spans == Span.RESPONSE).any()


def test_replies_without_a_question_are_refused():
    rows = ExampleEncoder(CHAT, WordTokenizer(SPECIAL), 100)
    with pytest.raises(BadRow, match="follows no question"):
        rows.encode(chat_example("a.json, row 1", [Message("assistant", "Hi")]))
