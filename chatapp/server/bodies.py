"""The requests of OpenAI's protocol that this server reads, as pydantic models, and the OpenAPI
description made of them.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from chatapp import __version__
from chatapp.common.parameters import PARAMETERS
from chatapp.common.validation import key_of, sampling_model

Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is read up to its first mistake: a million of them would be a million messages."""
Several = Annotated[list[Item], Field(fail_fast=True, max_length=4096)]
Prompts = str | Many[str] | Many[int] | Many[Many[int]]

MOST_CHOICES = 16
MOST_ALTERNATIVES = 20


MOST_STOPS = 64
MOST_CHANGES = 64
DIRECTION = r"^[A-Za-z][A-Za-z0-9_-]*$"
"""The name of a direction; a path is none."""

Standing = Literal["supported", "ignored", "refused"]
"""What becomes of a key: it acts, it cannot change the answer, or it would and is not supported."""

_WRITING = (
    "model frequency_penalty logit_bias max_tokens n presence_penalty seed stop stream "
    "stream_options temperature top_p"
)
KEYS: dict[str, dict[Standing, str]] = {
    "/completions": {
        "supported": f"{_WRITING} echo logprobs prompt",
        "ignored": "user",
        "refused": "best_of suffix",
    },
    "/chat/completions": {
        "supported": f"{_WRITING} logprobs max_completion_tokens messages response_format "
        "tool_choice tools top_logprobs",
        "ignored": "metadata parallel_tool_calls prediction prompt_cache_key "
        "prompt_cache_retention reasoning_effort safety_identifier service_tier store user",
        "refused": "audio function_call functions modalities verbosity web_search_options",
    },
    "/embeddings": {
        "supported": "encoding_format input model",
        "ignored": "user",
        "refused": "dimensions",
    },
}
"""The keys of OpenAI's reference by their paths; the guide has the same table."""

_OTHERS = (
    "bad_words grammar guided_choice guided_grammar guided_json guided_regex ignore_eos "
    "length_penalty min_tokens mirostat stop_token_ids typical_p use_beam_search"
)
"""Keys of other servers that would change a text."""

_HARMLESS: dict[str, Any] = {"modalities": ["text"], "function_call": "none", "verbosity": "medium"}
_HARMLESS |= {"length_penalty": 1, "typical_p": 1}
"""Values of refused keys that change nothing, beside null, zero and what is empty."""


def refused_key(path: str, document: dict[str, Any]) -> str | None:
    """The first key of a request that would change the answer and is not supported."""
    refused = f"{KEYS.get(path, {}).get('refused', '')} {_OTHERS}".split()
    harmless = _HARMLESS | {"best_of": document.get("n") or 1}
    return next(
        (key for key in refused if document.get(key) and document[key] != harmless.get(key)), None
    )


def opens_model(body: BaseModel) -> bool:
    """Whether a request looks inside the model, or changes it."""
    return isinstance(body, InspectBody) or getattr(body, "changes", None) is not None


def ignored_keys(body: BaseModel) -> list[str]:
    """The keys of a request that nothing reads, also within its parts, such as `messages.name`."""
    names = list(body.model_extra or ())
    for field in type(body).model_fields:
        value = getattr(body, field)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, BaseModel):
                names += [f"{field}.{name}" for name in ignored_keys(part)]
    return sorted(set(names))


class Known(BaseModel):
    """A part of a request. It keeps keys that nothing reads, so that the answer can name them."""

    model_config = ConfigDict(extra="allow")


class Body(Known):
    """The fields of every request."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None


class StreamOptions(Known):
    """include_usage: a last chunk with the numbers of tokens."""

    include_usage: bool | None = None


class StructuredOutputs(Known):
    """The form of a reply, as vLLM has it: a schema, a regular expression, or a Lark grammar.

    spaced: a space or line breaks may precede it; a chat's reply loses them.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    document: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    grammar: str | None = None
    spaced: bool = False


