"""An MCP server in a process of its own, by the protocol's own package: tools that answer, refuse, hang and die.

python -m tests.builders.servers.mcp_tools      # prints its port
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError


def tools() -> MCPServer:
    """The server."""
    made = MCPServer("tests", log_level="ERROR")

    @made.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @made.tool()
    def repeat(text: str, times: int = 1) -> str:
        """Say a text again."""
        return text * times

    @made.tool()
    def refuse(why: str) -> str:
        """Never work."""
        raise ToolError(why)

    @made.tool()
    async def hang() -> str:
        """Never answer."""
        await asyncio.Event().wait()
        return ""

    @made.tool()
    def die() -> str:
        """End the server."""
        os._exit(1)

    return made


@contextmanager
def serving() -> Iterator[str]:
    """The server's URL, while it runs."""
    command = [sys.executable, "-m", __spec__.name]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(tools().streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listening])
