"""Patterns and programs: membership, projections, restrictions, commuting sketches, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from shared.native_problems import all_maps, rand_k, spectrum
from stepsize_opt.sketches import BernQ, FiniteSketch
from stepsize_solvers.programs import DiagonalPlusScaled, Family, Hadamard, Matrix, Pattern, Program

W = np.diag([2.0, 3.0, 1.0]) + np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
PATTERNS = {
    "full": Pattern.full(3),
    "blocks": Pattern((2, 1)),
    "diagonal": Pattern((1, 1, 1)),
    "direction": Pattern((3,), spectrum(3, 10.0)),
    "direction by layers": Pattern((2, 1), W),
}


def member(pattern: Pattern, seed: int = 0) -> Matrix:
    """A random matrix with the pattern: 𝛾ᵢWᵢ or free blocks."""
    rng = np.random.default_rng(seed)
    if pattern.W is not None:
        return np.asarray(rng.uniform(0.1, 10.0, len(pattern.sizes))[pattern.labels][:, None] * pattern.W)
    return pattern.blocks(spectrum(pattern.d, 10.0, seed))


class TestPattern:
    def test_names(self) -> None:
        assert [name for name, p in PATTERNS.items() if p.is_full] == ["full"]
        assert [name for name, p in PATTERNS.items() if p.is_diagonal] == ["diagonal"]
        assert [name for name, p in PATTERNS.items() if p.direction is not None] == ["direction"]
        assert Pattern.full(1).is_full and Pattern.full(1).is_diagonal
        assert [p.d for p in PATTERNS.values()] == [3] * 5
        for sizes in ((), (2, 0), (-1, 4)):
            with pytest.raises(ValueError, match="block sizes must be positive whole numbers"):
                Pattern(sizes)

    @pytest.mark.parametrize("name", PATTERNS)
    def test_contains_its_members_and_no_others(self, name: str) -> None:
        pattern = PATTERNS[name]
        assert pattern.contains(pattern.member)
        for seed in range(5):
            M = member(pattern, seed)
            assert pattern.contains(M) and pattern.contains(1e-150 * M)
            lopsided = M.copy()
            lopsided[0, 1] = np.nextafter(M[0, 1], np.inf)
            assert not pattern.contains(lopsided)
            outside = M + 1e-12 * np.ones((3, 3))
            assert pattern.contains(outside) == pattern.is_full
            if pattern.W is not None:
                assert not pattern.contains(-M)

    @pytest.mark.parametrize("name", PATTERNS)
    def test_nearest(self, name: str) -> None:
        """A member for any matrix, the matrix itself for a member, the trace of each block kept."""
        pattern = PATTERNS[name]
        M = np.random.default_rng(1).standard_normal((3, 3)) + 4.0 * np.eye(3)
        near = pattern.nearest(M)
        assert pattern.contains(near)
        for s in pattern.slices:
            assert np.trace(near[s, s]) == pytest.approx(np.trace(M[s, s]))
        np.testing.assert_allclose(pattern.nearest(member(pattern)), member(pattern), rtol=1e-14)
        if pattern.W is None:
            np.testing.assert_array_equal(near, pattern.blocks(0.5 * (M + M.T)))

    @pytest.mark.parametrize("name", PATTERNS)
    @pytest.mark.parametrize("indices", [[0], [0, 2], [1, 2], [0, 1, 2]])
    def test_restrict(self, name: str, indices: list[int]) -> None:
        """The restriction of a member is one of the restricted pattern, which holds nothing else but 1×1 blocks."""
        pattern, rows = PATTERNS[name], np.array(indices)
        part = pattern.restrict(rows)
        assert part.d == len(indices)
        assert part.contains(member(pattern)[np.ix_(rows, rows)])
        np.testing.assert_array_equal(
            part.blocks(np.ones((part.d, part.d))), pattern.blocks(np.ones((3, 3)))[np.ix_(rows, rows)]
        )
        assert (part.W is None) == (pattern.W is None or max(part.sizes) == 1)

    def test_rescaled(self) -> None:
        scale = np.array([2.0, 0.5, 4.0])
        for pattern in PATTERNS.values():
            assert pattern.rescaled(scale).contains(member(pattern) / scale[:, None] / scale)

    def test_commutes_with(self) -> None:
        """By the outcomes themselves: Diag(s) X = X Diag(s) for each of a sketch and a random X of the pattern."""
        shared, single = BernQ([0.5, 0.25], [2, 1]), BernQ([0.5, 0.25], [1, 2])
        for name, pattern in PATTERNS.items():
            M = member(pattern)
            for sketch in (shared, single, BernQ(0.4, 3)):
                _, outcomes = sketch.support()
                commute = all(np.allclose(s[:, None] * M, M * s) for s in outcomes)
                assert pattern.commutes_with(sketch.map) == commute, (name, sketch)
        assert not PATTERNS["diagonal"].commutes_with(FiniteSketch([np.eye(3)], [1.0]).map)  # not known to be diagonal
        assert PATTERNS["full"].commutes_with(DiagonalPlusScaled.identity(3))
        assert not PATTERNS["blocks"].commutes_with(rand_k(3, 2))
        assert Pattern((2, 1), np.diag([1.0, 2.0, 3.0])).commutes_with(rand_k(3, 2))  # a diagonal W
        assert not Pattern((3,), W).commutes_with(Hadamard(np.diag([1.0, 2.0, 3.0]) + 1.0))


class TestProgram:
    identity = DiagonalPlusScaled.identity(3)
    family = Family(identity, None, np.eye(3)[None], c=1.0)

    def test_families_that_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(n, 3, r\)"):
            Family(self.identity, None, np.eye(3), c=1.0)
        with pytest.raises(ValueError, match=r"shape \(n, 3, r\)"):
            Family(self.identity, None, np.eye(2)[None], c=1.0)
        with pytest.raises(ValueError, match="aX goes with the factor H = I only"):
            Family(self.identity, np.eye(3), np.eye(3)[None], a=1.0)
        for numbers in ({}, {"c": -1.0}, {"e": np.nan}, {"a": np.inf}, {"a": -1.0, "c": 1.0}):
            with pytest.raises(ValueError, match="nonnegative, finite and not all zero"):
                Family(self.identity, np.eye(3), **numbers)

    def test_programs_that_are_refused(self) -> None:
        with pytest.raises(ValueError, match="unbounded"):
            Program((), Pattern.full(3))
        with pytest.raises(ValueError, match="d=3 but the pattern is for d=2"):
            Program((self.family,), Pattern.full(2))
        for root in (2.9, np.nan, -1.0):
            with pytest.raises(ValueError, match="root must be at least d=3"):
                Program((self.family,), Pattern.full(3), root)

    def test_the_one_condition(self) -> None:
        program = Program.single(np.eye(3), self.identity)
        assert program.condition is program.families[0] and program.pattern.is_full
        assert (program.d, program.root, program.power, program.total_size) == (3, 3.0, 1.0, 3)
        (family,) = program.families
        for families in ((family, self.family), (self.family,), (Family(self.identity, np.eye(3), a=2.0),)):
            assert Program(families, Pattern.full(3)).condition is None

    @pytest.mark.parametrize("right", [{"c": 2.0}, {"e": 0.5}, {"c": 0.3, "e": 0.7}])
    @pytest.mark.parametrize("B", [None, spectrum(4, 10.0)], ids=["linear", "quadratic"])
    def test_largest_scale(self, B: Matrix | None, right: dict[str, float]) -> None:
        """At the largest multiple the inequality is singular, and the larger root makes τ grow more slowly."""
        X, Q = spectrum(4, 10.0, 3), all_maps(4)["rand-k"]
        for root in (4.0, 8.0):
            if root == 4.0 and B is None and "e" in right:
                continue  # t and τ(tX) grow alike: no multiple, or every one, is feasible
            program = Program((Family(Q, B, np.eye(4)[None], **right),), Pattern.full(4), root, 0.2)
            image = Q.apply(X if B is None else X @ B @ X)
            log_det = float(np.linalg.slogdet(X)[1])
            t = program.largest_scale(log_det, [float(np.linalg.eigvalsh(image)[-1])])
            tau = np.exp((log_det + 4 * np.log(t) - 0.2) / root)
            left = right.get("c", 0.0) + right.get("e", 0.0) * tau
            top = np.linalg.eigvalsh(Q.apply(t * X if B is None else t * t * X @ B @ X))[-1]
            assert left == pytest.approx(top, rel=1e-12)
