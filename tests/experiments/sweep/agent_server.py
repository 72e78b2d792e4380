"""The part of W&B's protocol that `wandb agent` speaks: a sweep, an agent, and commands at its heartbeats."""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

SWEEP = "abcd1234"


@dataclass
class SweepServer:
    """Hands out these trials, one at each heartbeat of an agent that has nothing to do, and then ends it."""

    path: Path
    """The sweep file."""
    trials: Sequence[Mapping[str, Any]]
    asked: list[str] = field(default_factory=list)
    """The operations that came, in their order."""

    def __post_init__(self) -> None:
        self.waiting = [
            {
                "type": "run",
                "run_id": f"trial{number:03d}",
                "program": yaml.safe_load(self.path.read_text())["program"],
                "args": {name: {"value": value} for name, value in values.items()},
            }
            for number, values in enumerate(self.trials)
        ]

    def answer(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """What the operation's caller reads."""
        (operation,) = re.findall(r"^\s*(?:query|mutation)\s+(\w+)", query)
        self.asked.append(operation)
        match operation:
            case "SweepWithRuns":
                sweep = {"id": "sweep", "name": SWEEP, "config": self.path.read_text(), "runs": {"edges": []}}
                return {"project": {"sweep": sweep}}
            case "CreateAgent":
                return {"createAgent": {"agent": {"id": "agent"}}}
            case "Heartbeat":
                return {
                    "agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(self.next_commands(variables))}
                }
            case _:
                return {"viewer": {"id": "viewer", "entity": "tests", "username": "tests", "flags": "{}"}}

    def next_commands(self, variables: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A trial for an agent that runs none; the end when there is none left."""
        if any(json.loads(variables["runState"]).values()):
            return []
        return [self.waiting.pop(0)] if self.waiting else [{"type": "exit"}]


@contextmanager
def serving(server: SweepServer) -> Iterator[str]:
    """The address of the server, on this machine alone."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps({"data": server.answer(asked["query"], asked.get("variables") or {})}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
