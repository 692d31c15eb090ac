"""Uses a Parley MCP server with Python's standard library only: lists the tools, registers, sends a message to a channel,
and reads the channel.

    python3 examples/mcp/python/client.py          # starts "parley mcp" for the current directory's project
    python3 examples/mcp/python/client.py "http://127.0.0.1:8080/mcp?project=$PWD"

Over HTTP, the hub's token, if it requires one, is in the environment: PARLEY_TOKEN.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

REVISION = "2025-11-25"  # of MCP: the last one with sessions


class Stdio:
    """A process of its own: each line is a message."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        if "id" not in message:
            return None  # a notification has no answer
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == message["id"]:  # others are notifications of the server
                return answer
        raise SystemExit("the server has ended")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class HTTP:
    """Streamable HTTP: each message is a POST, answered with JSON or with server-sent events."""

    def __init__(self, url):
        self.url = url
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if token := os.environ.get("PARLEY_TOKEN"):
            self.headers["Authorization"] = "Bearer " + token

    def send(self, message):
        request = urllib.request.Request(self.url, json.dumps(message).encode(), self.headers)
        try:
            response = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            raise SystemExit(error.read().decode())
        with response:
            if session := response.headers.get("Mcp-Session-Id"):  # of the first answer
                self.headers |= {"Mcp-Session-Id": session, "Mcp-Protocol-Version": REVISION}
            if "id" not in message:
                return None
            if response.headers["Content-Type"].startswith("application/json"):
                return json.load(response)
            for line in response:
                if line.startswith(b"data: {"):  # the first event has no data: it is for resuming the stream
                    answer = json.loads(line[len(b"data: "):])
                    if answer.get("id") == message["id"]:
                        return answer
        raise SystemExit("the stream ended without an answer")

    def close(self):
        urllib.request.urlopen(urllib.request.Request(self.url, headers=self.headers, method="DELETE"), timeout=60).close()


class Client:
    def __init__(self, transport):
        self.transport, self.calls = transport, 0
        server = self.call("initialize", {"protocolVersion": REVISION, "capabilities": {},
                                          "clientInfo": {"name": "example", "version": "1"}})
        print("server:", server["serverInfo"]["name"])
        self.transport.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, method, params):
        self.calls += 1
        answer = self.transport.send({"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params})
        if "error" in answer:
            raise SystemExit(answer["error"]["message"])
        return answer["result"]

    def call_tool(self, tool, **arguments):
        result = self.call("tools/call", {"name": tool, "arguments": arguments})
        text = "".join(content.get("text", "") for content in result["content"])
        if result.get("isError"):
            raise SystemExit(text)
        print(text)


def main(url=None):
    transport = HTTP(url) if url else Stdio("parley", "mcp")
    try:
        client = Client(transport)
        for tool in client.call("tools/list", {})["tools"]:
            print("tool:", tool["name"])
        client.call_tool("set_handle", handle="python-example")  # the name under which others see the messages
        client.call_tool("send_message", channel="roadmap", message="Hello from Python.")
        client.call_tool("read_messages", channel="roadmap", limit=5)
    finally:
        transport.close()


if __name__ == "__main__":
    main(*sys.argv[1:2])
