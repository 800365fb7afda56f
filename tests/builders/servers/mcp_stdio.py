"""A small MCP server over standard input and output, without the protocol's own package.

python -m tests.builders.servers.mcp_stdio

Its list of tools has two pages; it prints what is no message, pings its client, hangs, ends, and counts its own calls.
"""

import json
import os
import sys
import time
from typing import Any

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = ("say", "refuse", "wrong", "count", "long", "hang", "end", "pid")
PAGE = 5


def main() -> None:
    """Answer until the input ends."""
    count = 0
    print("a banner that is no message")
    send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "hello"}})
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        result: dict[str, Any] = {}
        if message["method"] == "initialize":
            assert message["params"]["protocolVersion"] == "2025-06-18"
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "t"}}
        elif message["method"] == "tools/list":
            begin = int(message["params"].get("cursor", 0))
            page = [
                {"name": name, "inputSchema": TEXT if name == "say" else {}} for name in TOOLS[begin : begin + PAGE]
            ]
            result = {"tools": page, **({"nextCursor": str(begin + PAGE)} if begin + PAGE < len(TOOLS) else {})}
        else:
            count += 1
            name, arguments = message["params"]["name"], message["params"]["arguments"]
            if name == "wrong":
                send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32602, "message": "not so"}})
                continue
            send({"jsonrpc": "2.0", "id": "p", "method": "ping"})
            assert json.loads(sys.stdin.readline()) == {"jsonrpc": "2.0", "id": "p", "result": {}}
            result = text(called(name, arguments, count), is_error=name == "refuse")
        send({"jsonrpc": "2.0", "id": message["id"], "result": result})


def called(name: str, arguments: dict[str, Any], count: int) -> str:
    """The text of a tool."""
    if name == "hang":
        while True:
            time.sleep(60)
    if name == "end":
        sys.exit(3)
    texts = {"say": arguments.get("text", ""), "refuse": "not today", "count": str(count), "long": "x" * 10_000}
    return texts.get(name, str(os.getpid()))


def text(content: str, *, is_error: bool) -> dict[str, Any]:
    """A tool's result."""
    return {"content": [{"type": "text", "text": content}], "isError": is_error}


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
