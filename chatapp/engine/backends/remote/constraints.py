"""Constraints at servers: a schema is sent with the request, and every reply is checked here."""

import json
from dataclasses import replace

from chatapp.engine.backends.remote.http import Body
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.validation import misfit
from chatapp.engine.events import THINKING, Finished
from chatapp.engine.model import Request


def ending_with_constraint(name: str, request: Request) -> Request:
    """A request that ends where its constraint does. Raises ConstraintError for a pattern or a
    grammar, which servers do not take."""
    constraint = request.constraint
    if constraint is None or constraint.is_optional:
        return request
    if constraint.kind != "schema":
        raise ConstraintError(
            f"{name}: servers take a JSON schema, but no {constraint.kind}; that needs a model on "
            "this machine"
        )
    return replace(request, stop=(), sampling=replace(request.sampling, max_repeats=0))


def response_format(constraint: Constraint | None) -> Body:
    """The field of OpenAI's protocol for a schema."""
    if constraint is None or constraint.is_optional:
        return {}
    schema = {"name": "answer", "schema": json.loads(constraint.source), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def checked(finished: Finished, text: str, constraint: Constraint) -> Finished:
    """The end of a reply, with whether it fits: not every server heeds the schema."""
    why_not = misfit(text.rpartition(THINKING[1])[2].strip(), constraint.source)
    if finished.reason != "stop":
        why_not = why_not or f"it ended with {finished.reason!r}"
    message = f"the reply does not fit its schema: {why_not}" if why_not else ""
    return replace(finished, valid=not why_not, message=finished.message or message)
