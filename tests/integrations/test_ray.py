"""Many components on a Ray cluster of local processes, by joblib's configuration alone."""

from __future__ import annotations

from integrations.processes import python

# In a process of its own: Ray leaves files open, and its workers start from the main module.
PROGRAM = """
import numpy as np
import ray
from joblib import parallel_config
from ray.util.joblib import register_ray
from scipy import sparse

from stepsize_opt import RandK, optimal_stepsize

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
register_ray()
rng = np.random.default_rng(0)
roots = [rng.standard_normal((n, n)) for n in rng.integers(4, 20, 80)]
L = sparse.block_diag([A @ A.T + np.eye(len(A)) for A in roots], format="csr")
sketch = RandK(L.shape[0], L.shape[0] // 4)
with parallel_config(backend="ray", n_jobs=2):
    result = optimal_stepsize(L, sketch)
alone = optimal_stepsize(L, sketch, n_jobs=1)
for ours, theirs in zip(result.blocks, alone.blocks, strict=True):
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_allclose(ours.D, theirs.D, rtol=1e-9)
print(result.status, alone.status, len(result.blocks))
"""


def test_ray_gives_the_answer_of_one_process() -> None:
    done = python("-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "optimal optimal 80"
