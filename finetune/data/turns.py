"""Chats as they are published, to messages: lists of turns, calls of tools, texts and trees.

The notations are those of OpenAI's fine-tuning and TRL (`role`, `content`, `tool_calls`), ShareGPT
and its variants (`from`/`value`, `role`/`text`; calls as in LLaMA-Factory and Hermes), HH-RLHF
("\\n\\nHuman: … \\n\\nAssistant: …"), xLAM, and OASST's trees of ranked replies.

Invariant: what cannot be understood is a `BadRow`; no turn disappears silently. The results of
calls made at once follow them in the order of the calls.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.userfiles import shown
from chatapp.prompting.messages import Call, Message, Role
from chatapp.prompting.thoughts_and_calls import DEEPEST, depth
from chatapp.rows.reading import BadRow, Row, either

SPEAKERS = {"role": "content", "from": "value"}
"""The fields of a turn's speaker, and of its text: OpenAI's, and ShareGPT's."""

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
_HERMES_CALL = re.compile(r"\s*<tool_call>(.*?)</tool_call>\s*", re.DOTALL)
_HERMES_RESULT = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
Tools = tuple[Mapping[str, Any], ...]


def speaker_of(turns: object) -> str:
    """The field that names the speakers in a list of turns, by its first one."""
    first = turns[0] if isinstance(turns, list) and turns else None
    return "from" if isinstance(first, dict) and "from" in first else "role"


def turns_of(row: Row, field: str) -> list[Message]:
    """The turns in a field, in any order of user and assistant. Raises BadRow."""
    turns, location = row.fields.get(field), f"{row.location}: {field}"
    if not isinstance(turns, list) or not turns:
        problem = "an empty list" if turns == [] else shown(turns)
        problem = problem if field in row.fields else "missing"
        raise BadRow(f"no {field}", f"{location} is {problem}, expected a list of turns")
    speaker, has_tools = speaker_of(turns), bool(row.fields.get("tools"))
    messages: list[Message] = []
    calls: dict[str, Call] = {}
    results: dict[str, str] = {}
    for number, turn in enumerate(turns, 1):
        place = f"{location}, turn {number}"
        role, text = _role_and_text(turn, speaker, place)
        if role == "tool":
            parts = _HERMES_RESULT.findall(text) if has_tools else []
            for part in parts or [text]:
                results[_answered(turn, calls, results, place)] = part
            continue
        messages += _results(calls, results, place)
        calls, results = {}, {}
        if role == "assistant":
            text, calls = _calls_of(turn, text, turn.get(speaker), place, marked=has_tools)
        if not text.strip() and not calls:
            raise BadRow("empty turn", f"{place}: {SPEAKERS[speaker]!r} is empty")
        first, further = next(iter(calls.values()), None), tuple(calls.values())[1:]
        weight = turn.get("weight", 1)
        if weight not in (0, 1, None):
            problem = f"{place}: 'weight' is {shown(weight)}, expected 0, 1 or none"
            raise BadRow("bad weight", problem)
        messages.append(Message(role, text, "", first, further, learnt=weight != 0))
    return messages + _results(calls, results, location)


def _role_and_text(turn: Any, speaker: str, place: str) -> tuple[Role, str]:
    if not isinstance(turn, dict):
        raise BadRow("bad turn", f"{place} is {shown(turn)}, expected an object")
    role = _ROLES.get(turn[speaker]) if isinstance(turn.get(speaker), str) else None
    if role is None:
        problem = f"{place}: {speaker!r} is {shown(turn.get(speaker))}, expected "
        raise BadRow(f"unknown {speaker}", problem + either(tuple(_ROLES)))
    field = next((n for n in (SPEAKERS[speaker], "text", "value") if n in turn), SPEAKERS[speaker])
    text = turn.get(field)
    if isinstance(text, list):
        parts = [part if isinstance(part, dict) else {} for part in text]
        for number, part in enumerate(parts, 1):
            if part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
                problem = f"part {number} is of the type {shown(part.get('type'))}, expected 'text'"
                raise BadRow("no text", f"{place}: {field!r}, {problem}")
        text = "".join(part["text"] for part in parts)
    if text is None and (turn.get("tool_calls") or turn.get("function_call")):
        return role, ""
    if not isinstance(text, str):
        raise BadRow("bad turn", f"{place}: {field!r} is {shown(text)}, expected text")
    return role, text


def _answered(
    turn: Mapping[str, Any], calls: Mapping[str, Call], results: Mapping[str, str], place: str
) -> str:
    """The call that a result answers: by its id, else by its name, else the next. Raises BadRow."""
    id, name = turn.get("tool_call_id"), turn.get("name")
    for key, call in calls.items():
        if key not in results and (id in (key, None) if id or not name else call.name == name):
            return key
    raise BadRow("result of no call", f"{place} is a result, but no call waits for it")


