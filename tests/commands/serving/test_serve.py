"""`chatapp serve`: whom it lets in, and a chat in a headless browser."""

import asyncio
import base64
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import aiohttp.web
import pytest
from completions_server import CompletionsServer, closed_port, piece

from chatapp.commands.serving.browser import MOST_TABS, ChatServer
from chatapp.dialogue.store import Store

ROOT = Path(__file__).parent.parent.parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZE = (1000, 640)


class Serving:
    """A running `chatapp serve` and its address."""

    def __init__(self, process, port, path):
        self.process = process
        self.port = port
        self.path = path
        """Of the chat: the token between slashes."""
        self.root = f"http://localhost:{port}"
        self.url = f"{self.root}{path}"


@pytest.fixture
def server():
    """The model of the chat: it answers, and then waits to be stopped."""
    with CompletionsServer().running() as server:
        server.models = [{"id": "tiny", "max_model_len": 512}]
        server.stream = [piece(" The"), piece(" sea"), piece(" is"), piece(" wide"), server.hang]
        yield server


@pytest.fixture
def serving(home, server):
    port = closed_port()
    command = [sys.executable, "-m", "chatapp", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--model", server.url],
        cwd=ROOT,
        env={**os.environ, "CHATAPP_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stderr.readline()
    try:
        told = re.search(rf"The chat is on http://localhost:{port}(/[\w-]{{22}}/) · Ctrl\+C", line)
        assert told, line
        yield Serving(process, port, told[1])
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        process.stderr.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "laptop.example", ""])
def test_it_does_not_listen_beyond_this_machine(run, host):
    status, out, err = run("serve", "--host", host)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "can be reached from other machines" in err
    assert "--expose allows this" in err


def test_wrong_options_are_refused_before_anybody_comes(run):
    status, _, err = run("serve", "--precision", "int3")
    assert status == 2
    assert "precision is 'int3'" in err
    assert run("serve", "--port", "70000").status == 2


def test_the_address_that_is_told():
    for host, url in {"::1": "http://[::1]:80", "localhost": "http://localhost:80"}.items():
        assert ChatServer("true", host=host, port=80, hosts=set()).public_url == url


def test_no_module_of_the_folder_is_taken_for_ours(run, tmp_path, monkeypatch):
    commands = []
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


async def test_who_is_let_in(serving):
    port, path = serving.port, serving.path
    async with aiohttp.ClientSession() as client:
        async with client.get(serving.url) as page:
            text = await page.text()
            assert page.status == 200
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
            assert page.headers["Referrer-Policy"] == "no-referrer"
        assert f'"ws://localhost:{port}{path}ws"' in text
        assert "https:" not in text  # the page needs no other machine
        async with client.get(f"http://127.0.0.1:{port}{path}") as page:
            assert f'"ws://127.0.0.1:{port}{path}ws"' in await page.text()
        for headers in (
            {"Host": f"rebound.example:{port}"},
            {"Origin": "http://evil.example"},
            {"Origin": f"http://localhost:{port + 1}"},
            {"Origin": "null"},
        ):
            for place in ("", "ws", "static/js/textual.js", "page/start.js"):
                async with client.get(serving.url + place, headers=headers) as answer:
                    assert answer.status == 403
        async with client.get(serving.url, headers={"Origin": "http://[::1"}) as answer:
            assert answer.status == 400
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await client.ws_connect(f"{serving.url}ws", headers={"Origin": "http://evil.example"})


async def test_nobody_is_let_in_without_the_token(serving):
    wrong = "/" + "A" * 22 + "/"
    async with aiohttp.ClientSession() as client:
        for start in ("/", "//", wrong, f"{serving.path[:-2]}/", f"/x{serving.path}"):
            for place in ("", "ws", "static/js/textual.js", "page/start.js", "download/x"):
                async with client.get(serving.root + start + place) as answer:
                    assert answer.status in (403, 404)
                    assert "textual" not in await answer.text()
        async with client.get(serving.root) as answer:
            assert "open the one that `chatapp serve` printed" in await answer.text()
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await client.ws_connect(f"{serving.root}/ws")


@asynccontextmanager
async def exposed(command="true", **options):
    """A server within this process, and the address of its chat."""
    server = ChatServer(command, host="0.0.0.0", port=closed_port(), is_exposed=True, **options)
    runner = aiohttp.web.AppRunner(await server._make_app())
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", server.port).start()
    try:
        yield f"http://127.0.0.1:{server.port}/{server.token}/", server
    finally:
        await runner.cleanup()


