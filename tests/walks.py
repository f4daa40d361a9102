"""The functions that run for one thing a user does: `python tests/walks.py WALK [--calls]`.

WALK: ask (`chatapp ask hello`), message (one in the chat, from its key to its reply), api (one
request for a chat), row (`chatapp run` of one row) or step (`finetune train` of one row and one
step). It prints how many functions in how many files of chatapp and finetune run, of how many that
are loaded, and with --calls also each of them, in the order of their first call. Bodies of modules
and classes, and lambdas and comprehensions, are not counted.
"""

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
_IS_FUNCTION = 1
"""Of a code object's flags: its variables are fast ones, unlike those of a module or a class."""

Calls = dict[tuple[str, str], None]
"""File and qualified name of each function, in the order of their first call."""


@contextmanager
def recording(calls: Calls) -> Iterator[None]:
    """Collect the calls of all threads that start meanwhile, and of this one."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & _IS_FUNCTION or code.co_name.startswith("<"):
            return
        with suppress(ValueError):
            file = Path(code.co_filename).relative_to(ROOT)
            if file.parts[0] in ("chatapp", "finetune"):
                calls[str(file), code.co_qualname] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk_command(calls: Calls, *arguments: str) -> None:
    """A command from its arguments to its output."""
    from chatapp.cli import main

    sys.argv = ["chatapp", *arguments]
    with redirect_stdout(StringIO()), suppress(SystemExit), recording(calls):
        main()


def walk_message(calls: Calls) -> None:
    """A message in the chat whose model is loaded."""
    from chatapp.common.settings import load_settings
    from chatapp.dialogue.store import Store
    from chatapp.tui.app import ChatApp
    from chatapp.tui.chat.screen import ChatScreen

    async def play() -> None:
        with closing(Store(Path(os.environ["XDG_DATA_HOME"]) / "chats.db")) as store:
            app = ChatApp(load_settings(), store=store)
            async with app.run_test(size=(100, 30)) as pilot:
                screen = app.screen
                assert isinstance(screen, ChatScreen)
                while screen.conversation.session is None:
                    await pilot.pause(0.05)
                await pilot.press(*"hello")
                with recording(calls):
                    await pilot.press("enter")
                    while screen.conversation.turn is not None:
                        await pilot.pause(0.05)

    asyncio.run(play())


def walk_api(calls: Calls) -> None:
    """One request for a chat to a server."""
    from api_server import serving

    from chatapp.engine.models.loading import load_model

    async def play() -> None:
        with recording(calls):
            async with serving(load_model("bundled")) as client:
                calls.clear()
                messages = [{"role": "user", "content": "hello"}]
                await client.post(
                    "/v1/chat/completions", {"messages": messages, "max_tokens": 8, "seed": 1}
                )

    asyncio.run(play())


def walk_step(calls: Calls, folder: Path) -> None:
    """One row and one step of a training, from its configuration to the finished run."""
    from rich.console import Console

    from finetune.config.sections import FinetuneConfig
    from finetune.run import train

    rows = folder / "rows.jsonl"
    rows.write_text('{"prompt": "hello", "completion": "Hello! How are you?"}\n')
    config = FinetuneConfig.model_validate(
        {
            "output": str(folder / "run"),
            "data": {"train": str(rows), "held_out": 0.0},
            "train": {"max_steps": 1, "general_questions": 0},
        }
    )
    with recording(calls):
        train(config, Console(file=StringIO()), "cpu")


def main(arguments: list[str]) -> int:
    """Print the counts of a walk."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    calls: Calls = {}
    walk = arguments[0] if arguments else "ask"
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({f"XDG_{kind}_HOME": folder for kind in ("CONFIG", "DATA", "STATE")})
        if walk == "message":
            walk_message(calls)
        elif walk == "api":
            walk_api(calls)
        elif walk == "step":
            walk_step(calls, Path(folder))
        elif walk == "row":
            prompt = str(ROOT / "prompts" / "sentiment.toml")
            walk_command(calls, "run", prompt, "--input", "A fine film", "--model", "bundled")
        else:
            walk_command(calls, "ask", "hello", "--seed", "1", "--max-tokens", "8")
    loaded = sum(name.split(".")[0] in ("chatapp", "finetune") for name in sys.modules)
    files = len({file for file, _ in calls})
    print(f"{walk}: {len(calls)} functions in {files} files, of {loaded} that are loaded")
    if "--calls" in arguments:
        for file, name in calls:
            print(f"  {file}: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
