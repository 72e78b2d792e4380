"""The ClientApp of a node: passes a message on to the node's worker, and its answer back.

Flower starts a process for each message; importing torch alone would take that process seconds. So the worker, which
has the data and the net, stays, and listens on a Unix socket that only its user can open.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlit.flower.frames import ClosedError, connect, receive, send
from fedlit.flower.records import bytes_of, plain_of, records_of

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """The name of the node, or the worker's answer; a plain answer says why there is no other."""
    name, path = str(context.node_config["name"]), str(context.node_config["socket"])
    if plain_of(message.content)["kind"] == "who":
        return Message(records_of({"name": name}), reply_to=message)
    try:
        with connect(path) as worker:
            send(worker, {}, [bytes_of(message.content)])
            _, [content] = receive(worker)
    except (OSError, ClosedError, ValueError) as error:
        why = f"has no worker that answers ({type(error).__name__}: {error}); start fedlit flower node there again"
        return Message(records_of({"failed": why}), reply_to=message)
    return Message(records_of({}, content), reply_to=message)