def _results(calls: Mapping[str, Call], results: Mapping[str, str], place: str) -> list[Message]:
    """The results in the order of the calls. Raises BadRow when some are missing, but not all."""
    if results and len(results) < len(calls):
        problem = f"{len(calls)} calls have {len(results)} results"
        raise BadRow("call without a result", f"{place}: before it, {problem}")
    return [
        Message("tool", results[key], call=replace(call, result=results[key]))
        for key, call in calls.items()
        if key in results
    ]


def _calls_of(
    turn: Mapping[str, Any], text: str, speaker: object, place: str, *, marked: bool
) -> tuple[str, dict[str, Call]]:
    """The text of a reply without its calls, and the calls by their ids. Raises BadRow.

    marked: whether calls may stand in the text between Hermes' marks.
    """
    calls = turn.get("tool_calls") or []
    if speaker == "function_call":
        calls, text = _json(text, place), ""
        calls = calls if isinstance(calls, list) else [calls]
    elif turn.get("function_call"):
        calls = [turn["function_call"]]
    elif marked and not calls and "<tool_call>" in text:
        calls = [_json(call, place) for call in _HERMES_CALL.findall(text)]
        text = _HERMES_CALL.sub("\n", text).strip()
    if not isinstance(calls, list):
        raise BadRow("bad call", f"{place}: 'tool_calls' is {shown(calls)}, expected a list")
    named: dict[str, Call] = {}
    for number, call in enumerate(calls):
        id = call.get("id") if isinstance(call, dict) else None
        key = id if isinstance(id, str) and id not in named else f"{number}"
        named[key] = _call(call, len(text), place)
    return text, named


def _call(value: Any, at: int, place: str) -> Call:
    """One call; its arguments are an object, or the JSON text of one. Raises BadRow."""
    function = value.get("function", value) if isinstance(value, dict) else value
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name.strip():
        problem = f"a call is {shown(function)}, expected an object with 'name' and 'arguments'"
        raise BadRow("bad call", f"{place}: {problem}")
    arguments = function.get("arguments") or {}
    arguments = _json(arguments, place) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict) or depth(arguments) > DEEPEST:
        problem = f"the arguments of {name!r} are {shown(arguments)}, expected an object"
        raise BadRow("bad call", f"{place}: {problem}")
    return Call(name, arguments, "", "done", at)


def _json(text: str, place: str) -> Any:
    try:
        return parse_json(without_surrogates(text))
    except ValueError:
        raise BadRow("bad call", f"{place}: {shown(text)} is not valid JSON") from None


def calls_in(row: Row, field: str) -> Message:
    """A reply of calls alone, from a list of them or its JSON text (xLAM). Raises BadRow."""
    place, calls = f"{row.location}: {field}", row.fields.get(field)
    calls = _json(calls, place) if isinstance(calls, str) else calls
    if not isinstance(calls, list) or not calls:
        problem = "an empty list" if calls == [] else shown(calls)
        raise BadRow(f"no {field}", f"{place} is {problem}, expected a list of calls")
    first, *further = [_call(call, 0, place) for call in calls]
    return Message("assistant", "", call=first, further=tuple(further))


def tools_of(row: Row) -> Tools:
    """The tools beside a chat (`tools`, or OpenAI's earlier `functions`): a list, or its JSON text.

    Each becomes {"type": "function", "function": {"name", "description", "parameters"}}. Raises
    BadRow.
    """
    tools, place = row.fields.get("tools") or row.fields.get("functions"), f"{row.location}: tools"
    tools = _json(tools, place) if isinstance(tools, str) else tools or []
    if not isinstance(tools, list):
        raise BadRow("bad tools", f"{place} is {shown(tools)}, expected a list of functions")
    return tuple(_tool(tool, place) for tool in tools)


def _tool(value: Any, place: str) -> Mapping[str, Any]:
    value = _json(value, place) if isinstance(value, str) else value
    function = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        problem = f"a tool is {shown(function)}, expected a function with a 'name'"
        raise BadRow("bad tools", f"{place}: {problem}")
    parameters = function.get("parameters") or {}
    if depth(function) > DEEPEST or not isinstance(parameters, dict):
        problem = f"the parameters of {function['name']!r} are not a schema"
        raise BadRow("bad tools", f"{place}: {problem}")
    if parameters and all(isinstance(fields, dict) for fields in parameters.values()):
        function = {**function, "parameters": _schema(parameters)}
    return {"type": "function", "function": function}


