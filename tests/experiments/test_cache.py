"""Values that are kept on disk: reused for the same key, made again for another and from a damaged file."""

from __future__ import annotations

from pathlib import Path

from stepsize_validation.experiments.cache import kept


def test_a_value_is_kept_for_its_key_and_made_again_from_a_damaged_file(tmp_path: Path) -> None:
    path, made = tmp_path / "value.npz", iter(range(10))
    assert [kept(path, {"k": 1}, lambda: next(made)) for _ in range(2)] == [0, 0]
    assert kept(path, {"k": 2}, lambda: next(made)) == 1
    assert kept(path, {"k": 2}, lambda: next(made), good=lambda value: value != 1) == 2
    path.write_bytes(path.read_bytes()[:40])
    assert [kept(path, {"k": 2}, lambda: next(made)) for _ in range(2)] == [3, 3]
