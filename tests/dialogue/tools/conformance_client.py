"""What the conformance suite runs as a client: it calls every tool of the server at an address."""

import sys
import threading

from chatapp.dialogue.tools.mcp_servers import Servers
from chatapp.dialogue.tools.tool import LONGEST_RESULT, run
from chatapp.dialogue.tools.user_tools import Address, ToolServer

if __name__ == "__main__":
    servers = Servers()
    listing = servers.ask(ToolServer("suite", Address(sys.argv[-1]), 30.0, LONGEST_RESULT))
    for tool in listing.tools.values():
        numbers = dict.fromkeys(tool.parameters.get("properties", ()), 2)
        print(run(tool, numbers, threading.Event()))
    servers.close()
