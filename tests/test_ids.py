"""Ids, secrets and chance; and how instants are written."""

import os
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from qo.clock import boot_clock, instant, iso
from qo.ids import new_id, new_token, new_worker_id, random_fraction
from qo.model import check_id, check_name
from qo.testing import ManualClock


def test_ids_are_uuids_and_never_the_same() -> None:
    made = [new_id() for _ in range(2_000)]
    assert len({check_id(each) for each in made}) == 2_000
    assert {each[14] for each in made} == {"8"}
    assert {each[19] for each in made} == set("89ab")


def test_ids_grow_with_time_behind_their_first_digit() -> None:
    clock = ManualClock()
    made = []
    for _ in range(50):
        made.append(new_id(clock)[1:])
        clock.advance(0.002)
    assert made == sorted(made)


def test_ids_spread_over_sixteen_shards() -> None:
    clock = ManualClock()
    assert len({new_id(clock)[0] for _ in range(1_000)}) == 16


def test_ids_made_in_one_millisecond_differ() -> None:
    clock = ManualClock()
    assert len({new_id(clock) for _ in range(1_000)}) == 1_000


def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    new_token()  # more is drawn than is used, and a child has a copy of the rest
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "".join(new_token() for _ in range(20)).encode())
        os._exit(0)
    mine = {new_token() for _ in range(20)}
    os.waitpid(child, 0)
    text = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    theirs = {text[at : at + 32] for at in range(0, len(text), 32)}
    assert len(theirs) == 20 and not mine & theirs


def test_threads_never_share_an_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [each for some in pool.map(lambda _: [new_token() for _ in range(500)], range(16)) for each in some]
    assert len(set(made)) == 8_000


def test_a_lease_id_is_128_random_bits() -> None:
    made = {new_token() for _ in range(1_000)}
    assert len(made) == 1_000
    assert {len(each) for each in made} == {32}


@given(st.text(max_size=80))
def test_a_worker_has_a_valid_id_regardless_of_its_host_name(host: str) -> None:
    name = new_worker_id(host)
    assert check_name("worker_id", name) == name


def test_two_workers_on_one_host_have_two_names() -> None:
    assert new_worker_id("web-1") != new_worker_id("web-1")
    assert new_worker_id("web-1").startswith("web-1-")


def test_luck_is_a_share_of_one() -> None:
    assert all(0 <= random_fraction() < 1 for _ in range(100))


def test_an_instant_is_written_in_iso_8601_utc() -> None:
    assert iso(1_700_000_000.25) == "2023-11-14T22:13:20.250Z"
    assert iso(None) is None


def test_an_instant_is_read_with_or_without_its_offset() -> None:
    texts = ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-15T00:13:20+02:00", "2023-11-14 22:13:20+00:00"]
    assert {instant(text) for text in texts} == {1_700_000_000.0}


@given(st.integers(0, 4_000_000_000_000))
def test_instants_survive_writing_and_reading_to_the_millisecond(milliseconds: int) -> None:
    written = iso(milliseconds / 1_000)
    assert written is not None
    assert round(instant(written) * 1_000) == milliseconds


def test_the_boot_clock_does_not_run_backwards() -> None:
    assert boot_clock() <= boot_clock()
