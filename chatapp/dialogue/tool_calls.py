"""The tools of a reply: which the model may call, how a call looks, and its result.

Invariant: only a call runs whose tool is on, which fits its schema and is allowed. The model gets
the outcome of every call.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.dialogue.tools.tool import STOPPED, Arguments, Outcome, Tool, failed, misfit_of, run
from chatapp.dialogue.writers.prompt import Writer
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.model import LanguageModel
from chatapp.prompting.messages import Call, CallPattern, InlineCalls, Requested
from chatapp.prompting.thoughts_and_calls import LLAMA

# The note on the exact value of a rounded number; the text of a reply contains only the number.
_FRACTION = re.compile(r"(?<=…) \(-?\d+/\d+\)")

_REFUSED = Outcome("refused", "error: the user did not allow this call")

Permit = Callable[[Tool, Arguments, threading.Event], bool]
Schema = Mapping[str, Any]
Choose = Callable[[str, threading.Event], Requested | None]


@dataclass(frozen=True, slots=True)
class Toolbox:
    """tools: those that a model may call, by name. permit: whether a call that needs permission may
    run. choose: the first call for a question, for a model that opens none by itself.
    """

    tools: Mapping[str, Tool]
    permit: Permit
    choose: Choose | None = None

    def constraint(self, model: LanguageModel, pattern: CallPattern) -> Constraint | None:
        """What a call may look like; see `call_constraint`."""
        return call_constraint(
            model, pattern, {name: tool.parameters for name, tool in self.tools.items()}
        )

    def call(self, requested: Requested) -> Call:
        """A call that begins."""
        return Call(requested.name, requested.arguments, STOPPED.text, "running", 0)

    def run(
        self,
        requested: Requested,
        cancel: threading.Event,
        model: LanguageModel,
        pattern: CallPattern | None,
        problem: str = "",
    ) -> tuple[Call, str]:
        """Run a call, unless there is a problem with it; return it and its part of the text.

        pattern: how the model calls tools; None if it knows no form for a result, which then is
        the reply. The text is "" where a template writes the call.
        """
        outcome = failed(problem) if problem else self.outcome(requested, cancel)
        text = result = _fitting(outcome.text, model)
        if pattern is not None:
            text = inline_result(outcome, pattern) if isinstance(pattern, InlineCalls) else ""
        call = Call(requested.name, requested.arguments, result, outcome.ending, 0, len(text))
        return call, text

    def outcome(self, requested: Requested, cancel: threading.Event) -> Outcome:
        """The outcome of a call."""
        if problem := misfit_of(self.tools, requested.name, requested.arguments):
            return failed(problem)
        tool = self.tools[requested.name]
        if tool.asks and not self.permit(tool, requested.arguments, cancel):
            return STOPPED if cancel.is_set() else _REFUSED
        return run(tool, requested.arguments, cancel)


def chooser_of(model: LanguageModel, writer: Writer, tools: Mapping[str, Tool]) -> Choose | None:
    """`Toolbox.choose` for a model; None for one that opens calls by itself."""
    if writer.tool_choice == "own":
        return None
    from chatapp.dialogue.tools.tool_choice import Chooser

    return Chooser(model, tools).choose


def out_of_reach(writer: Writer, names: Sequence[str]) -> str:
    """The sentence on the tools that a model cannot call; "" if it can call all."""
    pattern = writer.calls
    if writer.tool_choice == "scored" or not isinstance(pattern, InlineCalls):
        return ""
    others = ", ".join(name for name in names if name != pattern.tool)
    return others and (
        f"this model can call only {pattern.tool}, as {pattern.begin}…{pattern.end}; "
        f"{others} would never be called"
    )


def call_schema(pattern: CallPattern, tools: Mapping[str, Schema]) -> Schema:
    """The schema of a call as a JSON object. tools: the schemas of their arguments, by name."""
    key = "parameters" if pattern == LLAMA else "arguments"
    calls: list[Schema] = []
    for name, parameters in tools.items():
        # References count from the whole schema, in which these are only a part.
        place = f"#/anyOf/{len(calls)}/properties/{key}"
        own = json.dumps(dict(parameters)).replace('"$ref": "#', f'"$ref": "{place}')
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, key: parse_json(own)},
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls}


def call_constraint(
    model: LanguageModel, pattern: CallPattern, tools: Mapping[str, Schema]
) -> Constraint | None:
    """What follows the mark of a call: the name of a tool and arguments that fit its schema.

    None for a model or a schema that no grammar can follow, and for calls within the text.
    """
    if isinstance(pattern, InlineCalls):
        return None
    try:
        if getattr(model, "vocab_bytes", None) is None:
            return None
        whole = Constraint.of_schema(call_schema(pattern, tools))
    except ConstraintError:
        return None
    return replace(whole, after=pattern.begin, is_optional=True)


def inline_result(outcome: Outcome, pattern: InlineCalls) -> str:
    """The text after a call in the text."""
    value = _FRACTION.sub("", outcome.text.partition("\n")[0])
    return f"{value if outcome.ending == 'done' else '?'}{pattern.close}"


def _fitting(text: str, model: LanguageModel) -> str:
    """The part of a result that fits in a quarter of the window."""
    room = model.context // 4
    cut = text[: 8 * room]
    while len(model.tokenizer.encode(cut, begins=False)) > room:
        cut = cut[: len(cut) * 3 // 4]
    return text if len(cut) == len(text) else f"{cut}\n[cut to fit the model's window]"
