"""The models that a run of finetune kept of its steps: whole models in the run's folder `steps`."""

from pathlib import Path

from chatapp.engine.files.model_files import has_model

STEPS_FOLDER = "steps"


def step_folder(run: Path, step: int) -> Path:
    """Where the model of a step is."""
    return run / STEPS_FOLDER / str(step)


def kept_steps(run: Path) -> list[int]:
    """The steps whose models a run kept, in order."""
    folder = run / STEPS_FOLDER
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def step_of(model: str) -> int | None:
    """The step of a model's name, such as RUN/steps/64; None for any other."""
    path = Path(model)
    return int(path.name) if path.parent.name == STEPS_FOLDER and path.name.isdecimal() else None


def step_beside(model: str, move: int) -> str | None:
    """The name of the model `move` kept steps after that of a model's name, which is a run or one
    of its steps. The run itself comes after its last step. None where there is no such model.
    """
    path = Path(model).expanduser()
    run = path if step_of(model) is None else path.parent.parent
    names = [step_folder(run, step) for step in kept_steps(run)]
    if names and has_model(run):
        names.append(run)
    place = names.index(path) + move if path in names else -1
    return str(names[place]) if 0 <= place < len(names) else None
