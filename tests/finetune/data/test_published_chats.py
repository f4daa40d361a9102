"""Chats as the world publishes them: a true row of each format, and broken ones."""

import json
import os
import random

import pytest
from fakes import WordTokenizer

from chatapp.prompting.template import CHAT
from chatapp.rows.reading import BadRow, Row
from finetune.data.encoding import ExampleEncoder
from finetune.data.formats import TrainingExample, detect
from finetune.data.preferences import detect_feedback
from finetune.data.prompts import detect_prompt

QUESTION = {"role": "user", "content": "What is 6*7?"}
ANSWER = {"role": "assistant", "content": "It is 42."}
TOOL = {
    "name": "calculator",
    "description": "Computes.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": TOOL}]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'},
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
CALLED = [QUESTION, {"role": "assistant", "tool_calls": [CALL]}, RESULT, ANSWER]

HERMES_CALL = (
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'
)
HERMES = [
    {"from": "system", "value": f"You call functions. <tools>{json.dumps(TOOLS)}</tools>"},
    {"from": "human", "value": "What is 6*7?"},
    {"from": "gpt", "value": HERMES_CALL},
    {"from": "tool", "value": "<tool_response>\n42\n</tool_response>"},
    {"from": "gpt", "value": "It is 42."},
]
FACTORY = [
    {"from": "human", "value": "What is 6*7?"},
    {
        "from": "function_call",
        "value": '{"name": "calculator", "arguments": {"expression": "6*7"}}',
    },
    {"from": "observation", "value": "42"},
    {"from": "gpt", "value": "It is 42."},
]
XLAM = {
    "query": "What is 6*7, and 6*8?",
    "tools": json.dumps(
        [{"name": "times", "parameters": {"a": {"type": "int"}, "b": {"type": "int, optional"}}}]
    ),
    "answers": json.dumps(
        [{"name": "times", "arguments": {"a": 6, "b": 7}}, {"name": "times", "arguments": {"a": 6}}]
    ),
}
TREE = {
    "message_tree_id": "1",
    "prompt": {
        "role": "prompter",
        "text": "Hi",
        "replies": [
            {"role": "assistant", "text": "Go away", "rank": 1, "replies": []},
            {
                "role": "assistant",
                "text": "Hello",
                "rank": 0,
                "replies": [
                    {"role": "prompter", "text": "Nobody answers", "replies": []},
                    {
                        "role": "prompter",
                        "text": "Bye",
                        "replies": [{"role": "assistant", "text": "See you", "replies": []}],
                    },
                ],
            },
        ],
    },
}
HH = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Bye\n\nAssistant:"


def read(fields):
    row = Row("a.jsonl, line 1", fields)
    return detect(row).read(row)


def feedback(fields):
    row = Row("a.jsonl, line 1", fields)
    return detect_feedback(row).read(row)


def turns_shown(messages):
    """The messages in short: their speakers, texts and calls."""
    lines = []
    for message in messages:
        calls = [
            each for each in (message.call, *message.further) if each and message.role != "tool"
        ]
        called = "".join(f" {call.name}{json.dumps(call.arguments)}" for call in calls)
        lines.append(f"{message.role}: {message.text}{called}")
    return lines


CALCULATED = [
    "user: What is 6*7?",
    'assistant:  calculator{"expression": "6*7"}',
    "tool: 42",
    "assistant: It is 42.",
]
CHATTED = ["user: Hi", "assistant: Hello", "user: Bye", "assistant: See you"]

