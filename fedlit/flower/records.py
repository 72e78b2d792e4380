"""Flower's records of a message: what it is as plain data, and its bytes as one array."""

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

Plain = Mapping[str, str]

PHASES = ("relay", "work")
"""Of a node's answer: seconds to fetch the message from the SuperNode, and seconds of the worker."""
_PLAIN, _BYTES = "fedlit.plain", "fedlit.bytes"


class NotOursError(Exception):
    """A message that another app has sent."""


def records_of(plain: Plain, content: bytes = b"") -> RecordDict:
    """The records of a message."""
    records = RecordDict({_PLAIN: ConfigRecord({**plain})})
    if content:
        array = Array(dtype="uint8", shape=(len(content),), stype="fedlit.bytes", data=content)
        records[_BYTES] = ArrayRecord({"message": array})
    return records


def plain_of(records: RecordDict) -> Plain:
    """The plain data of a message; NotOursError if it has none."""
    if _PLAIN not in records.config_records:
        raise NotOursError("it has other records than fedlit's")
    return {key: str(value) for key, value in records.config_records[_PLAIN].items()}


def bytes_of(records: RecordDict) -> bytes:
    """The bytes of a message; none if it has none."""
    found = records.array_records.get(_BYTES)
    return b"" if found is None else bytes(found["message"].data)
