"""From a request's fields to what the model continues."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.parameters import GREEDY, PARAMETERS, Choices, Sampling
from chatapp.dialogue.events import Options
from chatapp.dialogue.tool_calls import call_constraint, call_schema
from chatapp.dialogue.turn import write_prompt
from chatapp.dialogue.writers.choosing import with_thinking, writer_for
from chatapp.dialogue.writers.prompt import Exchange, Prompt, Writer
from chatapp.engine.constraint.compiling import Kind
from chatapp.engine.constraint.constraint import Constraint, ConstraintError
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.model import LanguageModel, Request
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Call, CallPattern, JSONCalls
from chatapp.prompting.thoughts_and_calls import LLAMA
from chatapp.server.bodies import (
    MOST_STOPS,
    Changes,
    ChatBody,
    MessageBody,
    NamedTool,
    ToolDefinition,
    Writing,
)


class BadRequestError(Exception):
    """A mistake in a request: a sentence, and the field; `code` as OpenAI has it."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


def sampling_of(body: Writing, choices: Choices, max_tokens: int) -> Sampling:
    """The sampling of a request: the user's choices, and above them its own fields.

    A temperature of 0 is greedy: without penalties, unless the request names them.
    """
    values: dict[str, Any] = {
        name: value
        for name in PARAMETERS
        if name != "max_tokens" and (value := getattr(body, name)) is not None
    }
    if values.get("temperature") == 0:
        values = {**GREEDY, "max_repeats": 0} | values
    if values.get("top_k") == -1:  # as vLLM switches it off
        values["top_k"] = 0
    if values.get("seed", 0) < 0:
        values["seed"] += PARAMETERS["seed"].high
    return replace(choices.sampling, **values, max_tokens=max_tokens)


def changes_in(model: LanguageModel, changes: Changes | None) -> Interventions:
    """What a request changes inside the model. Raises UserError."""
    if changes is None or not (changes.ablate or changes.steer):
        return UNCHANGED
    from chatapp.lab.steering import changes_of

    directions = [f"{name}={strength}" for name, strength in changes.steer.items()]
    return changes_of(model, ",".join(changes.ablate) if changes.ablate else None, directions)


def _bias(body: Writing, model: LanguageModel) -> dict[int, float]:
    """What is added to the logits of ids. Raises BadRequestError."""
    size = model.tokenizer.size
    bias: dict[int, float] = {}
    for key, value in (body.logit_bias or {}).items():
        id = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else size
        if id >= size or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise BadRequestError(
                f"logit_bias: expected ids below {size}, each with a number from -100 to 100",
                "logit_bias",
            )
        bias[id] = value
    return bias


def requests_for(
    model: LanguageModel, body: Writing, choices: Choices, max_tokens: int, request: Request
) -> list[Request]:
    """The requests for `n` replies to one prompt, each with a seed of its own.

    request: all but its sampling.
    """
    if len(body.stops) > MOST_STOPS:
        raise BadRequestError(
            f"stop has {len(body.stops):,} strings; expected at most {MOST_STOPS}", "stop"
        )
    sampling, bias = sampling_of(body, choices, max_tokens), _bias(body, model)
    seed = sampling.seed
    return [
        replace(
            request,
            sampling=replace(sampling, seed=None if seed is None else seed + which),
            checked=False,  # no answer says that, and the model's thread is everybody's
            bias=bias,
        )
        for which in range(body.n or 1)
    ]


MOST_TEXTS = 2048
"""How many texts a request may hold, as in OpenAI's protocol, and its answer."""

_SLICE = 20_000
"""Characters that are cut into tokens at a time: nobody else runs meanwhile."""


def too_long(model: LanguageModel, what: str, param: str) -> BadRequestError:
    """The error of a prompt of which `what` says how it exceeds the window."""
    words = f"the prompt {what}; the model's window has {model.context}"
    return BadRequestError(words, param, "context_length_exceeded")


def refuse_endless(model: LanguageModel, texts: Iterable[str], param: str) -> None:
    """Raise BadRequestError for texts that surely exceed the window, after work that it bounds.

    Cut at other places, a text has a few tokens more, never twice as many.
    """
    count = 0
    for text in texts:
        for start in range(0, len(text) if len(text) > _SLICE else 0, _SLICE):
            piece = without_surrogates(text[start : start + _SLICE])
            count += len(model.tokenizer.encode(piece))
            if count > 2 * model.context:
                raise too_long(model, f"has more than {model.context} tokens", param)


