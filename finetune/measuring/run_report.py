"""The report of a run: its first lines, and at its end report.md and loss.png."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatapp.common.foreign import one_line
from chatapp.common.userfiles import whole_file, write_whole
from finetune.data.preparation import HELD_OUT
from finetune.objectives.objective import Objective
from finetune.training.adapters import LOW_RANK, trained_parameters
from finetune.training.building import steps_of_run, steps_per_epoch, too_few
from finetune.training.display import duration, memory
from finetune.training.record import CARD_FILE, LOG_FILE, read_log
from finetune.training.setup import RunSetup, processes

REPORT_FILE = "report.md"
PLOT_FILE = "loss.png"
_HELD_OUT_LOSS = {"eval_loss": "held-out loss"}


def header(setup: RunSetup) -> list[str]:
    """A summary of the planned training, in a few lines."""
    config, data = setup.config, setup.data
    settings = config.train
    trained = trained_parameters(setup.model)
    total = sum(parameter.numel() for parameter in setup.model.parameters())
    head = "a linear head" if setup.objective.added else ""
    template = f"template {setup.template.name}" if setup.template else ""
    template = ", ".join(filter(None, (template, head)))
    packed = f" in {len(data.train):,} rows" if len(data.train) < data.examples else ""
    held_out = ", ".join(
        f"{len(rows):,} {'held out' if name == HELD_OUT else f'of cluster {name}'}"
        for name, rows in data.held_out.items()
    )
    per_step = data.examples / max(1, steps_per_epoch(settings, len(data.train)))
    lines = [
        f"{config.model}: method {settings.method}, {trained:,} of {total:,} parameters trained, "
        f"{template}",
        f"{data.examples:,} examples{packed}, {sum(data.train.lengths):,} tokens; measured on "
        f"{held_out or 'nothing'}",
        *data.report.lines(),
        setup.objective.summary(data),
        f"about {per_step:.0f} examples a step: train.batch_size {settings.batch_size} rows, "
        f"train.accumulate {settings.accumulate}, processes {processes()}; products in "
        f"{setup.precision} on {setup.device}",
    ]
    if warning := too_few(steps_of_run(settings, len(data.train))):
        lines.append(warning)
    return lines


def write_report(
    folder: Path,
    lines: Sequence[str],
    objective: Objective,
    record: dict[str, Any],
    result: dict[str, Any],
) -> None:
    """Write the report of the run in `folder`, from its log. lines: of `header`."""
    rows = read_log(folder / LOG_FILE)
    plotted = _plot(rows, objective, folder / PLOT_FILE)
    parts = [f"# {folder.name}", *(f"- {_plain(text)}" for text in lines), ""]
    metric = record["config"]["train"]["metric_for_best_model"].replace("_", " ")
    parts += ["## Result", "", *_result(result, metric)]
    parts += ["", "## Course", ""]
    parts += [f"![the run over its steps]({PLOT_FILE})", ""] if plotted else []
    parts += _course(rows, objective)
    samples = [row for row in rows if "samples" in row]
    if samples:
        parts += ["", "## Replies to fixed prompts", ""]
        parts += _table(
            ("step", "prompt", "reply"),
            [
                (f"{row['step']}", _plain(sample["prompt"]), _plain(sample["reply"]))
                for row in (samples[0], samples[-1])
                for sample in row["samples"]
            ],
        )
    parts += ["", "## Record", ""]
    parts += _table(
        ("", ""),
        [
            *((f"data: {_plain(name)}", digest[:16]) for name, digest in record["data"].items()),
            ("weights begun with", record["weights"][:16]),
            *record["versions"].items(),
        ],
    )
    write_whole(folder / REPORT_FILE, "\n".join(parts) + "\n")


def write_card(folder: Path, record: dict[str, Any], result: dict[str, Any]) -> None:
    """Write the model card of a run, which the hub shows: from what it was made, how, how good.

    It names no path of this machine.
    """
    config = record["config"]
    base, train, data = Path(config["model"]).name, config["train"], config["data"]["train"]
    is_hub_id = config["model"].count("/") == 1 and not Path(config["model"]).exists()
    is_adapter = train["method"] in LOW_RANK
    head = config["head"]["task"] if config["head"] else ""
    files = ", ".join(_plain(Path(source["path"]).name) for source in data)
    learned = f"a linear head, {head}" if head else config["objective"]["kind"]
    lines = [
        "---",
        f"library_name: {'peft' if is_adapter else 'transformers'}",
        *([f"base_model: {config['model']}"] if is_hub_id else []),
        "tags: [chatapp]",
        "---",
        f"# {_plain(folder.name)}",
        "",
        f"{_plain(base)}, trained further with chatapp: objective {learned}, method "
        f"{train['method']}, {result['steps']:,} steps of the learning rate "
        f"{train['learning_rate']:g}, on {files}.",
        "",
        *_result(result, train["metric_for_best_model"].replace("_", " ")),
    ]
    write_whole(folder / CARD_FILE, "\n".join(lines) + "\n")


def _result(result: dict[str, Any], metric: str) -> list[str]:
    """The result of a run as a table. metric: chose the best step."""
    figures = [
        (key.removeprefix("eval_").replace("_", " ") + ", held out", f"{value:.4f}")
        for key, value in result.items()
        if key.startswith("eval_")
    ]
    return _table(
        ("", ""),
        [
            ("steps", f"{result['steps']:,}"),
            (f"kept, by held-out {metric}", f"step {result['best_step']:,}"),
            ("time", duration(result["seconds"])),
            ("peak memory", memory(result["peak_memory_bytes"])),
            *([("lost and gained", result["general"]["words"])] if "general" in result else []),
            *figures,
        ],
    )


def _course(rows: Sequence[dict[str, Any]], objective: Objective) -> list[str]:
    """The evaluations in a log, each with the figures of its step."""
    names = objective.names
    shown = {key: title for key, title in objective.figures.items() if key in names}
    train = {row["step"]: row for row in rows if names[0] in row}
    evaluations = [row for row in rows if "eval_loss" in row]
    keys = list(dict.fromkeys(key for row in evaluations for key in row if key.startswith("eval_")))
    return _table(
        ("step", *shown.values(), *(_held_out(key, objective) for key in keys)),
        [
            (
                f"{row['step']}",
                *(_number(train.get(row["step"], {}).get(key)) for key in shown),
                *(_number(row.get(key)) for key in keys),
            )
            for row in evaluations
        ],
    )


def _held_out(key: str, objective: Objective) -> str:
    """The label of an evaluation's key."""
    name = key.removeprefix("eval_")
    return f"held-out {objective.figures.get(name, name.replace('_', ' '))}"


