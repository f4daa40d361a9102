"""Answers to prompts in turns of a chat: exact likelihoods, what is generated, what is sent."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ScriptedModel
from tiny import END

from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import text_of
from chatapp.rows.examples import Pool
from chatapp.tasks.answering import CONTENT_FREE, Answerer
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.select import Select, build_selector

LABELS = ("User", "Assistant", "no", "yes, said he")
TEMPLATE = ChatTemplate(
    "{% for m in messages %}{{ m.role + '\\n' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}",
    "test",
    (END,),
    {"eos_token": END},
)
PROMPT = PromptFile(
    path=Path("task.toml"),
    instruction=f"Say which {END}.",
    input_prefix="Text: ",
    labels=LABELS,
    metrics=("accuracy",),
    pool=Pool(["a red fox", "the old mill"], ["User", "no"]),
    select=Select(k=2),
    style="turns",
)


def answerer(model, prompt, **options):
    selector = build_selector(prompt.pool, prompt.select)
    return Answerer(model, prompt, selector, template=TEMPLATE, **options)


def turn_ids(model, *turns):
    """The tokens of closed turns, and of what announces the reply."""
    encode, end = model.tokenizer.encode, model.tokenizer.end_id
    ids = [[*encode(f"{role}\n"), *encode(text), end] for role, text in turns]
    return [*(id for turn in ids for id in turn), *encode("assistant\n")]


def chat(query):
    return (
        ("system", f"Say which {END}."),
        *(("user", "Text: a red fox"), ("assistant", "User")),
        *(("user", "Text: the old mill"), ("assistant", "no")),
        ("user", f"Text: {query}".strip()),
    )


@pytest.mark.parametrize("scoring", ["direct", "calibrated"])
def test_the_likelihoods_are_those_of_transformers(gpt2, log_probs, scoring):
    asking = answerer(gpt2, replace(PROMPT, scoring=scoring))
    (answer,) = asking.answer([asking.prepare("two birds")])
    assert answer.likelihoods
    found = [answer.likelihoods.direct, *answer.likelihoods.content_free]
    texts = ["two birds", *(CONTENT_FREE if scoring == "calibrated" else ())]
    for text, likelihoods in zip(texts, found, strict=True):
        ids = turn_ids(gpt2, *chat(text))
        for label in LABELS:
            expected = math.fsum(log_probs(ids, gpt2.tokenizer.encode(label)))
            assert likelihoods[label] == pytest.approx(expected, abs=1e-4)
    assert answer.prompt_tokens == len(turn_ids(gpt2, *chat("two birds")))
    assert answer.output in LABELS


def test_a_label_that_begins_another_is_closed_by_the_end_of_its_turn(gpt2, log_probs):
    asking = answerer(gpt2, replace(PROMPT, labels=("no", "now"), pool=Pool([], [])))
    encode = gpt2.tokenizer.encode
    assert asking.label_tokens == {"no": len(encode("no")) + 1, "now": len(encode("now")) + 1}
    (answer,) = asking.answer([asking.prepare("x")])
    assert answer.likelihoods
    ids = turn_ids(gpt2, ("system", f"Say which {END}."), ("user", "Text: x"))
    expected = math.fsum(log_probs(ids, [*encode("no"), gpt2.tokenizer.end_id]))
    assert answer.likelihoods.direct["no"] == pytest.approx(expected, abs=1e-4)


def test_what_does_not_fit_is_dropped_in_whole_turns(gpt2):
    asking = answerer(gpt2, PROMPT)
    whole = asking.prepare("two birds")
    room = len(turn_ids(gpt2, *chat("two birds")))
    gpt2.context = room  # without room for the label
    cut = answerer(gpt2, PROMPT).prepare("two birds")
    assert [each.index for each in whole.examples] == [0, 1]
    assert ([each.index for each in cut.examples], [each.index for each in cut.dropped]) == (
        [0],
        [1],
    )
    assert "the old mill" not in text_of(cut.segments)


def test_what_the_model_puts_first_is_not_put_twice(gpt2):
    template = replace(TEMPLATE, source="{{ eos_token }}" + TEMPLATE.source)
    asking = Answerer(gpt2, PROMPT, None, template=template)
    assert text_of(asking.prepare("x").segments).startswith(f"{END}system")
    gpt2.start = [gpt2.tokenizer.end_id]
    assert text_of(asking.prepare("x").segments).startswith("system")


def test_a_generated_answer_ends_with_its_turn():
    model = ScriptedModel(["A bird."], special=["</s>"])
    template = ChatTemplate(TEMPLATE.source, "test", ("</s>",), {"eos_token": "</s>"})
    prompt = replace(PROMPT, labels=(), metrics=("exact_match",), stop=("\n",))
    (answer,) = (asking := Answerer(model, prompt, None, template=template)).answer(
        [asking.prepare("two birds")]
    )
    assert answer.output == "A bird."
    assert model.stops == [("\n", "</s>")]
    assert model.prompts[0].endswith("user\nText: two birds</s>assistant\n")


class Served(ScriptedModel):
    """A server that writes turns itself."""

    sent: Sequence[Mapping[str, str]] = ()

    def generate(self, request):
        self.sent = request.messages
        return super().generate(request)


def test_a_server_is_sent_the_turns():
    model = Served(["A bird."], special=["x"])
    model.takes_messages = True
    prompt = replace(PROMPT, labels=(), metrics=("exact_match",))
    asking = answerer(model, prompt)
    (answer,) = asking.answer([asking.prepare("two birds")])
    assert answer.output == "A bird."
    assert model.sent == [{"role": role, "content": text} for role, text in chat("two birds")]
