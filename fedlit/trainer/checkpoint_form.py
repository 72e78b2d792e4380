"""The form that a checkpoint must have before a run is resumed from it; checked before anything is built from it."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

from torch import Tensor

Kinds = type | tuple[type, ...]

_WHOLE: dict[str, Kinds] = {
    "state_dict": dict,
    "loops": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "pytorch-lightning_version": str,
    "epoch": int,
    "global_step": int,
}
_LOOP: dict[str, Kinds] = {
    "rounds": int,
    "federation": dict,
    "clients": dict,
    "history": dict,
    "servers": dict,
    "best": dict,
    "initial": dict,
    "first_risk": (float, NoneType),
    "stopped_of": (int, NoneType),
    "engine": (dict, NoneType),
}
_NO_ENGINE: dict[str, Any] = {"choice": {}, "request": {}}
_STORED: dict[str, Kinds] = {"file": str, "clients": Tensor, "slots": Tensor, "checksums": Tensor}
_PARTS: dict[str, Kinds] = {"run": str, "checksums": dict}


def fault_in(content: Mapping[str, Any]) -> str | None:
    """What is wrong with a checkpoint's content, as the end of a sentence; None if its form is right."""
    return _lacks("", content, _WHOLE) or _fault_in_loop(content["loops"]) or _fault_beside(content)


def _fault_in_loop(loops: Mapping[str, Any]) -> str | None:
    where = "loops.fit_loop"
    loop = loops.get("fit_loop")
    if not isinstance(loop, dict):
        return f"{where} is missing"
    return (
        _lacks(f"{where}.", loop, _LOOP)
        or _lacks(f"{where}.clients.", loop["clients"], {"clients": list, "rows": dict})
        or _lacks(f"{where}.history.", loop["history"], {"columns": list, "rounds": list, "values": Tensor})
        or _lacks(f"{where}.best.", loop["best"], {"round": (int, NoneType), "model": dict})
        or _lacks(f"{where}.engine.", loop["engine"] or _NO_ENGINE, {"choice": dict, "request": dict})
        or _lacks(f"{where}.", {"events": loop.get("events", [])}, {"events": list})
        or _fault_in_rows(f"{where}.clients", loop["clients"])
        or _fault_in_history(f"{where}.history", loop["history"], loop["rounds"])
    )


def _fault_in_rows(where: str, states: Mapping[str, Any]) -> str | None:
    clients, rows = states["clients"], states["rows"]
    if not all(isinstance(client, int) and client >= 0 for client in clients) or len(set(clients)) < len(clients):
        return f"{where}.clients has something else than the numbers of clients, each once"
    for name, value in rows.items():
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != len(clients):
            return f"{where}.rows has not one row of {name} for each of {len(clients)} clients"
    return _fault_in_stored(f"{where}.stored", states["stored"], clients) if "stored" in states else None


def _fault_in_stored(where: str, index: Any, clients: list[int]) -> str | None:
    if not isinstance(index, dict):
        return f"{where} is not an index of rows"
    if fault := _lacks(f"{where}.", index, _STORED):
        return fault
    columns = [index[name] for name in ("clients", "slots", "checksums")]
    if any(column.dim() != 1 or column.is_floating_point() or len(column) != len(clients) for column in columns):
        return f"{where} has not one slot and one checksum for each of {len(clients)} clients"
    if set(index["clients"].tolist()) != set(clients):
        return f"{where} has the rows of other clients"
    return f"{where}.file is not the name of a file" if "/" in index["file"] else None


def _fault_in_history(where: str, history: Mapping[str, Any], rounds: int) -> str | None:
    expected = (len(history["rounds"]), len(history["columns"]))
    if tuple(history["values"].shape) != expected:
        return f"{where}.values has the shape {tuple(history['values'].shape)}, not {expected}"
    if not history["rounds"] or history["rounds"][-1] != rounds:
        return f"{where} does not end with round {rounds}"
    return None


def _fault_beside(content: Mapping[str, Any]) -> str | None:
    for name, value in content["state_dict"].items():
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
            return f"state_dict.{name} has NaN or infinite values"
    for state in content["optimizer_states"]:
        if not isinstance(state, dict) or not isinstance(state.get("param_groups"), list):
            return "optimizer_states has something else than states of optimisers"
    frozen = content.get("frozen") or {"file": "", "sha256": ""}
    if fault := _lacks("frozen.", frozen if isinstance(frozen, dict) else {}, {"file": str, "sha256": str}):
        return fault
    parts = content.get("client_parts", {"run": "", "checksums": {}})
    return _lacks("client_parts.", parts if isinstance(parts, dict) else {}, _PARTS)


def _lacks(where: str, content: Mapping[str, Any], form: Mapping[str, Kinds]) -> str | None:
    for name, kinds in form.items():
        if name not in content:
            return f"{where}{name} is missing"
        if not isinstance(content[name], kinds):
            return f"{where}{name} is {str(content[name])[:40]!r}"
    return None
