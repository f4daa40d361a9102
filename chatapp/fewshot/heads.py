"""Labels from the head that a run of finetune put on a model, in the place of likelihoods.

Keep: a head reads the input alone, as it was taught to and as `finetune predict` gives it one: no
instruction, no demonstrations.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from chatapp.engine.backends.head import HEAD_FILE, HeadModel, HeadSpec, framed
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import LanguageModel
from chatapp.fewshot.answering import Answer, Question
from chatapp.fewshot.label_scores import best, softmax
from chatapp.models.resolving import model_folder
from chatapp.prompting.files.promptfile import PromptFile
from chatapp.prompting.messages import Segment


def head_of(model: LanguageModel) -> HeadModel | None:
    """The head with labels of texts that stands beside a model's files; None of other models.

    Raises ModelError.
    """
    if model.folder is None or not (model.folder / HEAD_FILE).is_file():
        return None
    spec = HeadSpec.load(model.folder)
    if spec.task != "classification" or not spec.labels:
        return None
    return HeadModel.load(model.name, ModelFiles.read(model.folder, model_folder))


class HeadAnswerer:
    """The labels of a prompt file, chosen by a head that has the same ones.

    Raises PromptError when it has others.
    """

    def __init__(self, head: HeadModel, prompt: PromptFile) -> None:
        if set(head.spec.labels) != set(prompt.labels):
            raise prompt.error(
                "labels",
                f"are not those of the head of {head.name}: {', '.join(head.spec.labels)}",
            )
        self._head, self._prompt = head, prompt

    def prepare(self, text: str) -> Question:
        """An input as the head reads it."""
        return Question(text, [Segment("user", text.strip())], [], [])

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer a few questions."""
        return [self._answer(question) for question in questions]

    def answers(self, questions: Iterable[Question]) -> Iterator[list[Answer]]:
        """Answer questions in their order, one at a time."""
        return (self.answer([question]) for question in questions)

    def _answer(self, question: Question) -> Answer:
        started = time.perf_counter()
        ids = self._ids(question.input.strip())
        outputs = self._head.outputs(ids)
        by_label = softmax(dict(zip(self._head.spec.labels, outputs, strict=True)))
        shares = {label: by_label[label] for label in self._prompt.labels}
        seconds = time.perf_counter() - started
        return Answer(question, best(shares), shares, None, None, len(ids), seconds)

    def _ids(self, text: str) -> tuple[int, ...]:
        """What the head reads of a text; one that is too long is cut at its end."""
        head, end = self._head, self._head.tokenizer.end_id
        frame = len(framed([[]], [], head.start, end))
        ids = head.tokenizer.encode(text)[: head.context + len(head.start) - frame]
        return framed([ids], [], head.start, end)
