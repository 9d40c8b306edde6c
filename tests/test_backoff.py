from itertools import cycle

from qo.backoff import Backoff


def test_pauses_grow_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.upcoming == backoff.next() == 0.1


def test_chance_moves_pauses_within_the_jitter_and_does_not_change_their_growth() -> None:
    chance = cycle([0.0, 0.5, 1.0])
    backoff = Backoff(1.0, 8.0, jitter=(0.5, 1.5), random=lambda: next(chance))
    assert [backoff.next() for _ in range(5)] == [0.5, 2.0, 6.0, 4.0, 8.0]