_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TYPES |= {"list": "array", "tuple": "array", "set": "array", "dict": "object"}


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """xLAM's parameters, each with a Python type, as a JSON schema."""
    properties, required = {}, []
    for name, fields in parameters.items():
        words = re.findall(r"\w+", str(fields.get("type", "")).lower())
        kind = next((_TYPES[word] for word in words[:1] if word in _TYPES), None)
        properties[name] = {**fields, "type": kind} if kind else fields
        if "default" not in fields and "optional" not in words:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def chat_of(row: Row, field: str, system: Sequence[Message]) -> tuple[list[Message], Tools]:
    """The turns of a field behind the row's instructions, and the row's tools.

    Instructions that list the tools themselves, as Hermes' do, are left out: the model's own
    template writes them. Raises BadRow.
    """
    messages, tools = turns_of(row, field), tools_of(row)
    if tools and messages[0].role == "system" and "<tools>" in messages[0].text:
        del messages[0]
    if system and messages[:1] and messages[0].role == "system":
        raise BadRow(
            "two system messages",
            f"{row.location}: 'system' stands beside {field}, turn 1, which is from 'system' too; "
            "expected one of them",
        )
    return [*system, *messages], tools


_SPEAKS = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")


def turns_in(text: object) -> list[Message]:
    """The turns of a text that begins with "Human:", as HH-RLHF writes them; none of another text.

    Only the last turn may be empty.
    """
    if not isinstance(text, str) or not text.lstrip().startswith("Human:"):
        return []
    _, *pieces = _SPEAKS.split(text)
    turns = zip(pieces[::2], pieces[1::2], strict=True)
    return [Message("user" if who == "Human" else "assistant", what.strip()) for who, what in turns]


def is_tree(row: Row) -> bool:
    """Whether a row is a tree of OASST."""
    prompt = row.fields.get("prompt")
    return isinstance(prompt, dict) and "replies" in prompt


def root_of(row: Row) -> Mapping[str, Any]:
    """The first message of a tree. Raises BadRow."""
    if not is_tree(row):
        raise BadRow("bad tree", f"{row.location}: 'prompt' is not a message with 'replies'")
    return cast(Mapping[str, Any], row.fields["prompt"])


def best_path(row: Row) -> list[Message]:
    """The turns of a tree along its best replies, down to the last one. Raises BadRow."""
    messages: list[Message] = []
    nodes = [root_of(row)]
    while nodes:
        is_reply = len(messages) % 2 == 1
        messages.append(Message("assistant" if is_reply else "user", text_of_node(nodes[0], row)))
        nodes = ranked(nodes[0], row)
        if is_reply:  # a question that nobody answered ends nothing
            nodes = [node for node in nodes if ranked(node, row)]
    return messages


def ranked(node: Mapping[str, Any], row: Row) -> list[Mapping[str, Any]]:
    """The replies to a message of a tree, the best first, those without a rank last. Raises
    BadRow.
    """
    replies = node.get("replies") or []
    if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
        raise BadRow("bad tree", f"{row.location}: 'replies' is not a list of messages")
    left = [reply for reply in replies if not reply.get("deleted")]
    return sorted(left, key=lambda reply: rank_of(reply, len(left)))


def rank_of(node: Mapping[str, Any], otherwise: float) -> float:
    """The rank of a reply; 0 is the best."""
    rank = node.get("rank")
    return rank if isinstance(rank, int | float) else otherwise


def text_of_node(node: Mapping[str, Any], row: Row) -> str:
    """The text of a message of a tree. Raises BadRow."""
    text = node.get("text")
    if not isinstance(text, str) or not text.strip():
        raise BadRow("bad tree", f"{row.location}: a 'text' is {shown(text)}, expected text")
    return text


def check_order(messages: Sequence[Message], location: str) -> None:
    """Refuse a system message after the first, replies in a row, and a chat without a last reply.

    Raises BadRow. Questions in a row and a first reply are left to `regular`.
    """
    for number, message in enumerate(messages[1:], 2):
        before = messages[number - 2]
        if message.role == "system" or message.role == before.role == "assistant":
            expected = "user" if before.role == "assistant" else "assistant"
            problem = f"turn {number} is from {message.role!r}, expected {expected!r}"
            raise BadRow("roles do not alternate", f"{location}, {problem}")
    if messages[-1].role != "assistant":
        problem = f"ends with a turn from {messages[-1].role!r}, expected 'assistant'"
        raise BadRow("no last reply", f"{location} {problem}")


def regular(messages: Sequence[Message], location: str) -> list[Message]:
    """The messages in turn: without replies to nothing, and with questions in a row joined.

    Raises BadRow when no reply is left to learn.
    """
    kept: list[Message] = []
    for message in messages:
        if message.role == "user" and kept and kept[-1].role == "user":
            kept[-1] = Message("user", f"{kept[-1].text}\n\n{message.text}")
        elif message.role in ("system", "user") or any(turn.role == "user" for turn in kept):
            kept.append(message)
    if not any(message.learnt for message in kept if message.role == "assistant"):
        problem = "the reply follows no question; expected 'user' before"
        raise BadRow("no question", f"{location}: {problem}")
    return kept


def all_turns(messages: Sequence[Message]) -> Iterator[tuple[Any, ...]]:
    """What identifies a chat: of each message its role and text, and its calls if it has some."""
    for message in messages:
        calls = [(c.name, c.arguments) for c in (message.call, *message.further) if c is not None]
        yield (message.role, message.text, *([calls] if calls else []))