def _plot(rows: Sequence[dict[str, Any]], objective: Objective, path: Path) -> bool:
    """Draw the objective's curves, and below them the length of replies; return whether there are
    any.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figures = {**_HELD_OUT_LOSS, **objective.figures}
    held_out_curves = [key for key in objective.curves if key.startswith("eval_")] or [
        *_HELD_OUT_LOSS
    ]
    panels = [[*objective.curves, *held_out_curves], ["length"]]
    panels = [[key for key in dict.fromkeys(keys) if key in figures] for keys in panels]
    panels = [keys for keys in panels if keys]
    figure = Figure(figsize=(7, 2 + 2 * len(panels)), layout="constrained")
    for number, keys in enumerate(panels, 1):
        unit = "nats a token" if "l2" in keys else ""
        axes = figure.add_subplot(len(panels), 1, number, xlabel="step", ylabel=unit)
        for key in keys:
            points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
            if points:
                marker = "o" if len(points) < 30 else ""
                axes.plot(*zip(*points, strict=True), label=figures[key], marker=marker)
        axes.legend()
        axes.grid(alpha=0.3)
    with whole_file(path) as draft:
        figure.savefig(draft, format="png", dpi=120)
    return True


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _plain(text: str) -> str:
    """Foreign text for a cell of a Markdown table."""
    return "".join(
        "\\" + character if character in "\\|*_`<>[]#" else character
        for character in one_line(text)
    )
