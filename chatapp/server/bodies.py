"""The requests of OpenAI's protocol that this server reads, as pydantic models, and the OpenAPI
description made of them.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from chatapp import __version__
from chatapp.common.parameters import PARAMETERS
from chatapp.common.validation import key_of, sampling_model

MOST_CHOICES = 16
MOST_ALTERNATIVES = 20


class Body(BaseModel):
    """The fields of every request."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None


class StreamOptions(BaseModel):
    """include_usage: a last chunk with the numbers of tokens."""

    include_usage: bool | None = None


class StructuredOutputs(BaseModel):
    """The form of a reply, as vLLM has it: a schema, a regular expression, or a Lark grammar.

    spaced: a space or line breaks may precede it; a chat's reply loses them.
    """

    model_config = ConfigDict(populate_by_name=True)

    document: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    grammar: str | None = None
    spaced: bool = False


class Writing(sampling_model("max_tokens"), Body):  # type: ignore[misc]  # made of a table
    """The fields that completions and chat have in common.

    What is not set is as the user's settings and the model's authors have it. top_k: -1 is off, as
    in vLLM. seed: may be negative.
    """

    model_config = ConfigDict(extra="ignore")

    structured_outputs: StructuredOutputs | None = None

    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = key_of("top_k", low=-1, off=None)
    seed: int | None = key_of("seed", low=-int(PARAMETERS["seed"].high))

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

    prompt: str | list[str] | list[int] | list[list[int]] = ""
    max_tokens: int | None = key_of("max_tokens", low=0)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MOST_ALTERNATIVES)
    return_tokens_as_token_ids: bool | None = None


class Part(BaseModel):
    """A part of a message; only texts can be read."""

    type: str
    text: str | None = None


class Function(BaseModel):
    """A call's function. arguments: a JSON object as text."""

    name: str
    arguments: str = "{}"


class ToolCall(BaseModel):
    """A call in an earlier message of the assistant."""

    id: str | None = None
    function: Function


class MessageBody(BaseModel):
    """A message of the chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(BaseModel):
    """What a tool does, and the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolDefinition(BaseModel):
    """A tool that the reply may call."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(BaseModel):
    """A function of the request's tools."""

    name: str


class NamedTool(BaseModel):
    """The tool that the reply has to call."""

    type: Literal["function"]
    function: FunctionName


class JSONSchema(BaseModel):
    """A schema in a request's `response_format`."""

    model_config = ConfigDict(populate_by_name=True)

    document: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(BaseModel):
    """The form of the reply: text, any JSON object, or JSON that fits a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None


class TemplateSwitches(BaseModel):
    """What a template may be told. enable_thinking: None for its own way."""

    enable_thinking: bool | None = None


class ChatBody(Writing):
    """A chat to be replied to. chat_template_kwargs: as in vLLM."""

    messages: Annotated[list[MessageBody], Field(min_length=1)]
    max_tokens: int | None = key_of("max_tokens")
    max_completion_tokens: int | None = key_of("max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_ALTERNATIVES)
    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: TemplateSwitches | None = None

    @property
    def is_call_required(self) -> bool:
        """Whether the reply has to be a call of a tool."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)


class EmbeddingBody(Body):
    """Texts whose mean hidden states are wanted."""

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None


class TokenizeBody(Body):
    """A text to be cut into tokens, or a chat, as its prompt.

    parse_special: whether the name of a special token, alone, is that token: so clients look it up.
    """

    prompt: str | None = None
    parse_special: bool | None = None
    messages: list[MessageBody] | None = None


class DetokenizeBody(Body):
    """Tokens to be joined."""

    tokens: list[int]


POSTS: dict[str, type[Body]] = {
    "/completions": CompletionBody,
    "/chat/completions": ChatBody,
    "/embeddings": EmbeddingBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
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
