"""Laws of Office-Caltech10: four domains as clients, with the sizes of Exp-α's table 5."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlit import OfficeCaltech10, Softmax
from fedlit.data.files.office import DOMAINS, read_office
from fedlit.errors import ConfigError
from tests.data.built import fit, has_disjoint_parts, rows_of, sizes
from tests.data.files import refused
from tests.data.files.test_office import write
from tests.data.test_domain_split import TABLES_5_AND_6
from tests.real_files import Real


def ready(root: Path, **options: Any) -> OfficeCaltech10:
    data = OfficeCaltech10(str(root), **options)
    data.setup()
    return data


def test_real_domains_have_the_sizes_of_table_5(real: Real) -> None:
    data = ready(real("office", "office"))
    assert sizes(data) == {domain: TABLES_5_AND_6[domain] for domain in DOMAINS}
    assert (data.num_classes, data.sample_shape) == (10, (800,))


def test_real_samples_are_the_readers_domain_after_domain(real: Real) -> None:
    root = real("office", "office")
    data, domains = ready(root), read_office(root)
    for client, features in enumerate(domains.values()):
        x, y = data.rows(data.store, torch.from_numpy(rows_of(data, client)))
        np.testing.assert_array_equal(x, features.x)
        np.testing.assert_array_equal(y, features.y)


def test_domains_are_clients_and_groups(tmp_path: Path) -> None:
    data = ready(write(tmp_path))
    assert data.groups == ["amazon", "caltech", "dslr", "webcam"]
    assert sizes(data) == dict.fromkeys(DOMAINS, (2, 2, 2))  # of 6: ceil(1.2) to test, ceil(1.2) of 4 to validate
    assert data.num_classes == 10  # although the file has six


def test_no_sample_is_in_two_parts_and_none_is_lost(tmp_path: Path) -> None:
    data = ready(write(tmp_path))
    assert has_disjoint_parts(data)
    assert [rows_of(data, client).tolist() for client in range(4)] == np.arange(24).reshape(4, 6).tolist()


def test_the_hash_is_that_of_another_build_and_not_of_another_seed(tmp_path: Path) -> None:
    write(tmp_path)
    first, again, other = (ready(tmp_path, seed=seed).partition_hash for seed in (0, 0, 1))
    assert first == again != other


def test_the_shares_can_be_chosen(tmp_path: Path) -> None:
    data = ready(write(tmp_path), test_fraction=0.5, val_fraction=0.0)
    assert set(sizes(data).values()) == {(3, 0, 3)}


def test_a_share_outside_zero_to_one_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"data\.val_fraction is 1\.0"):
        OfficeCaltech10(val_fraction=1.0)


def test_a_split_by_order_is_no_option() -> None:
    with pytest.raises(TypeError, match="split"):
        OfficeCaltech10(split="tail")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refused("Office-Caltech10 is not complete", f"Put office_caltech10_surf.npz into {tmp_path / 'office'}"):
        ready(tmp_path)


def test_a_round_can_be_trained(tmp_path: Path) -> None:
    write(tmp_path)
    trainer = fit(OfficeCaltech10(str(tmp_path), limit=2), Softmax(800, 10))
    assert np.isfinite(float(trainer.callback_metrics["global/loss"]))