def ids_of(model: LanguageModel, prompt: Any, param: str) -> list[list[int]]:
    """The tokens of one text or several, each a string or token ids. Raises BadRequestError."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    if len(prompt) > MOST_TEXTS:
        raise BadRequestError(f"{param} has more than {MOST_TEXTS:,} texts", param)
    texts = []
    for item in prompt:
        if isinstance(item, str):
            refuse_endless(model, [item], param)
        ids = item if isinstance(item, list) else model.tokenizer.encode(without_surrogates(item))
        if not ids:
            raise BadRequestError(f"{param} has an empty text", param)
        if not all(0 <= id < model.tokenizer.size for id in ids):
            raise BadRequestError(f"{param} has ids that are not in the vocabulary", param)
        if len(ids) > model.context:
            raise too_long(model, f"is {len(ids)} tokens long", param)
        texts.append(ids)
    if not texts:
        raise BadRequestError(f"{param} has no text", param)
    return texts


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as its model reads it.

    tools: the schemas of their arguments, by the names of those that the reply may call. calls: how
    it calls them. is_continued: the reply has a beginning, which the answer does not repeat.
    loss: `left_out`, in words, where the window has no room for the oldest messages.
    """

    prompt: Prompt
    writer: Writer
    tools: Mapping[str, Mapping[str, Any]]
    calls: CallPattern
    is_continued: bool
    loss: dict[str, str]


def chat_prompt(
    model: LanguageModel, template: ChatTemplate, body: ChatBody, max_tokens: int
) -> ChatPrompt:
    """The prompt for the reply to a chat.

    Raises BadRequestError, MessageTooLong, ValueError for a template without the wanted switch.
    """
    switches = body.chat_template_kwargs
    thinks = None if switches is None else switches.enable_thinking
    if thinks is None and body.reasoning_effort and template.switch:
        thinks = body.reasoning_effort != "none"
    if thinks is not None:
        template = with_thinking(model, template, thinks)
    writer = writer_for(model, template)
    definitions = [_definition(tool) for tool in _wanted_tools(body)]
    names = [definition["function"]["name"] for definition in definitions]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise BadRequestError(f"tools has {twice[:200]!r} twice", "tools")
    if definitions:
        writer.use_tools(definitions)
    texts = [_text(message, number) for number, message in enumerate(body.messages)]
    calls = [call for message in body.messages for call in message.tool_calls or ()]
    texts += [call.function.arguments for call in calls]
    refuse_endless(model, [" ".join(texts)], "messages")  # before they are joined one by one
    system, exchanges, starts = _exchanges(body.messages)
    options = Options(Sampling(max_tokens=max_tokens), system=system)
    prompt = write_prompt(writer, exchanges, options)
    functions = [definition["function"] for definition in definitions]
    tools = {function["name"]: function["parameters"] for function in functions}
    pattern = writer.calls
    if body.is_call_required:  # the reply is a call from its first character on
        pattern = replace(pattern, bare=True) if isinstance(pattern, JSONCalls) else LLAMA
    words = f"all before messages.{starts[prompt.dropped]}, except instructions"
    loss = {"left_out": words} if prompt.dropped else {}
    return ChatPrompt(prompt, writer, tools, pattern, bool(exchanges[-1].rest), loss)


def constraint_of(model: LanguageModel, body: ChatBody, chat: ChatPrompt) -> Constraint | None:
    """What the reply to a chat may look like. Raises BadRequestError."""
    form = body.response_format
    if body.is_call_required:
        schema, param = call_schema(chat.calls, chat.tools), "tools"
    elif body.structured_outputs is not None:
        return structured(model, body, spaced=True)
    elif form is None or form.type == "text":
        return call_constraint(model, chat.calls, chat.tools) if chat.tools else None
    elif form.type == "json_schema" and form.json_schema is None:
        raise BadRequestError("json_schema is missing", "response_format.json_schema")
    else:
        schema = {"type": "object"} if form.json_schema is None else form.json_schema.document
        param = "response_format"
    return _compiled(model, partial(Constraint.of_schema, schema, spaced=True), param)


