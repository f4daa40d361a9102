"""The pages of the site: the guides where they lie in the repository, the lessons as they are
shipped, and the reference of the door for Python.

A page keeps its path in the repository, so links between guides are checked as they are written; on
the site it has a short address.
"""

import ast
import html
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
GUIDES = {
    "README.md": "index",
    "CHANGELOG.md": "changes",
    ".github/CONTRIBUTING.md": "contributing",
    "finetune/README.md": "teach",
    "tests/benchmarks/RESULTS.md": "measurements",
    "chatapp/bundled/README.md": "bundled-model",
}
"""The address of each page outside chatapp/docs, by its path in the repository."""

LESSONS = ROOT / "chatapp" / "dialogue" / "lessons" / "shipped"

REFERENCE = """# Reference

What `import chatapp` and `import finetune` offer. [The guide](chatapp/docs/python.md) uses it.

::: chatapp.open_model
    options:
      members:
        - load
        - open_chat
        - prompt_file
        - OpenModel
        - Reply
        - OpenChat
        - Completion
        - Inspection
        - OpenPrompt
        - Evaluation

::: finetune
    options: {members: [check, train, evaluate, predict]}
"""


def on_config(config: Any) -> Any:
    """Put the lessons below their guide."""
    (lessons,) = (entry["Lessons"] for entry in config.nav if "Lessons" in entry)
    lessons += [page for page, _ in lesson_pages()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add every page, and the pictures that they show."""
    guides = GUIDES | {
        path.relative_to(ROOT).as_posix(): path.stem
        for path in (ROOT / "chatapp" / "docs").glob("*.md")
    }
    for path, address in guides.items():
        add(files, config, path, address, abs_src_path=str(ROOT / path))
    for path in sorted((ROOT / ".assets").iterdir()):
        name = path.relative_to(ROOT).as_posix()
        add(files, config, name, f"pictures/{path.name}", abs_src_path=str(path))
    for path, content in lesson_pages():
        add(files, config, path, path.removesuffix(".md"), content=content)
    add(files, config, "reference.md", "reference", content=REFERENCE)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page as Python's Markdown wants it: what stands behind the language of a block is its
    title (`run` is a mark for the tests), commands without a prompt are a shell's, and what belongs
    to an entry of a list is indented by 4 and ends with an empty line.
    """
    markdown = re.sub(r"^( *```)console\b", r"\1sh", markdown, flags=re.M)
    markdown = re.sub(r"^( *```\w+) run$", r"\1", markdown, flags=re.M)
    markdown = re.sub(r"^( *```\w+) ([\w.-]+)$", r'\1 title="\2"', markdown, flags=re.M)
    in_list = re.compile(r"^( {2,3})```.*?^\1```$", re.M | re.S)
    markdown = in_list.sub(lambda block: indent(block[0], " " * (4 - len(block[1]))), markdown)
    markdown = re.sub(r"(?<=\n\n) {2,3}(?=\S)", "    ", markdown)
    return re.sub(r"(\n\n    \S.*\n)(?=- )", r"\1\n", markdown)


def add(files: Files, config: Any, path: str, address: str, **source: str) -> None:
    """Add a file at an address of the site; a page's has no suffix."""
    file = File.generated(config, path, **source)
    if path.endswith(".md"):
        address = "index.html" if address == "index" else f"{address}/index.html"
    file.dest_uri = address
    file.inclusion = InclusionLevel.INCLUDED  # also below a folder whose name begins with a dot
    file.url = address.removesuffix("index.html") or "./"
    files.append(file)


def lesson_pages() -> Iterator[tuple[str, str]]:
    """The path and the Markdown of each lesson that is shipped, in the order of the program."""
    code = LESSONS.with_name("lesson.py").read_text(encoding="utf-8")
    (names,) = re.findall(r"^NAMES = (\(.*?\))$", code, re.MULTILINE | re.DOTALL)
    for name in ast.literal_eval(names):
        lesson = tomllib.loads((LESSONS / f"{name}.toml").read_text(encoding="utf-8"))
        yield f"lessons/{name}.md", lesson_page(name, lesson)


def lesson_page(name: str, lesson: dict[str, Any]) -> str:
    """A lesson as Markdown: its steps, with the text that the model reads and the question."""
    parts = [
        f"# {escaped(lesson['title'])}",
        "A lesson for a room or for one: in the terminal, the model answers at each step.",
        f"```console\nchatapp lesson {name}\n```",
    ]
    before = None
    for step in lesson["step"]:
        parts += [f"## {escaped(step['title'])}", escaped(step.get("text", "").strip())]
        given = step.get("message") or step.get("prompt")
        if given and given != before:
            what = "The message" if step.get("message") else "The model reads"
            parts.append(f"{what}:\n\n````text\n{given}\n````")
        before = given
        if "off" in step:
            parts.append(f"Switched off: `{step['off']}`")
        if "predict" in step:
            parts.append(f"*{escaped(step['predict'])}*")
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """A text in which no mark is Markdown or HTML, and whose lines stay lines."""
    plain = re.sub(r"([\\`*_\[\]#])", r"\\\1", html.escape(text, quote=False))
    return re.sub(r"(?<!\n)\n(?!\n)", "  \n", plain)
