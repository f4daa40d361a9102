"""A lesson as a Jupyter notebook: its texts, and code that shows what they say.

The code uses the door for Python alone, so that a reader can change it. What it shows is what the
lesson's screen shows: the same prompts, sampling parameters and parts switched off.
"""

import re
from typing import Any

from chatapp.dialogue.lessons.lesson import Lesson, Step

_FIRST = (
    "Each step draws below it what the program's screen shows at that step. Where the text names a "
    "key or a tab, it means that screen: `chatapp lesson {name}`."
)

_VIEWS = {"step": "next", "heads": "heads", "layers": "layers", "prompt": "prompt"}


def notebook_of(lesson: Lesson) -> dict[str, Any]:
    """The notebook as JSON data, in Jupyter's format 4.5."""
    cells = [_words(f"# {lesson.title}\n\n{_FIRST.format(name=lesson.name)}")]
    setup = ["import chatapp"]
    if lesson.teach:
        setup += ["import finetune", "from contextlib import chdir", "from pathlib import Path"]
        setup += ["from tempfile import mkdtemp"]
    if lesson.teach or any(step.prompt_file for step in lesson.steps):
        setup += ["from chatapp.dialogue.lessons.lesson import find_lesson", ""]
        setup += [f"lesson = find_lesson({lesson.name!r})"]
    cells.append(_code(setup))
    known: set[str] = set()
    for step in lesson.steps:
        guess = f"\n\n**Guess first:** {step.predict}" if step.predict else ""
        cells.append(_words(f"## {step.title}\n\n{step.text.strip()}{guess}"))
        if not step.input:
            continue
        if (name := lesson.model_of(step)) not in known:
            known.add(name)
            cells.append(_code(_loading(lesson, name)))
        cells.append(_code(_step(lesson, step)))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _words(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _code(lines: list[str]) -> dict[str, Any]:
    source = "\n".join(lines)
    empty: dict[str, Any] = {"execution_count": None, "outputs": []}
    return {"cell_type": "code", "metadata": {}, "source": source, **empty}


def _loading(lesson: Lesson, name: str) -> list[str]:
    """Code that gives a model its variable; one that the lesson teaches is taught."""
    if name not in lesson.teach:
        return [f"{_variable(name)} = chatapp.load({name!r})"]
    return [
        f"config = Path(lesson.teach[{name!r}])",
        "with chdir(config.parent):  # its rows are beside it",
        '    run = finetune.train(config.name, f"output={mkdtemp()}/run")',
        f"{_variable(name)} = chatapp.load(str(run))",
    ]


def _step(lesson: Lesson, step: Step) -> list[str]:
    """Code that shows a step."""
    model = _variable(lesson.model_of(step))
    settings = "".join(f", {key}={value!r}" for key, value in _settings(lesson, step).items())
    lines, shown = [], []
    if step.prompt is not None:
        if step.reply:
            cache = "" if step.cache else ", cache=False"
            lines.append(f"reply = {model}.complete({step.prompt!r}{settings}{cache})")
        lines.append(f"read = {model}.inspect({step.prompt!r}{settings})")
        whole = "reply.inspection" if step.reply else "read"
    else:
        file = f"prompt=lesson.file({step.prompt_file!r})" if step.prompt_file else ""
        lines.append(f"chat = {model}.chat({(file + settings).removeprefix(', ')})")
        lines.append(f"read = chat.inspect({step.message!r})")
        if step.reply:
            lines += [f"reply = chat.say({step.message!r})", "reply.finish()"]
        whole = "chat.inspect()" if step.reply else "read"
    shown += ["reply"] if step.reply else []
    token = "" if step.token is None else f"token={step.token!r}"
    if step.view == "tokens":
        shown.append(f"{whole}.tokens()")
    elif step.view == "attention":
        layer, _, head = (step.head or "").partition(".")
        place = f"layer={int(layer)}, head={int(head)}" if head else ""
        shown.append(f"read.attention({', '.join(filter(None, (place, token)))})")
    elif step.view in ("why", "layers"):
        shown.append(f"read.{step.view}({token})")
    elif step.view is not None:
        shown.append(f"read.{_VIEWS[step.view]}()")
    if any(not other.cache for other in lesson.steps) and step.reply:
        shown.append('f"{reply.finished.seconds:.2f} seconds"')
    if shown:
        lines.append(f"display({', '.join(shown)})")
    if step.off:
        parts = ", ".join(repr(part) for part in re.split(r"[\s,]+", step.off.strip()))
        lines = [f"with {model}.changed({parts}):", *(f"    {line}" for line in lines)]
    return lines


def _settings(lesson: Lesson, step: Step) -> dict[str, Any]:
    """The sampling parameters of a step that differ from what a model's authors may say."""
    sampling = lesson.sampling_of(step)
    names = ["temperature", *(["top_p"] if sampling.temperature else []), "repetition_penalty"]
    return {
        name: getattr(sampling, name) for name in dict.fromkeys([*lesson.settings_of(step), *names])
    }


def _variable(name: str) -> str:
    """A name of Python for a model."""
    return name if name.isidentifier() else "model_" + re.sub(r"\W", "_", name)