TRUE = {
    "OpenAI with tools": ({"messages": CALLED, "tools": TOOLS}, CALCULATED),
    "arguments as an object": (
        {
            "messages": [
                QUESTION,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"name": "calculator", "arguments": {"expression": "6*7"}}],
                },
                {"role": "tool", "name": "calculator", "content": "42"},
                ANSWER,
            ]
        },
        CALCULATED,
    ),
    "OpenAI's earlier functions": (
        {
            "messages": [
                QUESTION,
                {"role": "assistant", "content": "", "function_call": CALL["function"]},
                {"role": "function", "name": "calculator", "content": "42"},
                ANSWER,
            ],
            "functions": [TOOL],
        },
        CALCULATED,
    ),
    "TRL with tools": (
        {"prompt": CALLED[:1], "completion": CALLED[1:], "tools": json.dumps(TOOLS)},
        CALCULATED,
    ),
    "Hermes": ({"conversations": HERMES, "tools": json.dumps(TOOLS)}, CALCULATED),
    "LLaMA-Factory": ({"conversations": FACTORY, "tools": json.dumps([TOOL])}, CALCULATED),
    "xLAM": (
        XLAM,
        ["user: What is 6*7, and 6*8?", 'assistant:  times{"a": 6, "b": 7} times{"a": 6}'],
    ),
    "OASST tree": (TREE, CHATTED),
    "HH-RLHF": ({"text": f"{HH} See you"}, CHATTED),
    "Anthropic's prompt": (
        {"prompt": HH, "completion": " See you"}, [*CHATTED[:3], "assistant:  See you"]
    ),
    "role and text": (
        {"conversation": [{"role": "user", "text": "Hi"}, {"role": "assistant", "text": "Hello"}]},
        CHATTED[:2],
    ),
    "ends with the user": ({"messages": [QUESTION, ANSWER, QUESTION]}, CALCULATED[::3]),
    "begins with the assistant": (
        {"messages": [ANSWER, QUESTION, ANSWER]}, [CALCULATED[3], *CALCULATED[::3]]
    ),
    "two questions": (
        {"messages": [QUESTION, QUESTION, ANSWER]}, [CALCULATED[0], *CALCULATED[::3]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_a_true_row_of_each_format(name):
    fields, messages = TRUE[name]
    example = read(fields)
    assert turns_shown(example.messages) == messages
    if "tools" in fields or "functions" in fields:
        assert [tool["type"] for tool in example.tools] == ["function"]
    assert example.is_cut == (name == "ends with the user")


def test_results_follow_in_the_order_of_their_calls():
    second = {**CALL, "id": "call_2", "function": {"name": "clock", "arguments": "{}"}}
    turns = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [CALL, second]},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        RESULT,
        ANSWER,
    ]
    example = read({"messages": turns})
    assert turns_shown(example.messages)[2:4] == ["tool: 42", "tool: noon"]
    assert [m.call.name for m in example.messages[2:4] if m.call] == ["calculator", "clock"]
    with pytest.raises(BadRow, match="2 calls have 1 results"):
        read({"messages": [*turns[:3], ANSWER]})


def test_a_schema_is_made_of_the_types_of_xlam():
    (tool,) = read(XLAM).tools
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
    }


def test_weight_0_is_no_label_but_part_of_the_chat():
    example = read(
        {"messages": [QUESTION, {**ANSWER, "weight": 0}, QUESTION, {**ANSWER, "weight": 1}]}
    )
    assert [message.learnt for message in example.messages] == [True, False, True, True]


def answered(text):
    return [QUESTION, {"role": "assistant", "content": text}]


