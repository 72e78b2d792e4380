"""The app that is submitted to a SuperLink: two lines, which load the relay that is installed there.

Flower wants a ClientApp too. It is empty: nodes of fedlit run `node_relay`, and nothing of what was submitted.
"""

import json
from collections.abc import Mapping
from pathlib import Path

_PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedlit-run"
version = "1.0.0"
description = "Relays of a federation of fedlit: see fedlit/flower."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedlit"

[tool.flwr.app.components]
serverapp = "fedlit_run.server:app"
clientapp = "fedlit_run.client:app"

[tool.flwr.app.config]
socket = {socket}
token = {token}
names = {names}
"""
_FILES = {
    "__init__.py": '"""Nothing but a relay."""\n',
    "server.py": "from fedlit.flower import server_app\n\napp = server_app.app\n",
    "client.py": "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n",
}


def write_bundle(folder: Path, socket: Path, token: str, names: Mapping[str, str]) -> Path:
    """Write the app of a run; returns its folder.

    Args:
        folder: where.
        socket: on which `fedlit flower run` listens, on the machine of the SuperLink.
        token: by which that process knows the ServerApp of its run.
        names: Flower's number of a node -> its name, by its key; empty without keys.
    """
    package = folder / "fedlit_run"
    package.mkdir(parents=True, exist_ok=True)  # of the run before, with the same SuperLink
    texts = {"socket": str(socket), "token": token, "names": json.dumps(dict(names))}
    options = {key: json.dumps(text) for key, text in texts.items()}
    (folder / "pyproject.toml").write_text(_PYPROJECT.format(**options))
    for name, content in _FILES.items():
        (package / name).write_text(content)
    return folder