def structured(model: LanguageModel, body: Writing, *, spaced: bool = False) -> Constraint | None:
    """What `structured_outputs` allow. spaced: a space may precede it, whatever the request says.

    Raises BadRequestError.
    """
    param, wanted = "structured_outputs", body.structured_outputs
    if wanted is None:
        return None
    kinds: dict[Kind, Any] = {"pattern": wanted.regex, "grammar": wanted.grammar}
    kinds["schema"] = wanted.document
    given = [(kind, source) for kind, source in kinds.items() if source is not None]
    if len(given) != 1:
        raise BadRequestError(f"{param}: expected one of json, regex and grammar", param)
    ((kind, source),), spaced = given, spaced or wanted.spaced
    if kind == "schema":
        return _compiled(model, partial(Constraint.of_schema, source, spaced=spaced), param)
    return _compiled(model, partial(Constraint, kind, source, spaced), param)


def _compiled(model: LanguageModel, make: Callable[[], Constraint], param: str) -> Constraint:
    """A constraint, compiled here and not on the model's thread. Raises BadRequestError."""
    from chatapp.engine.backends.local import LocalModel

    try:
        constraint = make()
        if isinstance(model, LocalModel):
            model.vocab_bytes.state_of(constraint)
        return constraint
    except ConstraintError as error:
        raise BadRequestError(str(error), param) from None


def _wanted_tools(body: ChatBody) -> list[ToolDefinition]:
    """The tools that the reply may call. Raises BadRequestError if it has to, and there is none."""
    choice = body.tool_choice
    tools = [] if choice == "none" else body.tools or []
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    if body.is_call_required and not tools:
        raise BadRequestError("tool_choice requires a tool that is not in tools", "tool_choice")
    return tools


def _definition(tool: ToolDefinition) -> dict[str, Any]:
    """A tool as templates read it."""
    function = tool.function
    described = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": described}


def _exchanges(messages: Sequence[MessageBody]) -> tuple[str | None, list[Exchange], list[int]]:
    """The instructions, the chat as pairs of a message and its reply, and where each pair begins.

    Several messages of a role in a row are one, with an empty line between them.
    """
    system: list[str] = []
    exchanges: list[Exchange] = []
    starts: list[int] = []
    for number, message in enumerate(messages):
        text = _text(message, number)
        if message.role in ("system", "developer"):
            system.append(text)
        elif message.role == "user":
            last = exchanges[-1] if exchanges else None
            if last is not None and last.reply is None and not last.calls:
                exchanges[-1] = replace(last, user=f"{last.user}\n\n{text}")
            else:
                exchanges.append(Exchange(text))
                starts.append(number)
        elif not exchanges:
            raise BadRequestError("the chat has to begin with a message of the user", "messages")
        elif message.role == "assistant":
            exchanges[-1] = _replied(exchanges[-1], text, message, number)
        else:
            exchanges[-1] = _with_result(exchanges[-1], text, number)
    if not exchanges:
        raise BadRequestError("the chat has no message of the user", "messages")
    if messages[-1].tool_calls:
        raise BadRequestError("the last message calls tools; expected their results", "messages")
    return "\n\n".join(system) if system else None, exchanges, starts


def _text(message: MessageBody, number: int) -> str:
    if message.content is None and message.role != "assistant":
        raise BadRequestError(f"messages.{number} has no content", f"messages.{number}.content")
    if not isinstance(message.content, list):
        return without_surrogates(message.content or "")
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise BadRequestError(
                f"messages.{number} has a part of type {part.type!r}; only text can be read",
                "messages",
            )
    return without_surrogates("".join(part.text or "" for part in message.content))


def _replied(exchange: Exchange, text: str, message: MessageBody, number: int) -> Exchange:
    reply = "\n\n".join(filter(None, (exchange.reply, text)))
    calls = []
    for call in message.tool_calls or ():
        try:
            arguments = parse_json(call.function.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise BadRequestError(
                f"messages.{number} calls {call.function.name!r} with arguments that are no JSON "
                "object",
                "messages",
            )
        calls.append(Call(call.function.name, arguments, "", "done", len(reply)))
    return replace(exchange, reply=reply, calls=(*exchange.calls, *calls))


def _with_result(exchange: Exchange, text: str, number: int) -> Exchange:
    """Give the first call without a result this one."""
    calls = list(exchange.calls)
    for place, call in enumerate(calls):
        if not call.result:
            calls[place] = replace(call, result=text or " ")
            return replace(exchange, calls=tuple(calls))
    raise BadRequestError(f"messages.{number} is the result of no call", "messages")
