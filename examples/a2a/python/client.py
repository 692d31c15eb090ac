"""Talks to an agent of a Parley hub over A2A 1.0, with Python's standard library only: reads the agent's card, streams
the answer to a prompt, and answers the agent's questions.

    python3 examples/a2a/python/client.py http://127.0.0.1:8080/agents/claude-code "Create hello.txt."

The hub's token, if it requires one, is in the environment: PARLEY_TOKEN.
"""

import json
import os
import sys
import urllib.error
import urllib.request
import uuid


def get_card(agent_url):
    """Returns the agent's card, which is readable without the token."""
    with urllib.request.urlopen(agent_url.rstrip("/") + "/.well-known/agent-card.json", timeout=30) as response:
        return json.load(response)


def json_rpc_address(card):
    """Returns the address of A2A 1.0 over JSON-RPC."""
    for interface in card["supportedInterfaces"]:
        if interface["protocolBinding"] == "JSONRPC" and interface["protocolVersion"] == "1.0":
            return interface["url"]
    raise SystemExit("the agent does not offer A2A 1.0 over JSON-RPC")


def send_streaming(address, message):
    """Sends a message and yields the events of its task: objects with one member, such as {"statusUpdate": …}."""
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    if token := os.environ.get("PARLEY_TOKEN"):
        headers["Authorization"] = "Bearer " + token
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    request = urllib.request.Request(address, json.dumps(call).encode(), headers)
    try:
        # The hub sends a comment every 15 s, so only a dead connection is silent for a minute.
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:  # its body is a JSON-RPC error
        raise SystemExit(error.read().decode())
    with response:
        if not response.headers["Content-Type"].startswith("text/event-stream"):
            raise SystemExit(json.load(response)["error"]["message"])
        for line in response:
            if line.startswith(b"data: "):
                answer = json.loads(line[len(b"data: "):])
                if "error" in answer:
                    raise SystemExit(answer["error"]["message"])
                yield answer["result"]


def user_message(part, **of_task):
    return {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [part], **of_task}


def answer_to(question):
    """Prints a question and reads the answer from standard input; without one it allows the tool once."""
    for part in question["parts"]:
        if part.get("metadata", {}).get("parley.permission"):
            break
    else:  # the agent asks something else, in words
        print(*(part.get("text", "") for part in question["parts"]))
        return {"text": sys.stdin.readline().strip()}
    print("question:", part["data"]["title"])
    choice = ""
    for option in part["data"]["options"]:
        print(f"  {option['id']}: {option['name']}")
        if option["kind"] == "allow_once":
            choice = option["id"]
    choice = sys.stdin.readline().strip() or choice
    print("answer:", choice)
    return {"data": {"optionId": choice}}


def main(agent_url, prompt):
    card = get_card(agent_url)
    print("agent:", card["name"])
    address = json_rpc_address(card)
    message = user_message({"text": prompt})
    while message:
        events, message = send_streaming(address, message), None
        for event in events:
            if task := event.get("task"):  # the first event
                print("task:", task["id"])
            elif update := event.get("artifactUpdate"):  # a piece of the answer
                print(*(part.get("text", "") for part in update["artifact"]["parts"]), end="", flush=True)
            elif update := event.get("statusUpdate"):
                state = update["status"]["state"]
                if state in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"):
                    print("\nstate:", state)
                if state == "TASK_STATE_INPUT_REQUIRED":
                    # The stream ends with a question. The answer is a message to the same task.
                    message = user_message(answer_to(update["status"]["message"]),
                                           taskId=update["taskId"], contextId=update["contextId"])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: client.py AGENT-URL PROMPT")
    main(*sys.argv[1:])
