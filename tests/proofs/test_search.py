"""The search for the first candidate with a proof."""

from __future__ import annotations

from stepsize_opt.proofs import UNIT, first_proved, losses


def test_the_first_proof_is_returned_and_no_later_candidate_is_tried() -> None:
    tried = []

    def prove(loss: float) -> str | None:
        tried.append(loss)
        return f"proved at {loss}" if loss >= 2.0 else None

    assert first_proved(losses(0.5, 100.0), prove) == "proved at 2.0"
    assert tried == [0.5, 2.0]


def test_none_is_returned_when_no_candidate_is_proved() -> None:
    assert first_proved(losses(1.0, 8.0, 2.0), lambda loss: None) is None


def test_losses_end_at_the_last_one_and_leave_zero() -> None:
    assert list(losses(1.0, 8.0, 2.0)) == [1.0, 2.0, 4.0, 8.0]
    assert list(losses(0.0, 4.0 * UNIT, 2.0)) == [0.0, UNIT, 2.0 * UNIT, 4.0 * UNIT]
    assert list(losses(float("nan"), 1.0)) == []
