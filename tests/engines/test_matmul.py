"""Small matmul, and loops on plain memory, against torch."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedlit import MLP, FedAvg, FedBC
from fedlit.client.base import Client
from fedlit.engines import matmul
from fedlit.engines.compiler import compile_program, missing_compiler, repeat_while
from fedlit.engines.matmul import MOST_TERMS
from fedlit.engines.program_folder import cache_folder
from tests.problems import CLASSES, kept_rows, largest_difference, run, tiny_data, weights_of

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

SIZES = [(1, 1, 1), (2, 3, 1), (10, 60, 10), (3, 5, 7), (1, 9, 8), (11, 2, 17), (13, 33, 9), (4, 1, 32), (60, 10, 40)]
"""Rows, inner, columns: less than a vector, exactly one, ragged, more rows or columns than a block."""
FORMS = list(product((False, True), repeat=2))
"""Whether either factor is the transpose of what lies in memory."""
CLOSE = {torch.float64: 1e-13, torch.float32: 1e-5}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path_factory.getbasetemp() / "products"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored at the end: compile_program sets it


def written(program: Callable[..., tuple[Tensor, ...]], *args: Tensor) -> tuple[tuple[Tensor, ...], str]:
    """What the compiled program gives, and its C++."""
    before = set(cache_folder().rglob("*.main.cpp"))
    made = compile_program(program, args)(*args)
    return made, "".join(path.read_text() for path in set(cache_folder().rglob("*.main.cpp")) - before)


def factor(lanes: int, rows: int, columns: int, is_turned: bool, dtype: torch.dtype) -> Tensor:
    if is_turned:
        return torch.randn(lanes, columns, rows, dtype=dtype).transpose(1, 2)
    return torch.randn(lanes, rows, columns, dtype=dtype)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_small_products_are_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cases = [(*size, *form) for size in SIZES for form in FORMS]
    pairs = [
        (factor(3, rows, inner, turned_a, dtype), factor(3, inner, columns, turned_b, dtype))
        for rows, inner, columns, turned_a, turned_b in cases
    ]

    def program(*factors: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.bmm(a, b) for a, b in zip(factors[::2], factors[1::2], strict=True))

    made, code = written(program, *(x for pair in pairs for x in pair))
    assert code.count(" product<") == len(cases)
    for case, (a, b), ours in zip(cases, pairs, made, strict=True):
        assert torch.allclose(ours, torch.bmm(a, b), rtol=CLOSE[dtype], atol=CLOSE[dtype]), case


def test_products_of_one_lane_with_a_sum_a_factor_and_a_broadcast() -> None:
    torch.manual_seed(0)
    a, b, c = (torch.randn(size, dtype=torch.float64) for size in ((6, 5), (5, 9), (9,)))

    def program(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        repeated = a[:1].expand(4, 5)
        return a @ b, torch.addmm(c, a, b), torch.addmm(c, a, b, beta=0.5, alpha=-2.0), repeated @ b

    made, code = written(program, a, b, c)
    assert "aoti_torch_cpu_mm" not in code
    assert "aoti_torch_cpu_addmm" not in code
    for ours, theirs in zip(made, program(a, b, c), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-13, atol=1e-13)


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    a, b = torch.ones(1, 5, 4), torch.ones(1, 4, 3)
    a[0, 2, 1], b[0, 0, 1] = float("inf"), float("nan")
    (ours,), _ = written(lambda a, b: (torch.bmm(a, b),), a, b)
    assert torch.equal(ours.isnan(), torch.bmm(a, b).isnan())
    assert torch.equal(ours.isfinite(), torch.bmm(a, b).isfinite())


def loop_of(rows: int, *, calls_torch: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """Two tensors that change places with matmul, a gather and a view of a part in the body."""

    def program(x: Tensor, z: Tensor, w: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        def step(t: Tensor, carried: tuple[Tensor, ...], fixed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            own, other = carried
            row = fixed[0].index_select(0, t % rows)
            one = torch.linalg.det(torch.eye(2, dtype=x.dtype)) if calls_torch else 1.0
            both = torch.cat([other + row.sum(), own @ fixed[0].T @ fixed[0] / rows * one], 0)
            return both[:rows].clone(), both[rows:] * 0.9

        return repeat_while(step, first, last, [x, z], [w])

    return program


@pytest.mark.parametrize(
    ("rows", "is_lean"),
    [(4, True), (120, True), (5, False)],
    ids=["small products", "large products", "torch's memory"],
)
@pytest.mark.parametrize("turns", [0, 1, 2, 7])
def test_a_loop_gives_the_numbers_of_python(rows: int, is_lean: bool, turns: int) -> None:
    torch.manual_seed(0)
    x, z, w = (torch.randn(rows, rows, dtype=torch.float64) for _ in range(3))
    last = torch.tensor([turns])
    made, code = written(loop_of(rows, calls_torch=not is_lean), x, z, w, torch.tensor([0]), last)
    assert not code or ("Memory " in code.split("inductor_entry_impl", 1)[1]) == is_lean
    assert not code or (" large_products<" in code) == (rows**3 > MOST_TERMS)
    own, other = x, z
    for t in range(turns):
        row = w[t % rows]
        own, other = other + row.sum(), own @ w.T @ w / rows * 0.9
    for ours, theirs in zip(made, (own, other), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_larger_products_and_steps_by_them_are_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cases = [(*size, turned) for size in [(32, 300, 128), (120, 33, 97), (7, 900, 64)] for turned in (False, True)]
    rate = torch.tensor(0.3, dtype=dtype)
    given = [
        (torch.randn(rows, columns, dtype=dtype), *(factor(1, *size, dtype)[0] for size in sizes))
        for rows, inner, columns, turned in cases
        for sizes in [((rows, inner, turned), (inner, columns, False))]
    ]

    def program(rate: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        triples = zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True)
        return tuple(value for x, a, b in triples for value in (a @ b, x - rate * (a @ b)))

    tensors = [tensor for triple in given for tensor in triple]
    made, code = written(program, rate, *tensors)
    assert (code.count(" product<"), code.count(" moved<")) == (len(cases), len(cases))
    twice = [case for case in cases for _ in range(2)]
    for case, ours, theirs in zip(twice, made, program(rate, *tensors), strict=True):
        assert torch.allclose(ours, theirs, rtol=CLOSE[dtype], atol=10 * CLOSE[dtype]), case


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_products_of_any_size_are_torchs(dtype: torch.dtype) -> None:
    """More than is packed at a time in each direction, ragged ends, thin ones, several of them, and steps by them."""
    torch.manual_seed(0)
    sizes = [(17, 1030, 531), (600, 40, 521), (2600, 33, 5), (29, 700, 16)]
    cases = [(*size, *form) for size in sizes for form in FORMS]
    pairs = [
        (factor(2, rows, inner, turned_a, dtype), factor(2, inner, columns, turned_b, dtype))
        for rows, inner, columns, turned_a, turned_b in cases
    ]
    x, rate, wide = (
        torch.randn(40, 600, dtype=dtype),
        torch.tensor(0.3, dtype=dtype),
        torch.randn(700, 600, dtype=dtype),
    )

    def program(x: Tensor, rate: Tensor, wide: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
        moved = x - rate * (wide[:, :40].T @ wide)
        return moved, *(torch.bmm(a, b) for a, b in zip(factors[::2], factors[1::2], strict=True))

    tensors = [x, rate, wide, *(one for pair in pairs for one in pair)]
    made, code = written(program, *tensors)
    large = [matmul.Factors(*sizes, inner if turned else 1) for *sizes, _, turned in cases for inner in sizes[1:2]]
    assert code.count(" large_products<") == sum(one.are_large for one in large) > len(cases) / 2
    assert code.count(" large_moved<") == 1
    for case, ours, theirs in zip([(), *cases], made, program(*tensors), strict=True):
        assert float((ours - theirs).abs().max()) <= 50 * CLOSE[dtype], case


def test_a_product_that_is_read_twice_is_written() -> None:
    a, b, x, rate = torch.randn(8, 8), torch.randn(8, 32), torch.randn(8, 32), torch.tensor(0.1)

    def program(a: Tensor, b: Tensor, x: Tensor, rate: Tensor) -> tuple[Tensor, ...]:
        made = a @ b
        return made, x - rate * made, x[0] - rate * (a @ b), x - x * (a @ b)

    made, code = written(program, a, b, x, rate)
    assert " moved<" not in code
    for ours, theirs in zip(made, program(a, b, x, rate), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_loop_that_begins_with_parts_of_a_tensor() -> None:
    """The compiler hands them over without a copy, and they are smaller than what they are a part of."""
    flat = torch.arange(2048.0)

    def program(flat: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        start = [flat[:1024].clone(), flat[1024:1040].clone(), flat[1040:].clone()]
        return repeat_while(lambda t, carried, fixed: tuple(x + 1 for x in carried), first, last, start, [flat])

    made, code = written(program, flat, torch.tensor([0]), torch.tensor([3]))
    assert "Memory " in code.split("inductor_entry_impl", 1)[1]
    sizes = [int(size) for size in re.findall(r"_memory\.copy\(\d+, (\d+),", code)]
    assert sizes == [8, 4096, 64, 4032]
    assert torch.equal(torch.cat(made), flat + 3)


WIDE = (20, 24)
TURNED: dict[str, Callable[[], Client]] = {
    "steps by a product": lambda: FedAvg(wide_net(), lr=0.05, batch_size=4, local_epochs=2),
    "other steps": lambda: FedBC(wide_net(), dual_lr=0.3, momentum=0.5, lr=0.05, batch_size=4, local_epochs=2),
}


def wide_net() -> MLP:
    torch.manual_seed(3)
    net: MLP = MLP(WIDE[0], WIDE[1:], CLASSES).double()
    return net


@pytest.mark.parametrize("maker", TURNED)
def test_weights_that_are_kept_turned_come_to_the_same(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "MOST_TERMS", 500)  # else it takes a net of a size that tests need not have
    data = tiny_data(shape=WIDE[:1])
    slow = run(TURNED[maker](), data)
    before = set(cache_folder().rglob("*.main.cpp"))
    fast = run(TURNED[maker](), data, engine="vectorized", compiled=True, lanes=1, workers=1)
    code = "".join(path.read_text() for path in set(cache_folder().rglob("*.main.cpp")) - before)
    assert " turned<" in code
    assert (" moved<" in code) == (maker == "steps by a product")
    assert largest_difference(weights_of(slow), weights_of(fast)) <= 1e-10
    assert largest_difference(kept_rows(slow), kept_rows(fast)) <= 1e-10


def test_what_another_builder_compiled_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fedlit.engines import program_folder

    folder = cache_folder()
    (tmp_path / "builder.py").write_text("another one")
    monkeypatch.setattr(program_folder, "BUILDERS", (tmp_path / "builder.py",))
    program_folder.builders_key.cache_clear()
    try:
        assert cache_folder() != folder
    finally:
        program_folder.builders_key.cache_clear()
