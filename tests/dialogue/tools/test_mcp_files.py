"""The `mcpServers` blocks of other programs, and servers by HTTP."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tool_server
from tool_server import web_server

from chatapp.common.limited_process import Program
from chatapp.dialogue.tools import mcp_servers
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import ToolError, run
from chatapp.dialogue.tools.user_tools import Address, read_servers


def never():
    return threading.Event()


def registry_of(tmp_path, monkeypatch, servers):
    """All tools, with these servers in a file of another program."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"other": 1, "mcpServers": servers}))
    monkeypatch.setenv("CHATAPP_MCP_SERVERS", str(path))
    return find_tools()


@pytest.fixture
def registry(folder, tmp_path, monkeypatch):
    command = {"command": sys.executable, "args": [tool_server.__file__]}
    return registry_of(tmp_path, monkeypatch, {"my demo": command})


def test_a_command_of_another_programs_file_is_a_server(registry):
    tools = registry.chosen(["my_demo"])
    assert run(tools["my_demo_add"], {"a": 2, "b": 3}, never()).text == "5"
    assert tools["my_demo_add"].asks


def test_all_that_a_block_may_say(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES_KEY", "k1")
    monkeypatch.delenv("PLACE", raising=False)
    block = {
        "files": {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "server", "${PLACE:-/srv}"],
            "env": {"KEY": "${NOTES_KEY}", "OTHER": "${env:NOTES_KEY}!"},
            "cwd": "work",
            "autoApprove": ["delete_all"],
        },
        "web": {
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "Bearer ${NOTES_KEY}"},
        },
        "off": {"command": "x", "disabled": True},
        "old": {"type": "sse", "url": "https://example.org/sse"},
        "none": {},
        "needs": {"command": "${NOT_SET}"},
        "asks": {"command": "x", "args": ["${input:key}"]},
        "wrong": {"command": "x", "args": "y"},
        "text": "x",
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": block}))
    servers, problems = read_servers(tmp_path / "mcp.json")
    files, web = (server.target for server in servers)
    assert files == Program(
        ("npx", "-y", "server", "/srv"),
        tmp_path / "work",
        variables=(("KEY", "k1"), ("OTHER", "k1!")),
    )
    assert web == Address("https://example.org/mcp", (("Authorization", "Bearer k1"),))
    # A key is in no permission and in no message.
    assert "k1" not in json.dumps([server.target.definition() for server in servers])
    assert "k1" not in repr(servers)
    start = f"{tmp_path / 'mcp.json'}: mcpServers."
    assert problems == {
        "old": f"{start}'old': 'type' is the string 'sse', expected 'http'",
        "none": f"{start}'none': has neither 'command' nor 'url'",
        "needs": f"{start}'needs': 'command' needs the variable NOT_SET, which is not set",
        "asks": f"{start}'asks': 'args' has a placeholder or a character that cannot be used",
        "wrong": f"{start}'wrong': 'args' is the string 'y', expected a list of texts",
        "text": f"{start}'text': is the string 'x', expected an object",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "'mcpServers' is null, expected an object of servers"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_without_the_block_is_one_sentence(folder, tmp_path, monkeypatch, text, problem):
    path = tmp_path / "mcp.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("CHATAPP_MCP_SERVERS", str(path))
    with pytest.raises(ToolError, match=problem):
        find_tools().chosen(["notes"])
    assert [*find_tools().chosen(["clock"])] == ["clock"]


@pytest.mark.parametrize("options", [{}, {"json_response": True}, {"stateless_http": True}])
def test_a_server_by_http(folder, tmp_path, monkeypatch, options):
    with web_server(wants="Bearer k1", **options) as url:
        servers = {
            "demo": {"url": url, "headers": {"Authorization": "Bearer k1"}},
            "bare": {"url": url},
        }
        registry = registry_of(tmp_path, monkeypatch, servers)
        tools = registry.chosen(["demo"])
        assert run(tools["demo_add"], {"a": 2, "b": 3}, never()).text == "5"
        assert run(tools["demo_fail"], {}, never()).ending == "failed"
        assert "call" in run(tools["demo_count"], {}, never()).text
        with pytest.raises(ToolError, match=f"bare: {url} answers HTTP 401 Unauthorized"):
            registry.chosen(["bare"])
        registry.running.close()
        assert (
            run(tools["demo_add"], {"a": 2, "b": 3}, never()).text == "error: its chat was closed"
        )


class Bad(BaseHTTPRequestHandler):
    """A web server that is none of the protocol; `how` says what it does."""

    how = ""

    def do_POST(self):
        self.send_response(307 if self.how == "elsewhere" else 200)
        self.send_header("Content-Type", "text/html" if self.how == "html" else "application/json")
        if self.how == "elsewhere":
            self.send_header("Location", "http://127.0.0.1:9/")
        if self.how == "compressed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            while self.how == "endless":
                self.wfile.write(b"[" * 100_000)
            while self.how == "slow":
                self.wfile.write(b" ")
                time.sleep(0.2)
        except OSError:
            return

    def log_message(self, *words):
        pass


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("html", "its server answers: Unexpected content type: text/html"),
        ("compressed", "a compressed answer"),
        ("endless", "a message of more than 10 MB"),
        ("slow", "it took longer than 2 seconds"),
        ("elsewhere", "Redirect to http://127.0.0.1:9/ not followed"),
        ("nothing", ""),
        ("", "cannot be reached"),
    ],
)
def test_a_web_server_that_is_none_is_told(folder, tmp_path, monkeypatch, how, problem):
    monkeypatch.setattr(mcp_servers, "_LISTING_SECONDS", 2 if how == "slow" else 30)
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Site", (Bad,), {"how": how})) as server:
        server.daemon_threads, server.block_on_close = True, False
        url = f"http://127.0.0.1:{server.server_port}/"
        if how:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        else:
            url = "http://127.0.0.1:9/"
        registry = registry_of(tmp_path, monkeypatch, {"demo": {"url": url}})
        with pytest.raises(ToolError) as error:
            registry.chosen(["demo"])
        assert problem in str(error.value)
        assert str(error.value).startswith("demo: ")
        assert "\n" not in str(error.value)
        if how:
            server.shutdown()


def test_an_error_shows_no_key(folder, tmp_path, monkeypatch):
    class Repeating(Bad):
        def do_POST(self):
            self.send_response(401, f"no {self.headers['Authorization']}")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Repeating) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        block = {"demo": {"url": url, "headers": {"Authorization": "Bearer k1-secret"}}}
        with pytest.raises(ToolError, match="answers HTTP 401 no …") as error:
            registry_of(tmp_path, monkeypatch, block).chosen(["demo"])
        server.shutdown()
    assert "secret" not in str(error.value)


def test_a_placeholder_without_end_takes_no_quadratic_time(tmp_path):
    """250 kB of it took forty seconds; ten times as much is read here."""
    block = {"notes": {"command": "${A:-" * 500_000}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": block}))
    began = time.process_time()
    servers, problems = read_servers(tmp_path / "servers.json")
    assert time.process_time() - began < 20
    assert servers == []
    assert "a placeholder" in problems["notes"]
