"""`chatapp serve`: whom it lets in, and a chat in a headless browser."""

import asyncio
import base64
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from completions_server import CompletionsServer, closed_port, piece

from chatapp.commands.serving.browser import ChatServer
from chatapp.dialogue.store import Store

ROOT = Path(__file__).parent.parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZE = (1000, 640)


class Serving:
    """A running `chatapp serve` and its address."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://localhost:{port}"


@pytest.fixture
def server() -> Iterator[CompletionsServer]:
    """The model of the chat: it answers, and then waits to be stopped."""
    with CompletionsServer().running() as server:
        server.models = [{"id": "tiny", "max_model_len": 512}]
        server.stream = [piece(" The"), piece(" sea"), piece(" is"), piece(" wide"), server.hang]
        yield server


@pytest.fixture
def serving(home: Path, server: CompletionsServer) -> Iterator[Serving]:
    port = closed_port()
    command = [sys.executable, "-m", "chatapp", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--model", server.url],
        cwd=ROOT,
        env={**os.environ, "CHATAPP_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    try:
        assert f"The chat is on http://localhost:{port} · Ctrl+C ends it" in line, line
        yield Serving(process, port)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        process.stderr.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "laptop.example", ""])
def test_it_does_not_listen_beyond_this_machine(run, host: str) -> None:
    status, out, err = run("serve", "--host", host)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "can be reached from other machines" in err
    assert "--expose allows this" in err


def test_wrong_options_are_refused_before_anybody_comes(run) -> None:
    status, _, err = run("serve", "--precision", "int3")
    assert status == 2
    assert "precision is 'int3'" in err
    assert run("serve", "--port", "70000").status == 2


def test_the_address_that_is_told() -> None:
    for host, url in {"::1": "http://[::1]:80", "localhost": "http://localhost:80"}.items():
        assert ChatServer("true", host=host, port=80, hosts=None).public_url == url


def test_no_module_of_the_folder_is_taken_for_ours(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(ChatServer, "serve", lambda server: commands.append(server.command))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chatapp.py").write_text("print('not ours')")
    assert run("serve").status == 0
    child = subprocess.run(
        shlex.split(commands[0]),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (child.returncode, child.stdout) == (2, "")
    assert "the chat needs a terminal" in child.stderr


async def test_who_is_let_in(serving: Serving) -> None:
    ours, port = serving.url, serving.port
    async with aiohttp.ClientSession() as client:
        async with client.get(ours) as page:
            text = await page.text()
            assert page.status == 200
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert f'"ws://localhost:{port}/ws"' in text
        assert "https:" not in text  # the page needs no other machine
        async with client.get(f"http://127.0.0.1:{port}") as page:
            assert f'"ws://127.0.0.1:{port}/ws"' in await page.text()
        for headers in (
            {"Host": f"rebound.example:{port}"},
            {"Origin": "http://evil.example"},
            {"Origin": f"http://localhost:{port + 1}"},
            {"Origin": "null"},
        ):
            for path in ("/", "/ws", "/static/js/textual.js"):
                async with client.get(ours + path, headers=headers) as answer:
                    assert answer.status == 403
        async with client.get(ours, headers={"Origin": "http://[::1"}) as answer:
            assert answer.status == 400
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await client.ws_connect(f"{ours}/ws", headers={"Origin": "http://evil.example"})


async def test_a_port_that_is_taken(serving: Serving) -> None:
    command = [sys.executable, "-m", "chatapp", "serve", "--port", str(serving.port)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert second.returncode == 1
    assert f"localhost port {serving.port} cannot be listened on" in second.stderr
    assert second.stderr.count("\n") == 1


class Browser:
    """A page of a headless Chromium, driven by its DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive(120)).data)
            if message.get("id") == self._count:
                assert "error" not in message, message
                return dict(message["result"])

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        async with asyncio.timeout(120):
            while True:
                answer = await self.call("Runtime.evaluate", expression=expression)
                if answer["result"].get("value") is True:
                    return
                await asyncio.sleep(0.05)

    async def type(self, text: str) -> None:
        for character in text:
            await self.call("Input.dispatchKeyEvent", type="char", text=character)

    async def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **extra,
            )

    async def resize(self, width: int, height: int) -> None:
        """Make the window another size, in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def screenshot(self) -> bytes:
        picture = await self.call("Page.captureScreenshot")
        return base64.b64decode(picture["data"])

    async def screenshot_unlike(self, other: bytes) -> bytes:
        """Wait until the page looks different."""
        async with asyncio.timeout(120):
            while (picture := await self.screenshot()) == other:
                await asyncio.sleep(0.05)
        return picture


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Browser]:
    """A browser with an empty page; skips where it cannot be started."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--mute-audio"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run"]
    command += [f"--window-size={SIZE[0]},{SIZE[1]}", "--disable-dev-shm-usage", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told, patience = profile / "DevToolsActivePort", time.monotonic() + 120
        while not (told.exists() and told.read_text().count("\n") == 1):
            if process.poll() is not None or time.monotonic() > patience:
                pytest.skip("chromium cannot be started here")
            await asyncio.sleep(0.05)
        port = told.read_text().split("\n")[0]
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = await answer.json()
            address = next(page for page in pages if page["type"] == "page")
            async with client.ws_connect(
                address["webSocketDebuggerUrl"], max_msg_size=2**26
            ) as socket:
                yield Browser(socket)
    finally:
        process.terminate()
        process.wait(60)


async def test_a_window_made_smaller_shows_all_rows(serving: Serving, tmp_path: Path) -> None:
    async with browsing(tmp_path / "profile") as browser:
        await browser.resize(1200, 800)
        await browser.call("Page.navigate", url=serving.url)
        await browser.until("document.body?.classList.contains('-first-byte') ?? false")
        await browser.until("document.querySelector('.xterm-screen').clientHeight > 500")
        await browser.resize(700, 500)
        screen = "document.querySelector('.xterm-screen').getBoundingClientRect()"
        await browser.until(f"innerHeight == 500 && {screen}.bottom <= 500")
        await browser.until(f"{screen}.right <= 700 && {screen}.height > 450")


async def test_a_chat_in_the_browser(
    serving: Serving, server: CompletionsServer, home: Path, tmp_path: Path
) -> None:
    async with browsing(tmp_path / "profile") as browser:
        await browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
        await browser.call("Page.navigate", url=serving.url)
        await browser.until("document.body?.classList.contains('-first-byte') ?? false")
        await browser.until("document.activeElement.tagName == 'TEXTAREA'")
        empty = await browser.screenshot()
        await browser.type("Tell me about the sea.")
        await browser.press("Enter", 13)
        async with asyncio.timeout(120):
            while not server.requests:
                await asyncio.sleep(0.02)
        assert "User: Tell me about the sea.\nAssistant:" in server.requests[0]["prompt"]
        streamed = await browser.screenshot_unlike(empty)
        await browser.press("Escape", 27)
        assert await asyncio.to_thread(server.gone.wait, 120)
        store = Store(home / "data" / "chats.db")
        try:
            async with asyncio.timeout(120):
                while (reply := store.path(1)[-1]).status == "partial":
                    await asyncio.sleep(0.02)
        finally:
            store.close()
        # How much of it had come before the key did is for the machine to say.
        assert reply.status == "stopped"
        assert "The sea is wide".startswith(reply.text)
        stopped = await browser.screenshot_unlike(streamed)
        for name, picture in (("empty", empty), ("streamed", streamed), ("stopped", stopped)):
            (tmp_path / f"{name}.png").write_bytes(picture)  # to be looked at
        # Several colours of ours, and not the page's background alone.
        from PIL import Image

        colours = Image.open(io.BytesIO(stopped)).convert("RGB").getcolors(2**24)
        assert colours is not None
        assert len(colours) > 20
