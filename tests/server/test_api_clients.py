"""Clients that others wrote; each test skips where its client is not installed."""

import json

import pytest
from pydantic import BaseModel, Field

openai = pytest.importorskip("openai", reason="the package openai is not installed")

CALL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def client(address):
    return openai.OpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


@pytest.fixture
def lenient(address):
    """For answers that the library's own types refuse, although OpenAI sends them: null as the
    first token's log-probability and as the reason of a part, and base64.
    """
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def test_completions(client, lenient):
    fields = {"model": "tiny", "prompt": "To be", "max_tokens": 5, "temperature": 0}
    answer = lenient.completions.create(**fields, logprobs=1, echo=True)
    assert answer.choices[0].text.startswith("To be")
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.total_tokens
    assert client.completions.create(**fields, logprobs=1).choices[0].logprobs.token_logprobs
    parts = lenient.completions.create(**fields, stream=True)
    assert "To be" + "".join(part.choices[0].text for part in parts) == answer.choices[0].text


def test_chat(client):
    fields = {"model": "tiny", "messages": [USER], "max_completion_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    content = answer.choices[0].message.content
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    parts = list(client.chat.completions.create(**fields, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == content
    assert client.chat.completions.create(**fields, tools=[CALL]).choices


class Number(BaseModel):
    value: int = Field(ge=10, le=99)


class Numbers(BaseModel):
    first: Number
    second: Number


def test_parse(client):
    """A type of the client as the form of a reply, and of a call."""
    chat = {"model": "tiny", "messages": [USER], "max_completion_tokens": 90}
    reply = client.chat.completions.parse(**chat, response_format=Numbers)
    assert isinstance(reply.choices[0].message.parsed, Numbers)
    tools = [openai.pydantic_function_tool(Numbers)]
    called = client.chat.completions.parse(**chat, tools=tools, tool_choice="required")
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Numbers)


def test_models_and_embeddings(client, lenient):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    plain = client.embeddings.create(model="tiny", input="To be", encoding_format="float")
    packed = lenient.embeddings.create(model="tiny", input="To be")
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding)


def test_errors(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="a b " * 300)
    assert "context_length_exceeded" in json.dumps(long.value.body)
    hurried = client.with_options(timeout=0.0001)
    with pytest.raises(openai.APITimeoutError):
        hurried.completions.create(model="tiny", prompt="a", n=8, max_tokens=100)
