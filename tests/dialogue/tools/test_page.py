"""The tool `page`: what it reads, and what it never contacts."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chatapp.dialogue.tools import page
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import LONGEST_RESULT, run

HTML = "<head><title>T</title></head><h1>Tides</h1><p>The moon <b>pulls</b>.<script>x()</script>"


class Site(BaseHTTPRequestHandler):
    """Pages, good and bad. seen: their paths and Host headers."""

    seen: list[tuple[str, str]]

    def do_GET(self):
        self.seen.append((self.path, self.headers["Host"]))
        name, _, rest = self.path[1:].partition("?")
        kind = {"words": "text/plain; charset=latin-1", "picture": "image/png"}.get(name)
        self.send_response({"moved": 302, "round": 301, "gone": 404}.get(name, 200))
        self.send_header("Content-Type", kind or "text/html")
        if name in ("moved", "round"):
            self.send_header("Location", rest or "/round")
        self.end_headers()
        try:
            self.write(name)
        except OSError:
            return  # the reader has left

    def write(self, name):
        if name == "endless":
            while True:
                self.wfile.write(b"<p>" + b"word " * 10_000)
        while name == "slow":
            self.wfile.write(b"a")
            time.sleep(1)
        self.wfile.write("Größe".encode("latin-1") if name == "words" else HTML.encode())

    def log_message(self, *words):
        pass


@pytest.fixture
def site():
    """The address of a web server on this machine."""
    Site.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def reachable(monkeypatch):
    """Let the tool read this machine, 127.0.0.1 alone."""
    monkeypatch.setattr(page, "_READER", "loopback_page")
    monkeypatch.setattr(page, "is_public", lambda number: number == "127.0.0.1")


def fetch(url, cancel=None):
    return run(find_tools().tools["page"], {"url": url}, cancel or threading.Event())


def text_of(url):
    """The text of a page, or why there is none, without the limited process."""
    try:
        return "".join(page.answer(url))
    except page.UserError as error:
        return str(error)


@pytest.mark.usefixtures("folder", "reachable")
def test_pages_are_read_as_text(site):
    assert fetch(f"{site}/").text == "Tides\n\nThe moon pulls."
    assert text_of(f"{site}/words") == "Größe"
    assert text_of(f"{site}/moved?/words") == f"{site}/words\n\nGröße"
    for path, problem in {
        "gone": "the server answers 404 Not Found",
        "picture": "the page is 'image/png', which is not a text",
        "round": "the page redirects more than 5 times",
    }.items():
        assert text_of(f"{site}/{path}") == problem


@pytest.mark.usefixtures("folder", "reachable")
def test_a_page_without_end_is_cut(site):
    text = fetch(f"{site}/endless").text
    assert text.startswith("word word")
    assert len(text) < LONGEST_RESULT + 100


@pytest.mark.usefixtures("folder", "reachable")
@pytest.mark.parametrize("ends_by", ["time", "the user"])
def test_a_byte_a_second_is_too_slow(site, monkeypatch, ends_by):
    monkeypatch.setattr(page, "_SECONDS", 2.5 if ends_by == "time" else 60.0)
    cancel = threading.Event()
    if ends_by == "the user":
        threading.Thread(target=lambda: (_until(lambda: bool(Site.seen)), cancel.set())).start()
    outcome = fetch(f"{site}/slow", cancel)
    text = {"time": "error: the page took longer", "the user": "error: it was stopped"}[ends_by]
    assert outcome.text.startswith(text)


def _until(holds):
    while not holds():
        time.sleep(0.02)


@pytest.mark.usefixtures("folder")
def test_nothing_on_this_machine_is_contacted(site):
    port = site.rpartition(":")[2]
    assert fetch(f"{site}/").text == "error: '127.0.0.1' is not a public address"
    for host in ("localhost", "[::ffff:127.0.0.1]", "2130706433", "127.1", "0.0.0.0"):
        assert "is not a public address" in text_of(f"http://{host}:{port}/")
    assert Site.seen == []


@pytest.mark.usefixtures("folder", "reachable")
def test_redirects_are_checked_too(site):
    port = site.rpartition(":")[2]
    for target in (
        f"http://127.0.0.2:{port}/",
        "http://169.254.169.254/latest",
        "file:///etc/hosts",
    ):
        assert "is not a" in text_of(f"{site}/moved?{target}")
    assert [path.partition("?")[0] for path, _ in Site.seen] == ["/moved"] * 3


@pytest.mark.parametrize(
    "number",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1"),
        *("::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1"),
    ],
)
def test_addresses_that_are_not_public(number):
    assert not page.is_public(number)


def test_addresses_that_are_public():
    assert page.is_public("8.8.8.8")
    assert page.is_public("2606:4700:4700::1111")


def resolving(monkeypatch, *answers):
    """Let the name rebind.test have another address each time; return the names asked for."""
    names = []
    real = socket.getaddrinfo

    def resolve(host, port, *rest, **more):
        name = host.decode() if isinstance(host, bytes) else host
        if name != "rebind.test":
            return real(host, port, *rest, **more)
        names.append(name)
        return real(answers[min(len(names), len(answers)) - 1], port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


def test_a_name_with_a_private_address_is_not_contacted(monkeypatch):
    names = resolving(monkeypatch, "10.0.0.1")
    with pytest.raises(page.UserError, match=r"'rebind.test' is 10.0.0.1, which is not a public"):
        list(page.answer("http://rebind.test/"))
    assert names == ["rebind.test"]


def test_a_name_that_changes_is_asked_once(site, monkeypatch):
    names = resolving(monkeypatch, "127.0.0.1", "10.0.0.1")
    monkeypatch.setattr(page, "is_public", lambda number: number == "127.0.0.1")
    port = site.rpartition(":")[2]
    assert list(page.answer(f"http://rebind.test:{port}/")) == ["Tides\n\nThe moon pulls."]
    assert names == ["rebind.test"]
    assert Site.seen == [("/", f"rebind.test:{port}")]


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://example.org/", "example.org", "", "http://", "javascript:x"),
        *("http://user:word@example.org/", "http://\x00/", "http://[::1", "http://" + "a" * 300),
    ],
)
def test_what_is_not_a_web_address_is_refused(url):
    with pytest.raises(page.UserError) as error:
        list(page.answer(url))
    assert len(str(error.value)) < 300