PAIRS = {
    "OpenAI preference": {
        "input": {"messages": [QUESTION], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [ANSWER],
        "non_preferred_output": [{"role": "assistant", "content": "41"}],
    },
    "UltraFeedback": {
        "prompt": "What is 6*7?",
        "prompt_id": "f0",
        "chosen": answered("It is 42."),
        "rejected": answered("41"),
        "messages": answered("It is 42."),
        "score_chosen": 8.5,
        "score_rejected": 3.0,
    },
    "TRL, implicit": {"chosen": answered("It is 42."), "rejected": answered("41")},
    "HH-RLHF": {
        "chosen": "\n\nHuman: What is 6*7?\n\nAssistant: It is 42.",
        "rejected": "\n\nHuman: What is 6*7?\n\nAssistant: 41",
    },
    "OASST tree": {
        "message_tree_id": "1",
        "prompt": {
            "text": "What is 6*7?",
            "replies": [
                {"text": "Hm", "rank": 1},
                {"text": "41", "rank": 2},
                {"text": "It is 42.", "rank": 0},
            ],
        },
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_true_preference_of_each_format(name):
    pair = feedback(PAIRS[name])
    assert turns_shown(pair.chosen.messages) == ["user: What is 6*7?", "assistant: It is 42."]
    assert turns_shown(pair.rejected.messages) == ["user: What is 6*7?", "assistant: 41"]
    assert pair.margin == 0.0


def test_a_reply_of_a_preference_may_be_a_call():
    pair = feedback(
        {"prompt": [QUESTION], "chosen": CALLED[1:2], "rejected": [ANSWER], "tools": TOOLS}
    )
    assert turns_shown(pair.chosen.messages) == CALCULATED[:2]
    assert pair.chosen.tools == pair.rejected.tools == tuple(TOOLS)


def test_a_chat_that_ends_with_its_user_is_a_prompt():
    row = Row("a.jsonl, line 1", {"messages": [QUESTION], "tools": TOOLS})
    example = detect_prompt(row).read(row)
    assert (turns_shown(example.messages)[:1], example.reply) == (["user: What is 6*7?"], "")
    whole = Row("a.jsonl, line 2", {"messages": [QUESTION, ANSWER]})
    assert detect_prompt(row).read(whole).reply == "It is 42."


def called(**changes):
    return {"messages": [QUESTION, {"role": "assistant", "tool_calls": [{**CALL, **changes}]}]}


BROKEN = {
    "result of no call": ({"messages": [QUESTION, RESULT, ANSWER]}, "turn 2 is a result, but no"),
    "result of another call": (
        {"messages": [*CALLED[:2], {**RESULT, "tool_call_id": "x"}, ANSWER]}, "no call waits for it"
    ),
    "calls that are no list": (
        {"messages": [QUESTION, {"role": "assistant", "tool_calls": "x"}]}, "expected a list"
    ),
    "a call without a name": (called(function={"arguments": "{}"}), "'name' and 'arguments'"),
    "arguments that are no JSON": (
        called(function={"name": "a", "arguments": "{"}), "turn 2: the string '{' is not valid JSON"
    ),
    "arguments that are a list": (
        called(function={"name": "a", "arguments": "[1]"}), "are a list, expected an object"
    ),
    "a reply of nothing": (
        {"messages": [QUESTION, {"role": "assistant", "content": "", "tool_calls": []}]}, "is empty"
    ),
    "two replies": ({"messages": [*CALLED[:2], ANSWER]}, "turn 3 is from 'assistant'"),
    "tools that are no JSON": ({"messages": CALLED, "tools": "["}, "tools: the string '['"),
    "a tool without a name": ({"messages": CALLED, "tools": [{}]}, "a function with a 'name'"),
    "calls of xLAM": ({**XLAM, "answers": "[]"}, "answers is an empty list, expected"),
    "a tree without replies": (
        {"message_tree_id": "1", "prompt": {"text": "Hi", "replies": []}}, "'user'"
    ),
    "a tree without a text": (
        {"message_tree_id": "1", "prompt": {"text": None, "replies": []}}, "'text' is null"
    ),
    "an empty turn in a text": ({"text": "\n\nHuman: \n\nAssistant: Hi"}, "turn 1 is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_is_one_sentence(name):
    fields, words = BROKEN[name]
    with pytest.raises(BadRow) as caught:
        read(fields)
    assert str(caught.value).startswith("a.jsonl, line 1")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**PAIRS["UltraFeedback"], "prompt": "Who?"}, "'prompt' is not the prompt"),
        ({**PAIRS["OpenAI preference"], "input": []}, "'input' is a list"),
        ({"message_tree_id": "1", "prompt": {"text": "a", "replies": []}}, "at least 2 ranked"),
        ({"chosen": CALLED, "rejected": answered("41")}, "there is no prompt"),
    ],
)
def test_a_broken_preference_is_one_sentence(fields, words):
    with pytest.raises(BadRow, match=words):
        feedback(fields)


def spoilt(value, draw):
    """The same with a part of it replaced, left out or repeated."""
    if draw.random() < 0.15:
        parts = [
            None,
            0,
            -1.5,
            True,
            "",
            " ",
            "\0",
            "\ud800",
            "x" * 50,
            [],
            {},
            [[]],
            [{}],
            "{",
            "[1]",
        ]
        return draw.choice(parts)
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if draw.random() > 0.05}
        return {name: spoilt(part, draw) for name, part in kept.items()}
    if isinstance(value, list):
        parts = [
            spoilt(part, draw) for part in value for _ in range(draw.choice([1, 1, 1, 1, 0, 2]))
        ]
        return parts if draw.random() > 0.1 else parts[::-1]
    return value


@pytest.mark.parametrize("name", [*TRUE, *PAIRS])
def test_a_spoilt_row_is_read_or_is_one_sentence(name):
    draw, layouts = random.Random(name), (detect, detect_feedback, detect_prompt)
    true = TRUE[name][0] if name in TRUE else PAIRS[name]
    sentences = []
    for _ in range(int(os.environ.get("SPOILT_ROWS", "60"))):
        fields = spoilt(true, draw)
        row = Row("a.jsonl, line 1", fields if isinstance(fields, dict) else {})
        for find in layouts:
            for first in (row, Row("a.jsonl, line 1", true)):  # the layout is that of the first row
                try:
                    made = find(first).read(row)
                    example = made if isinstance(made, TrainingExample) else made.examples[0]
                    encoder.encode(example)
                except BadRow as error:
                    sentences.append(str(error))
    assert sentences
    assert all(each.startswith("a.jsonl, line 1") for each in sentences)


encoder = ExampleEncoder(CHAT, WordTokenizer(), 10_000)