async def test_an_exposed_server_still_checks_the_host_name():
    async with exposed(hosts={"laptop.lan"}) as (url, _), aiohttp.ClientSession() as client:
        for name, status in {
            "laptop.lan": 200,
            "192.168.1.5:8000": 200,
            "[fe80::1]:8000": 200,
            "rebound.example": 403,
            "laptop.lan.evil.example": 403,
            "2130706433.evil.example": 403,
        }.items():
            async with client.get(url, headers={"Host": name}) as answer:
                assert (name, answer.status) == (name, status)


def test_names_that_are_configured_are_let_in(run, monkeypatch):
    servers = []
    monkeypatch.setattr(ChatServer, "serve", lambda server: servers.append(server))
    assert run("serve", "--host", "0.0.0.0", "--expose", "--name", "gpu7.lan").status == 0
    known = {name: servers[0]._is_known(name) for name in ("gpu7.lan", "10.0.0.1", "evil.example")}
    assert known == {"gpu7.lan": True, "10.0.0.1": True, "evil.example": False}
    assert run("serve").status == 0
    assert not servers[1]._is_known("10.0.0.1")


async def test_a_tab_too_many_is_told_so():
    waits = shlex.join([sys.executable, "-c", "import sys; sys.stdin.buffer.read(1)"])
    async with exposed(waits, hosts=set()) as (url, server), aiohttp.ClientSession() as client:
        tabs = [await client.ws_connect(f"{url}ws") for _ in range(MOST_TABS)]
        refused = await client.ws_connect(f"{url}ws")
        assert b"8 chats are open" in await refused.receive_bytes()
        assert (await refused.receive()).type == aiohttp.WSMsgType.CLOSE
        await tabs.pop().close()
        async with asyncio.timeout(60):
            while True:  # the closed tab's program may take its time
                again = await client.ws_connect(f"{url}ws")
                try:
                    async with asyncio.timeout(0.5):
                        await again.receive_bytes()
                except TimeoutError:
                    break  # it is let in: nothing is written by its program
        for tab in (*tabs, again):
            await tab.close()
        async with asyncio.timeout(60):
            while server._tabs:  # their programs end before the loop that watches them
                await asyncio.sleep(0.01)


async def test_a_port_that_is_taken(serving):
    command = [sys.executable, "-m", "chatapp", "serve", "--port", str(serving.port)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert second.returncode == 1
    assert f"localhost port {serving.port} cannot be listened on" in second.stderr
    assert second.stderr.count("\n") == 1


class Browser:
    """A page of a headless Chromium, driven by its DevTools protocol."""

    def __init__(self, socket):
        self._socket = socket
        self._count = 0

    async def call(self, method, **parameters):
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive(120)).data)
            if message.get("id") == self._count:
                assert "error" not in message, message
                return dict(message["result"])

    async def until(self, expression):
        """Wait until a JavaScript expression is true."""
        async with asyncio.timeout(120):
            while True:
                answer = await self.call("Runtime.evaluate", expression=expression)
                if answer["result"].get("value") is True:
                    return
                await asyncio.sleep(0.05)

    async def type(self, text):
        for character in text:
            await self.call("Input.dispatchKeyEvent", type="char", text=character)

    async def press(self, key, code):
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

    async def resize(self, width, height):
        """Make the window another size, in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def screenshot(self):
        picture = await self.call("Page.captureScreenshot")
        return base64.b64decode(picture["data"])

    async def screenshot_unlike(self, other):
        """Wait until the page looks different."""
        async with asyncio.timeout(120):
            while (picture := await self.screenshot()) == other:
                await asyncio.sleep(0.05)
        return picture


@asynccontextmanager
async def browsing(profile):
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


async def test_a_window_made_smaller_shows_all_rows(serving, tmp_path):
    async with browsing(tmp_path / "profile") as browser:
        await browser.resize(1200, 800)
        await browser.call("Page.navigate", url=serving.url)
        await browser.until("document.body?.classList.contains('-first-byte') ?? false")
        await browser.until("document.querySelector('.xterm-screen').clientHeight > 500")
        await browser.resize(700, 500)
        screen = "document.querySelector('.xterm-screen').getBoundingClientRect()"
        await browser.until(f"innerHeight == 500 && {screen}.bottom <= 500")
        await browser.until(f"{screen}.right <= 700 && {screen}.height > 450")


async def test_a_chat_in_the_browser(serving, server, home, tmp_path):
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
