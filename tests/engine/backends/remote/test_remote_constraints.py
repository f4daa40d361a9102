"""A schema at a server: it is sent, and what comes is checked here."""

import json

import pytest
from completions_server import replied, said

from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.events import Finished
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def end(model, constraint, *, as_chat):
    messages = [{"role": "user", "content": "hi"}] if as_chat else ()
    ids = () if as_chat else model.tokenizer.encode("hi")
    *_, last = model.generate(
        Request(ids, Sampling(), ("}",), messages=messages, constraint=constraint)
    )
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("as_chat", [True, False])
@pytest.mark.parametrize(
    ("text", "why_not"),
    [('{"a": 1}', ""), ('{"a": "x"}', "at a: 'x' is not of type"), ("Sure!", "it is no JSON")],
)
def test_a_schema_is_sent_and_the_reply_is_checked(server, as_chat, text, why_not):
    server.stream = (replied if as_chat else said)(text[:3], text[3:])
    model = load_model(server.url)
    finished = end(model, Constraint.of_schema(SCHEMA), as_chat=as_chat)
    sent = server.requests[-1]["response_format"]
    assert sent["type"] == "json_schema"
    assert json.loads(json.dumps(sent["json_schema"]["schema"])) == SCHEMA
    assert "stop" not in server.requests[-1]
    assert finished.valid is not bool(why_not)
    assert why_not in finished.message


def test_a_reply_that_a_server_cuts_off_is_not_valid(server):
    server.stream = replied('{"a": 1}', reason="length")
    finished = end(load_model(server.url), Constraint.of_schema(SCHEMA), as_chat=True)
    assert finished.valid is False
    assert "it ended with 'context'" in finished.message


def test_servers_take_no_pattern(server):
    with pytest.raises(ConstraintError, match="servers take a JSON schema, but no pattern"):
        end(load_model(server.url), Constraint.of_pattern("a"), as_chat=True)
    assert server.requests == []
