"""What is copied reaches the clipboard, through the terminal and through the system."""

import base64
import threading

import pytest
from fakes import ScriptedModel
from textual.geometry import Offset
from textual.selection import Selection

from chatapp.tui.app import ChatApp
from chatapp.tui.platform import programs as clipboard
from chatapp.tui.platform.programs import fill
from chatapp.tui.widgets.message_parts import TextBody

programs = clipboard.programs  # the fixture of all these tests puts another in its place


@pytest.fixture
def bin(tmp_path, monkeypatch):
    """A folder that is the whole PATH, but for the shell that runs what is in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(clipboard.sys, "platform", "linux")
    return folder


def install(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_programs_of_this_session(bin, monkeypatch):
    for name in ("wl-copy", "xsel", "pbcopy", "clip.exe"):
        install(bin, name, "exit 0")
    assert programs() == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert programs() == [["xsel", "--clipboard", "--input"]]
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert [command[0] for command in programs()] == ["wl-copy", "xsel"]
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY")
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    assert programs() == [["clip.exe"]]
    monkeypatch.setattr(clipboard.sys, "platform", "darwin")
    assert programs()[0] == ["pbcopy"]


def test_the_first_that_works_gets_the_text(bin, tmp_path, monkeypatch):
    monkeypatch.setattr(clipboard, "_PATIENCE", 60)  # on a machine that has other things to do
    copied = tmp_path / "copied"
    install(bin, "broken", "exit 1")
    install(bin, "works", f"while IFS= read -r line; do echo \"$line\" >> '{copied}'; done")
    assert fill("two\nlines [b]é\n", [["missing"], ["broken"], ["works"]])
    assert copied.read_text(encoding="utf-8") == "two\nlines [b]é\n"
    assert not fill("x", [["missing"], ["broken"]])
    assert not fill("x", [])


def test_a_program_that_hangs_is_given_up(bin, monkeypatch):
    monkeypatch.setattr(clipboard, "_PATIENCE", 0.05)
    install(bin, "hangs", "while :; do read -r line; done")
    assert not fill("x", [["hangs"]])


async def test_the_terminal_and_the_system_are_told(open_app, monkeypatch):
    filled = []
    done = threading.Event()

    def record(text, commands):
        filled.append((text, commands))
        done.set()
        return True

    monkeypatch.setattr(clipboard, "programs", lambda: [["xclip"]])
    monkeypatch.setattr(clipboard, "fill", record)
    async with open_app(ScriptedModel(["It is [b]x[/b] \ud800."])) as driver:
        await driver.say("Hello")
        written = []
        monkeypatch.setattr(driver.app._driver, "write", written.append)
        await driver.press("ctrl+up", "y")
        await driver.until(done.is_set)
        encoded = base64.b64encode("It is [b]x[/b] \ufffd.".encode()).decode()
        assert f"\x1b]52;c;{encoded}\a" in written
        assert filled == [("It is [b]x[/b] \ufffd.", [["xclip"]])]


async def test_a_browser_fills_no_clipboard_of_this_machine(open_app, monkeypatch):
    asked = []
    monkeypatch.setattr(clipboard, "programs", lambda: asked.append(True) or [])
    async with open_app() as driver:
        with monkeypatch.context() as patch:
            patch.setattr(ChatApp, "is_web", property(lambda app: True))
            driver.app.copy_to_clipboard("x")
        assert not asked
        assert driver.app.clipboard == "x"


def select(driver, start, end):
    """Select in the last message, as the mouse would."""
    body = driver.transcript.views[-1].query_one(TextBody)
    driver.app.screen.selections = {body: Selection(start, end)}


async def test_what_the_mouse_selects_is_copied_with_ctrl_c(open_app):
    async with open_app(ScriptedModel(["The sea\nis wide."])) as driver:
        await driver.say("Hello")
        select(driver, Offset(4, 0), Offset(2, 1))
        await driver.press("ctrl+c")
        assert driver.app.clipboard == "sea\nis"
        select(driver, None, None)
        await driver.press("ctrl+up", "ctrl+c")
        assert driver.app.clipboard == "The sea\nis wide."
