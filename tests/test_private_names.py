"""Private names of other packages that fedlit relies on, all of them, by file: a new release may take them away.

What each is expected to do is tried in tests/engines/test_compiler_contract.py (torch's compiler) and
tests/rounds/test_loop_contract.py (Lightning); pyproject.toml bounds the packages that they belong to.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedlit

ROOT = Path(fedlit.__file__).parent
ASKING = ("getattr", "hasattr", "setattr", "delattr")

USED = {
    "client/local_options.py": {"torch.nn.modules.batchnorm._BatchNorm"},  # a base class without a public name
    "client/net_parts.py": {"torch.nn.modules.batchnorm._BatchNorm", "torch.nn.modules.batchnorm._NormBase"},
    "client/state_buffers.py": {
        "._buffers",  # of nn.Module, as are the next two
        "._modules",
        "._parameters",
        "._version",  # of a Tensor
    },
    "client/step.py": {"._buffers"},
    "client/user_module.py": {"._trainer"},  # of a LightningModule, whose property raises without one
    "config/parse_errors.py": {"._actions"},  # of argparse's parser, which jsonargparse's is
    "data/files/cifar.py": {"pickle._Unpickler"},
    "engines/choose.py": {"torch.nn.modules.conv._ConvNd"},
    "engines/compiler.py": {"torch.fx.experimental.proxy_tensor.make_fx"},
    "engines/inductor.py": {
        "torch._higher_order_ops.while_loop.while_loop_op",
        "torch._inductor.codecache",  # of it `_precompile_header`, which program_folder.py replaces
        "torch._inductor.compile",
        "torch._inductor.compile_fx",
        "torch._inductor.config",
        "torch._inductor.cpp_builder",
        "torch._inductor.cpu_vec_isa.pick_vec_isa",
    },
    "engines/inductor_nodes.py": {
        "._get_while_loop_carried_output_names",
        "torch._functorch.compile_utils.fx_graph_cse",
        "torch._inductor.codegen.common.device_codegens",
        "torch._inductor.codegen.common.init_backend_registration",
        "torch._inductor.codegen.cpp_wrapper_cpu.CppWrapperCpu",
        "torch._inductor.codegen.wrapper.EnterSubgraphLine",
        "torch._inductor.codegen.wrapper.ExitSubgraphLine",
        "torch._inductor.ir.ComputedBuffer",
        "torch._inductor.ir.ExternKernelOut",
        "torch._inductor.ir.FixedLayout",
        "torch._inductor.ir.NopKernel",
        "torch._inductor.ir.TensorBox",
        "torch._inductor.lowering.lowerings",
        "torch._inductor.lowering.make_fallback",
        "torch._inductor.lowering.needs_realized_inputs",
        "torch._inductor.lowering.register_lowering",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward",
        "torch.ops.aten._to_copy",
    },
    "client/initial_weights.py": {"._reset_parameters"},  # of nn.MultiheadAttention; nothing is missed where it is not
    "rounds/loop.py": {
        "._batches_that_stepped",
        "._callback_metrics",
        "._logger_connector",
        "pytorch_lightning.loops.fit_loop._FitLoop",
        "pytorch_lightning.trainer.call._call_callback_hooks",
        "pytorch_lightning.trainer.call._call_lightning_module_hook",
    },
    "engines/processes/strategy.py": {
        "pytorch_lightning.strategies.launchers._MultiProcessingLauncher",
        "pytorch_lightning.strategies.launchers._SubprocessScriptLauncher",
        "pytorch_lightning.strategies.launchers.subprocess_script._basic_subprocess_cmd",
    },
    "trainer/wandb/workspace.py": {"._to_model"},  # of wandb-workspaces
}
"""By file: what is imported, with its module, and what is read of an object, with a leading dot."""
REPLACED = {
    "fedlit.config.fit_cli.ShortHelp": {"_expand_help"},  # of argparse's formatter, as jsonargparse has it
    "fedlit.engines.processes.strategy.FederatedStrategy": {"_configure_launcher"},
    "fedlit.engines.recurrence._Back": {"_backward_cls"},  # torch makes it in every autograd.Function
    "fedlit.engines.recurrence._Steps": {"_backward_cls"},
}
"""By class: private members of another package's class that it replaces."""
DOCUMENTED = {"_replace", "_fields", "_asdict", "_exit"}
"""Names with an underscore that belong to Python's documented interface: of named tuples, and os._exit."""
ELSEWHERE = {"bench/peers/run_flower.py"}
"""Files that run in an interpreter of their own, with another framework."""


