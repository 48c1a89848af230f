"""The pure parts of the benchmarks of traffic, lines and sizes; the runs themselves are theirs."""

import struct
import sys

import numpy as np
import pytest

from benchmarks import (
    digits_data,
    fedavg,
    job_run,
    peer_flower,
    round_grid,
    traffic,
    traffic_sides,
    wan,
)
from benchmarks.delayed_link import Line, queue_bytes, wire_bytes
from benchmarks.job_text import with_values
from benchmarks.own_network import Traffic
from benchmarks.traffic_sides import Counter, Spent
from tidegate.jobfile import JobFile

HEADERS = 54


def packet(size, *, segment=0):
    kind = 1 if segment else 0
    return struct.pack("=BBHHHH", 0, kind, 0, segment, 0, 0) + bytes(size)


def spent(up, down):
    return Spent(up, down, 2 * up, 2 * down, {})


@pytest.mark.parametrize("script", [round_grid, traffic, wan])
def test_every_option_has_a_default(script):
    assert script.parse([]).json is None


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (round_grid, ["--mb", "3"]),
        (round_grid, ["--sites", "1"]),
        (round_grid, ["--sites", "many"]),
        (round_grid, ["--peers", "openfl"]),
        (wan, ["--mbit", "fast"]),
        (wan, ["--mbit", "0"]),
        (wan, ["--rounds", "2"]),
        (wan, ["--mb", "7"]),
        (traffic, ["--rounds", "4"]),
        (traffic, ["--seeds", "0"]),
    ],
)
def test_sizes_that_measure_nothing_are_refused(script, arguments):
    with pytest.raises(SystemExit):
        script.parse(arguments)


def test_a_quick_run_is_short():
    options = traffic.parse(["--quick"])
    assert (options.seeds, options.rounds) == (1, traffic.QUICK_ROUNDS)


@pytest.mark.parametrize(("mb", "parameters"), [(0.1, 25_600), (10.0, 2_621_440)])
def test_sizes_are_those_they_are_called_by(mb, parameters):
    assert round_grid.parameters_of(mb) == parameters
    assert 4 * parameters == pytest.approx(mb * 1e6, rel=0.05)


@pytest.mark.parametrize("name", ["job.toml", "masks-only.toml"])
def test_the_grids_job_files_are_valid_at_other_sizes(name):
    raw = with_values((round_grid.APP / name).read_text(), {"rounds": 7, "target_sites": 9})
    assert JobFile.parse(raw).round.target_sites == 9


@pytest.mark.parametrize("app", [traffic_sides.APPS / "digits", wan.APP])
def test_jobs_that_compare_with_a_peer_without_noise_have_none(app):
    assert JobFile.parse((app / "job.toml").read_bytes()).privacy.mode == "none"


def test_an_accelerator_is_busy_while_it_trains_and_never_more():
    assert wan.busy_fraction(8.0, 10.0) == 0.8
    assert wan.busy_fraction(8.0, 7.99) == 1.0


def test_a_line_takes_its_time_for_the_bits_and_then_the_delay():
    line = Line(bytes_per_s=1000.0, delay_s=2.0, queue_bytes=10_000.0)
    assert line.put(packet(1000 - HEADERS), 10.0)
    assert line.put(packet(500 - HEADERS), 10.0)
    assert line.next_s() == pytest.approx(13.0)
    assert line.arrived(12.9) == []
    assert [len(found) for found in line.arrived(13.4)] == [10 + 1000 - HEADERS]
    assert [len(found) for found in line.arrived(13.6)] == [10 + 500 - HEADERS]
    assert line.next_s() is None


def test_a_line_whose_queue_is_full_drops_and_is_free_again_later():
    line = Line(bytes_per_s=1000.0, delay_s=0.0, queue_bytes=1500.0)
    assert line.put(packet(1000), 0.0)
    assert not line.put(packet(1000), 0.0)
    assert line.dropped == 1
    assert line.put(packet(1000), 1.0)


def test_a_super_packet_counts_the_headers_of_all_its_frames():
    assert wire_bytes(packet(1000)) == 1000 + HEADERS
    assert wire_bytes(packet(3000, segment=1448)) == 3000 + 3 * HEADERS
    assert sys.byteorder == "little"  # else the packet above is another


def test_a_routers_queue_holds_a_product_and_a_half_and_three_packets_at_least():
    assert queue_bytes(1e6 / 8, 0.025) == 3 * 65_536
    assert queue_bytes(1e9 / 8, 0.025) == pytest.approx(1.5 * 6.25e6)


def test_bytes_of_a_round_leave_out_what_a_job_begins_and_ends_with():
    counter = Counter(lambda: Traffic(0, 0), sites=2)
    counter.marks = [
        (0, Traffic(0, 0)),
        (1, Traffic(1000, 9000)),
        (5, Traffic(1800, 9400)),
        (6, Traffic(2400, 9600)),
    ]
    assert counter.per_round() == (100.0, 50.0, 200.0, 800.0)


def test_bytes_of_a_job_seen_too_seldom_are_not_guessed():
    counter = Counter(lambda: Traffic(0, 0), sites=2)
    counter.marks = [(0, Traffic(0, 0)), (3, Traffic(1, 1)), (3, Traffic(2, 2))]
    with pytest.raises(RuntimeError, match="too few rounds"):
        counter.per_round()


def test_points_lost_are_paired_by_seed():
    found = traffic.compared(
        [spent(1.0, 3.0), spent(3.0, 5.0)], spent(100.0, 200.0), [0.90, 0.91], [0.92, 0.92]
    )
    assert found["up_saved"] == pytest.approx(0.98)
    assert found["down_saved"] == pytest.approx(0.98)
    assert found["points_lost"] == pytest.approx(1.5)
    assert found["points_lost_by_seed"] == pytest.approx([2.0, 1.0])


def test_classes_are_dealt_out_whole_and_unevenly():
    digits_N = np.repeat(np.arange(10), 100)
    places = digits_data.dirichlet_places(digits_N, 5, np.random.default_rng(3))
    assert sorted(np.concatenate(places)) == list(range(1000))
    largest = [np.bincount(digits_N[place]).max() / len(place) for place in places]
    assert max(largest) > 0.2  # evenly dealt, each class would be a tenth of every site


def test_no_test_record_is_at_a_site():
    pixels_NF = np.arange(1000, dtype=np.float32)[:, np.newaxis]
    split = digits_data.split(pixels_NF, np.arange(1000) % 10, 4, seed=1, least=10)
    at_sites = np.concatenate([table["pixels"][:, 0] for table in split.sites])
    everywhere = np.concatenate([at_sites, split.test["pixels"][:, 0]])
    assert sorted(everywhere) == list(range(1000))
    assert len(split.test["digit"]) == 200


def test_fedavg_of_one_site_is_its_own_training():
    task = fedavg.load_module(traffic_sides.APPS / "digits" / "task.py", "digits_task_for_test")
    task.INPUTS, task.FIRST, task.SECOND = 6, 5, 4
    draw = np.random.default_rng(0)
    shard = {
        "pixels": draw.standard_normal((30, 6)).astype(np.float32),
        "digit": draw.integers(10, size=30),
    }
    first = {name: w.detach().numpy().copy() for name, w in task.model().named_parameters()}
    training = fedavg.Training(steps=3, batch=8, rate=0.1)
    once = fedavg.fedavg(task, first, [shard], training, rounds=2, seed=0)
    twice = fedavg.fedavg(task, first, [shard, shard], training, rounds=1, seed=0)
    assert traffic_sides.difference(once, twice) > 0
    again = fedavg.fedavg(task, first, [shard], training, rounds=2, seed=0)
    assert traffic_sides.difference(once, again) == 0
    assert 0 <= fedavg.accuracy(task, once, shard) <= 1


def test_values_are_written_as_toml_pairs():
    written = peer_flower.toml_pairs({"rounds": 3, "out": "a/b", "rate": 0.5})
    assert written == 'rounds=3 out="a/b" rate=0.5'


def test_a_job_that_failed_is_not_measured(monkeypatch):
    from tidegate.v1 import operator_pb2

    class Api:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def SubmitJob(self, _):
            return operator_pb2.SubmitJobResponse(job_id="j")

        def WatchJob(self, _):
            running = operator_pb2.Job(job_id="j", state="running", round=1)
            failed = operator_pb2.Job(job_id="j", state="failed", round=1, detail="no quorum")
            return [operator_pb2.WatchJobResponse(job=job) for job in (running, running, failed)]

    class Federation:
        def operator(self):
            return None

        def check_alive(self):
            return None

    seen = []
    monkeypatch.setattr(job_run, "operator_api", lambda _: Api())
    monkeypatch.setattr(job_run, "requests_of", lambda _: iter(()))
    with pytest.raises(RuntimeError, match="no quorum"):
        job_run.run_job(Federation(), None, seen.append)
    assert seen == [1]
