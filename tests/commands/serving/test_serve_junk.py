"""What no page of ours sends to `chatapp serve` is ignored."""

import pytest
from aiohttp import WSMessage, WSMsgType
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import HTTPBadRequest, Response

from chatapp.commands.serving.browser import ChatServer

JUNK = [
    "",
    "[",
    "[]",
    "{}",
    "7",
    "null",
    '"stdin"',
    '["stdin"]',
    '["stdin", 7]',
    '[["stdin"], "x"]',
    '["resize"]',
    '["resize", 7]',
    '["resize", {"width": 80}]',
    '["resize", {"width": 1e999, "height": 24}]',
    '["resize", {"width": 1000000000, "height": 24}]',
    '["resize", {"width": -1, "height": 0}]',
    '["launch", "rm"]',
    "[" * 100_000,
]


class Socket:
    """A browser's connection that sends these messages."""

    def __init__(self, messages):
        self._messages = messages
        self.answers = []

    async def __aiter__(self):
        for message in self._messages:
            yield message

    async def send_json(self, answer):
        self.answers.append(answer)


class Program:
    """Takes what is passed on to the program of a tab."""

    def __init__(self):
        self.received = []

    async def send_bytes(self, data):
        self.received.append(data)

    async def set_terminal_size(self, width, height):
        self.received.append((width, height))

    async def blur(self):
        self.received.append("blur")


@pytest.fixture
def server():
    return ChatServer("true", host="localhost", port=80, hosts={"localhost"})


async def test_junk_is_ignored_and_the_rest_arrives(server):
    good = [
        '["stdin", "Hi \\ud800"]',
        '["resize", {"width": 90, "height": 30}]',
        '["ping", "7"]',
        '["blur"]',
    ]
    messages = [WSMessage(WSMsgType.TEXT, text, None) for text in [*JUNK, *good, *JUNK]]
    messages.append(WSMessage(WSMsgType.BINARY, b"\xff\x00", None))
    socket, program = Socket(messages), Program()
    await server._process_messages(socket, program)
    assert program.received == [b"Hi ?", (90, 30), "blur"]
    assert socket.answers == [["pong", "7"]]


@pytest.mark.parametrize("query", ["width=1000000000", "height=x", "width=-1", "height="])
async def test_a_page_of_no_size_is_refused(server, query):
    async def handler(request):
        return Response()

    path = f"/{getattr(server, 'token', 'chat')}/ws?{query}"
    request = make_mocked_request("GET", path, headers={"Host": "localhost"})
    with pytest.raises(HTTPBadRequest, match="Bad Request"):
        await server._guard(request, handler)