def is_private(name: str) -> bool:
    return any(re.match("_[^_]", word) or word == "experimental" for word in name.split("."))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def defined(path: Path) -> set[str]:
    """Names that a file gives to functions, classes, variables and members of its own objects."""
    nodes = list(ast.walk(tree(path)))
    found = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    found |= {node.id for node in stored if isinstance(node, ast.Name)}
    return found | {node.attr for node in stored if isinstance(node, ast.Attribute) and is_self(node.value)}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imports(path: Path) -> dict[str, str]:
    """What each name of a file stands for, whatever it is called there."""
    found: dict[str, str] = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def private_names(path: Path, own: set[str]) -> set[str]:
    """Of other packages: imported under any name, read from what is imported, read of any object, asked for by name."""
    known = imports(path)
    nodes = list(ast.walk(tree(path)))
    read = [node for node in nodes if isinstance(node, ast.Attribute) and is_private(node.attr)]
    chains = {name for node in read if (name := full_name(node, known)) is not None}
    of_objects = {f".{node.attr}" for node in read if full_name(node, known) is None and node.attr not in own}
    asked = {f".{word}" for node in nodes if isinstance(node, ast.Call) for word in asked_for(node) if is_private(word)}
    found = {name for name in known.values() if is_private(name)} | chains | of_objects | asked
    return {name for name in found if name.split(".")[0] != "fedlit" and name.split(".")[-1] not in DOCUMENTED}


def full_name(node: ast.Attribute, known: dict[str, str]) -> str | None:
    """`torch.ops.aten._to_copy` for a chain that begins with something imported, or None."""
    root, _, rest = ast.unparse(node).partition(".")
    return f"{known[root]}.{rest}" if root in known else None


def asked_for(call: ast.Call) -> list[str]:
    """What getattr and its like are given as a word."""
    is_asking = isinstance(call.func, ast.Name) and call.func.id in ASKING
    return [
        part.value for part in call.args if is_asking and isinstance(part, ast.Constant) and type(part.value) is str
    ]


def sources() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if str(path.relative_to(ROOT)) not in ELSEWHERE]


def classes() -> Iterator[type]:
    """Every class of the package that can be imported here."""
    for module in pkgutil.walk_packages(fedlit.__path__, "fedlit."):
        if not module.name.startswith(("fedlit.bench.peers", "fedlit.configs", "fedlit.sweeps", "fedlit.reproduce")):
            found = importlib.import_module(module.name)
            yield from (one for _, one in inspect.getmembers(found, inspect.isclass) if one.__module__ == module.name)


def replaced(ours: type) -> set[str]:
    """Private members of other packages' classes that a class has under the same name."""
    bases = [base for base in ours.__mro__ if base.__module__.split(".")[0] not in ("fedlit", *sys.stdlib_module_names)]
    theirs = {name for base in bases for name in vars(base)}
    return {name for name in vars(ours) if is_private(name) and not name.startswith("_abc") and name in theirs}


def test_private_names_of_other_packages_are_exactly_these() -> None:
    own = set().union(*(defined(path) for path in sources()))
    found = {str(path.relative_to(ROOT)): private_names(path, own) for path in sources()}
    assert {path: names for path, names in found.items() if names} == USED


def test_private_members_that_are_replaced_are_exactly_these() -> None:
    found = {f"{one.__module__}.{one.__qualname__}": replaced(one) for one in classes()}
    assert {name: members for name, members in found.items() if members} == REPLACED


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from a._b import c as d", {"a._b.c"}),
        ("from a import _b as b", {"a._b"}),
        ("import a.b as c\nc._d.e()", {"a.b._d"}),
        ("import torch\ntorch._C._dispatch()", {"torch._C", "torch._C._dispatch"}),
        ("trainer._connector._metrics.update()", {"._connector", "._metrics"}),
        ("x._count += 1", {"._count"}),
        ("getattr(x, '_hidden', None)", {"._hidden"}),
        ("from a.experimental import b", {"a.experimental.b"}),
        ("def _f(): self._g = 1\nx._f, x._g, x.__d__, take._replace(a=1)", set()),
        ("from fedlit import _public\n_public._thing", set()),
    ],
)
def test_scan_sees_every_way_to_use_a_private_name(source: str, names: set[str], tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(source)
    assert private_names(file, defined(file)) == names


def test_scan_sees_members_that_a_class_replaces() -> None:
    base = type("Base", (), {"_hidden": 1, "open": 2, "__module__": "lightning"})
    ours = type("Ours", (base,), {"_hidden": 3, "open": 4, "_own": 5, "__module__": "fedlit"})
    assert replaced(ours) == {"_hidden"}