class Changes(BaseModel):
    """What is changed inside the model while it replies or reads.

    ablate: parts that are switched off, such as 3.5 and 4.mlp. steer: directions of `chatapp steer
    make`, each with a strength.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    ablate: Annotated[list[str], Field(fail_fast=True, max_length=MOST_CHANGES)] = []
    steer: Annotated[
        dict[Annotated[str, Field(pattern=DIRECTION)], float], Field(max_length=MOST_CHANGES)
    ] = {}


class Writing(sampling_model("max_tokens"), Body):  # type: ignore[misc]  # made of a table
    """The fields that completions and chat have in common.

    What is not set is as the user's settings and the model's authors have it. top_k: -1 is off, as
    in vLLM. seed: may be negative.
    """

    model_config = ConfigDict(extra="allow")

    structured_outputs: StructuredOutputs | None = None
    changes: Changes | None = None

    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stop: str | Several[str] | None = Field(
        default=None, description=f"At most {MOST_STOPS}; OpenAI takes 4."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = key_of("top_k", low=-1, off=None)
    temperature: float | None = key_of(
        "temperature", meaning="0 is greedy; OpenAI takes up to 2, this server more"
    )
    logit_bias: dict[str, Any] | None = Field(
        default=None, description="From -100 to 100 for each id of a token."
    )
    seed: int | None = key_of("seed", low=-int(PARAMETERS["seed"].high))

    def form_size(self) -> int:
        """Characters of what is compiled first, as the form of the reply or of a call in it."""
        names = ("structured_outputs", "response_format", "tools")
        given = (getattr(self, name, None) for name in names)
        return sum(len(str(form)) for form in given if form is not None)

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end a reply."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)


class CompletionBody(Writing):
    """A text, or several, to be continued.

    max_tokens: 0 only scores the prompt, with `echo`. return_tokens_as_token_ids: as in vLLM,
    `logprobs` name tokens by their ids, "token_id:7".
    """

    prompt: Prompts = ""
    max_tokens: int | None = key_of("max_tokens", low=0)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MOST_ALTERNATIVES)
    return_tokens_as_token_ids: bool | None = None


class ContentPart(Known):
    """A part of a message; only texts can be read."""

    type: str
    text: str | None = None


class CalledFunction(Known):
    """A call's function, or the one to call. arguments: a JSON object as text."""

    name: str
    arguments: str = "{}"


class ToolCall(Known):
    """A call in an earlier message of the assistant."""

    id: str | None = None
    function: CalledFunction


class MessageBody(Known):
    """A message of the chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Several[ContentPart] | None = None
    tool_calls: Several[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(Known):
    """What a tool does, and the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolDefinition(Known):
    """A tool that the reply may call."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedTool(Known):
    """The tool that the reply has to call."""

    type: Literal["function"]
    function: CalledFunction


class JSONSchema(Known):
    """A schema in a request's `response_format`."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    document: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(Known):
    """The form of the reply: text, any JSON object, or JSON that fits a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None


class TemplateSwitches(Known):
    """The switches of a template. enable_thinking: None for its own way."""

    enable_thinking: bool | None = None


class ChatBody(Writing):
    """A chat to be replied to. chat_template_kwargs: as in vLLM. reasoning_effort: "none" is no
    thought, anything else one, where the template has a switch that is not set; ignored elsewhere.

    A last message of the assistant is continued, as by vLLM's `continue_final_message`; the answer
    has the rest alone.
    """

    messages: Annotated[Several[MessageBody], Field(min_length=1)]
    max_tokens: int | None = key_of("max_tokens")
    max_completion_tokens: int | None = key_of("max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_ALTERNATIVES)
    tools: Several[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    reasoning_effort: str | None = None

    @property
    def is_call_required(self) -> bool:
        """Whether the reply has to be a call of a tool."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)


class EmbeddingBody(Body):
    """Texts whose mean hidden states are wanted."""

    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None


class TokenizeBody(Body):
    """A text to be cut into tokens, or a chat, as its prompt.

    parse_special: whether the name of a special token, alone, is that token: so clients look it up.
    """

    prompt: str | None = None
    parse_special: bool | None = None
    messages: Several[MessageBody] | None = None


class DetokenizeBody(Body):
    """Tokens to be joined."""

    tokens: Many[int]


class InspectBody(Body):
    """A text, or a chat, that is looked at: the views of `chatapp inspect` by their names.

    views: names, or names with the view's options, as {"why": {"answer": " Paris"}}.
    """

    prompt: str | None = None
    messages: Several[MessageBody] | None = None
    views: Several[str] | dict[str, dict[str, Any]]
    changes: Changes | None = None


POSTS: dict[str, type[Body]] = {
    "/completions": CompletionBody,
    "/chat/completions": ChatBody,
    "/embeddings": EmbeddingBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/inspect": InspectBody,
}
"""The requests by their paths."""

_ANSWERS = {
    "200": {"description": "The answer"},
    "400": {"description": "A mistake in the request"},
    "401": {"description": "The API key is missing or wrong"},
    "403": {"description": "This host or origin may not use the server"},
    "404": {"description": "There is no such model"},
    "413": {"description": "The request is too large"},
    "503": {"description": "Too many requests wait"},
}


def describe(gets: Iterable[str]) -> dict[str, Any]:
    """The description as JSON data. gets: the paths without a body; one may end in {name}."""
    kinds = [(kind, "validation") for kind in POSTS.values()]
    names, schemas = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for path, kind in POSTS.items():
        content = {"application/json": {"schema": names[kind, "validation"]}}
        body = {"required": True, "content": content}
        paths[f"/v1{path}"] = {"post": {"requestBody": body, "responses": _ANSWERS}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    for path in gets:
        named = {"parameters": [name]} if path.endswith("{name}") else {}
        paths[f"/v1{path}"] = {"get": {**named, "responses": _ANSWERS}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "chatapp", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }
