"""What main asks is hostile until it is checked; what it heard once, it hears again."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from aggregator.secure_rounds import Instruction, SecureMean
from aggregator.server_app import driver
from aggregator.server_app.driver import ServerAppDriver
from aggregator.server_app.frames import MAX_NODES, encode_start, read_exchange, read_missing
from aggregator.server_app.memory import ModelMemory
from aggregator.server_app.store import Answer, CallStore, request_digest
from aggregator.store import Store
from privacy.errors import PeerError, Reason, UsageError
from tests.support.flower_site import flower_job
from tidegate.flower_config import MAX_BYTES, MessageConfig, encode
from tidegate.jobfile import JobFile

D = 4
READY = {"ready": [], "notes": []}
DONE = {"done": True}
SETTINGS = encode(MessageConfig({"lr": 0.5}))


class Child:
    """A process that says what it is told to say."""

    def __init__(self, script):
        self.memory = ModelMemory(0, D).attach(ModelMemory(0, D).create())
        self.script = deque(script)
        self.sent = []

    def receive(self, _within_s, check):
        check()
        step = self.script.popleft()
        return step(self) if callable(step) else step

    def send(self, frame):
        self.sent.append(frame)


class Runner:
    """A job whose sums are ones."""

    def __init__(self, store, **job):
        file = JobFile.parse(flower_job(**job))
        evaluates = file.evaluation_metrics.length > 0
        self.job = SimpleNamespace(file=file, evaluation_plan=object() if evaluates else None)
        self.job_id = "job-1"
        self.store = store
        self.exchange = 0
        self.published = []
        self.asked = []
        self.shown = []
        self.said = []
        self.crash_at = None
        self.mean = np.ones(D)
        self.min_sites = 2

    def say(self, line):
        self.said.append(line)

    def check_running(self):
        return None

    def wait_for_nodes(self, *, again=False):
        return [10 + self.exchange, 99] + [100] * again

    def run_round(self, node_ids, instruction):
        self.asked.append((instruction.purpose, node_ids))
        if self.crash_at == self.exchange + 1:
            raise InterruptedError
        values_U = np.zeros(0) if instruction.evaluates else self.mean
        return SecureMean(values_U, {"loss": 0.5})

    def publish(self, values_D, also=None):
        self.published.append(values_D.tolist())
        if also is not None:
            self._write(also)

    def commit(self, metrics, purpose, also):
        self._write(also)
        self.shown.append((purpose, dict(metrics)))
        self.exchange += 1

    def _write(self, note):
        with self.store.transaction() as connection:
            note(connection)


@pytest.fixture
def store(tmp_path):
    store = Store(f"sqlite:///{tmp_path / 'a.sqlite'}", tmp_path)
    yield store
    store.close()


def call(value=0.0, purpose="train", nodes=(1, 2), config=SETTINGS):
    def step(child):
        child.memory.sent_D[:] = value
        child.memory.config[: len(config)] = np.frombuffer(config, np.uint8)
        asked = {"node_ids": list(nodes), "purpose": purpose, "config_bytes": len(config)}
        return {"exchange": asked}

    return step


def result(value):
    def step(child):
        child.memory.sent_D[:] = value
        return {"result": True}

    return step


def drive(store, script, runner=None):
    runner = runner or Runner(store)
    child = Child([READY, *script])
    ServerAppDriver(runner, CallStore(store), child, 1.0).run()
    return runner, child


NODES = {"nodes": True}
SCRIPT = [NODES, call(0.0), NODES, call(1.5, "evaluate"), NODES, call(1.5), result(7.0), DONE]


def test_calls_become_exchanges_and_answers(store):
    runner, child = drive(store, SCRIPT)
    purposes = [purpose for purpose, _ in runner.asked]
    assert purposes == ["train", "evaluate", "train"]
    assert child.sent == [
        {"node_ids": [10, 99]},
        {"mean": {"loss": 0.5}},
        {"node_ids": [11, 99]},
        {"mean": {"loss": 0.5}},
        {"node_ids": [12, 99]},
        {"mean": {"loss": 0.5}},
    ]
    assert child.memory.mean_D.tolist() == [2.5] * D
    assert runner.published == [[0.0] * D, [1.5] * D, [1.5] * D, [7.0] * D]
    assert runner.shown[:2] == [("train", {"loss": 0.5}), ("evaluate", {"eval-loss": 0.5})]


def test_the_last_mean_is_the_model_where_main_says_no_other(store):
    runner, _ = drive(store, [call(1.0), DONE])
    assert runner.published[-1] == [2.0] * D


@pytest.mark.parametrize("crash_at", [1, 2, 3])
def test_a_main_that_is_run_again_hears_the_same_and_asks_nobody_twice(store, crash_at):
    first = Runner(store)
    first.crash_at = crash_at
    with pytest.raises(InterruptedError):
        drive(store, SCRIPT, first)
    second = Runner(store)
    second.exchange = first.exchange
    runner, child = drive(store, SCRIPT, second)
    assert len(runner.asked) == 3 - (crash_at - 1)
    whole, heard = drive(store, SCRIPT, _fresh(store))
    assert child.sent == heard.sent
    assert runner.published[-1] == whole.published[-1]


def _fresh(store):
    runner = Runner(store)
    runner.job_id = "job-2"
    return runner


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ([call(0.5)], "call 1 asks for something else"),
        ([call(0.0, "evaluate")], "call 1 asks for something else"),
        ([call(0.0, config=encode(MessageConfig({"lr": 0.6})))], "call 1 asks for something else"),
        ([call(0.0), call(1.5, "evaluate"), call(2.5)], "call 3 asks for something else"),
        ([call(0.0), DONE], "ended after 1 calls"),
    ],
)
def test_a_main_that_goes_another_way_is_stopped(store, script, says):
    first = Runner(store)
    first.crash_at = 3
    with pytest.raises(InterruptedError):
        drive(store, SCRIPT, first)
    again = Runner(store)
    again.exchange = first.exchange
    with pytest.raises(UsageError, match=f"not repeatable: .*{says}"):
        drive(store, script, again)
    assert not again.asked


def test_whom_main_asks_may_differ_from_run_to_run(store):
    first = Runner(store)
    first.crash_at = 1
    with pytest.raises(InterruptedError):
        drive(store, [call(nodes=(1, 2))], first)
    runner, _ = drive(store, [call(nodes=(2, 3)), DONE])
    assert runner.asked == [("train", [2, 3])]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"exchange": 3}, Reason.MALFORMED),
        ({"exchange": {"node_ids": 3, "purpose": "train", "config_bytes": 0}}, Reason.MALFORMED),
        (
            {"exchange": {"node_ids": [1] * (MAX_NODES + 1), "purpose": "", "config_bytes": 0}},
            Reason.MALFORMED,
        ),
        (
            {"exchange": {"node_ids": [True], "purpose": "train", "config_bytes": 0}},
            Reason.MALFORMED,
        ),
        (call(purpose="query"), Reason.MALFORMED),
        (call(purpose="train\n"), Reason.MALFORMED),
        (call(config=b"{}"), Reason.MALFORMED),
        (call(config=b""), Reason.MALFORMED),
        (
            {"exchange": {"node_ids": [1], "purpose": "train", "config_bytes": MAX_BYTES + 1}},
            Reason.TOO_LARGE,
        ),
        (
            {"exchange": {"node_ids": [1], "purpose": "train", "config_bytes": -1}},
            Reason.TOO_LARGE,
        ),
        (call(np.nan), Reason.NOT_FINITE),
        (result(np.inf), Reason.NOT_FINITE),
        ({"something": "else"}, Reason.MALFORMED),
        ({}, Reason.MALFORMED),
    ],
)
def test_what_a_hostile_process_says_ends_the_job(store, frame, reason):
    runner = Runner(store)
    with pytest.raises(PeerError) as caught:
        drive(store, [frame], runner)
    assert caught.value.reason is reason
    assert not runner.asked
    assert not runner.published


def test_a_mean_that_is_not_finite_reaches_nobody(store):
    runner = Runner(store)
    runner.mean = np.full(D, np.inf)
    with pytest.raises(PeerError, match="finite numbers"):
        drive(store, [call()], runner)
    assert not runner.shown


def test_beyond_its_rounds_a_job_ends_with_the_model_that_it_has(store):
    runner = Runner(store, rounds=2)
    with pytest.raises(UsageError, match=r"more than \[job\] rounds = 2"):
        drive(store, [call(0.0), call(1.0, "evaluate"), call(1.0)], runner)
    assert len(runner.asked) == 2
    assert runner.published[-1] == [1.0] * D


def test_without_evaluation_metrics_main_hears_that_nobody_evaluated(store):
    runner = Runner(store, rounds=1)
    runner.job.evaluation_plan = None
    script = [call(0.0), call(1.0, "evaluate"), call(1.0, "evaluate"), DONE]
    runner, child = drive(store, script, runner)
    assert runner.asked == [("train", [1, 2])]
    assert child.sent[1:] == [{"given_up": True}] * 2
    (line,) = runner.said
    assert "[[evaluation_metrics]]" in line


def test_a_main_that_only_asks_is_given_up(store, monkeypatch):
    monkeypatch.setattr(driver, "_MOST_QUESTIONS", 5)
    with pytest.raises(UsageError, match="asked 5 questions"):
        drive(store, [NODES] * 6)
    with pytest.raises(UsageError, match="without a call to the sites"):
        drive(store, [DONE])


def test_a_main_that_samples_fewer_nodes_than_a_cohort_gets_more(store):
    runner = Runner(store, target=5)
    runner.min_sites = 4
    runner.wait_for_nodes = lambda: [1, 2, 3, 4, 5, 6, 7]
    drive(store, [call(nodes=(2, 6)), call(nodes=(1, 2, 3, 4)), DONE], runner)
    (_, first), (_, second) = runner.asked
    assert first[:2] == [2, 6]
    assert len(set(first)) == 5  # target_sites
    assert second == [1, 2, 3, 4]
    (line,) = runner.said
    assert "asks 2 nodes, a cohort needs 4 or more: 3 others are asked too" in line


def test_a_main_that_waits_for_more_nodes_than_there_are_is_named(store):
    runner, child = drive(store, [NODES] * 40 + [call(), DONE])
    assert [len(frame["node_ids"]) for frame in child.sent[:4]] == [2, 2, 3, 3]
    (line,) = runner.said
    assert "is told of 3" in line


def test_what_the_sandbox_lacks_is_said(store):
    runner = Runner(store)
    child = Child([{"ready": ["network"], "notes": ["no user namespace"]}, call(), DONE])
    ServerAppDriver(runner, CallStore(store), child, 1.0).run()
    assert runner.said == ["the ServerApp's sandbox lacks: network; no user namespace"]
    with pytest.raises(PeerError):
        read_missing({"ready": "yes"})
    with pytest.raises(PeerError):
        read_exchange({})


def test_calls_are_kept_until_the_job_is_over(store, tmp_path, monkeypatch):
    monkeypatch.setattr("aggregator.store.INLINE_BYTES", 8)
    calls = CallStore(store)
    request = request_digest(Instruction("train", SETTINGS), np.zeros(D, np.float32))
    mean_D = np.arange(D, dtype=np.float32)
    for job_id in ("a", "b"):
        for note in (
            calls.begin(job_id, 1, request),
            calls.finish(job_id, 1, Answer((1, 2), {"x": 0.25}, mean_D)),
        ):
            with store.transaction() as connection:
                note(connection)
    kept = calls.load("a", 1)
    assert kept.request == request
    assert (kept.answer.node_ids, kept.answer.metrics) == ((1, 2), {"x": 0.25})
    np.testing.assert_array_equal(kept.answer.mean_D, mean_D)
    assert calls.load("a", 2) is None
    assert len(list((tmp_path / "blobs").iterdir())) == 2
    calls.forget("a")
    assert calls.load("a", 1) is None
    np.testing.assert_array_equal(calls.load("b", 1).answer.mean_D, mean_D)
    calls.forget_all_but(["c"])
    assert list((tmp_path / "blobs").iterdir()) == []


def test_a_start_that_fits_no_frame_is_refused():
    start = driver.Start("/app", "a:b", {"x": "y" * 70_000}, 1, 1, 0, False, 1, 1, 1, (), False)
    with pytest.raises(PeerError, match="exceeds"):
        encode_start(start)
