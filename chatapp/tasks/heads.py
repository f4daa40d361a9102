"""Labels from the head that a run of finetune added to a model, instead of likelihoods.

Invariant: a head reads only the input, as in training: no instruction, no demonstrations.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from chatapp.engine.backends.head import HEAD_FILE, HeadModel, HeadSpec
from chatapp.engine.model import LanguageModel
from chatapp.prompting.examples import Query, item_of
from chatapp.prompting.messages import Segment
from chatapp.tasks.answering import Answer, Question
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.label_scores import best


def head_of(model: LanguageModel) -> HeadModel | None:
    """The label head stored with a model's files, or None.

    Raises ModelError.
    """
    if model.files is None or not (model.files.path / HEAD_FILE).is_file():
        return None
    spec = HeadSpec.load(model.files.path)
    if spec.task != "classification" or not spec.labels:
        return None
    return HeadModel.load(model.name, model.files)


class HeadAnswerer:
    """Answers with the labels of a prompt file, chosen by a head that has the same ones.

    Raises PromptError when the labels differ.
    """

    def __init__(self, head: HeadModel, prompt: PromptFile) -> None:
        if set(head.spec.labels) != set(prompt.labels):
            raise prompt.error(
                "labels",
                f"are not those of the head of {head.name}: {', '.join(head.spec.labels)}",
            )
        self._head, self._prompt = head, prompt

    def prepare(self, query: Query) -> Question:
        """The question of an input, as the head reads it."""
        item = item_of(query)
        return Question(item, [Segment("user", item.input.strip())], [], [])

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer a few questions."""
        return [self._answer(question) for question in questions]

    def answers(self, questions: Iterable[Question]) -> Iterator[list[Answer]]:
        """Answer questions in their order, one at a time."""
        return (self.answer([question]) for question in questions)

    def _answer(self, question: Question) -> Answer:
        started = time.perf_counter()
        sequences = self._head.encoder.sequences([question.input])
        (shares,) = self._head.outputs([sequences])
        by_label = dict(zip(self._head.spec.labels, shares, strict=True))
        probabilities = {label: by_label[label] for label in self._prompt.labels}
        seconds = time.perf_counter() - started
        read = len(sequences[0])
        return Answer(question, best(probabilities), probabilities, None, None, read, seconds)
