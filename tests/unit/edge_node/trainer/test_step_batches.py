"""How many steps a trainer is handed: all of them, or those that begin inside a time box."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from edge_node.trainer.frames import STEPS
from edge_node.trainer.shared_memory import SLOTS
from edge_node.trainer.step_batches import take_steps
from edge_node.trainer.time_box import TimeBox
from privacy.errors import UsageError
from tests.support.trainer_apps import make_trainer, write_app
from tests.unit.edge_node.trainer.test_trainer import MODEL_D, on_paper, rows_of

BATCHES = [np.full((2, 3), number, np.float32) for number in range(6)]


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


class SlowTalk:
    """A conversation with a trainer whose steps take a stated time each."""

    def __init__(self, clock, step_s):
        self.clock, self.step_s = clock, step_s
        slots = [SimpleNamespace(metrics_PM=np.zeros((4, 1), np.float32)) for _ in range(SLOTS)]
        self.arrays = SimpleNamespace(slots=slots)
        self.said, self.most_ahead, self.ahead = [], 0, 0

    async def put(self, number, rows_NW):
        self.said.append(number)
        self.arrays.slots[number % SLOTS].metrics_PM[: len(rows_NW)] = rows_NW[:, :1]
        self.ahead += 1
        self.most_ahead = max(self.most_ahead, self.ahead)

    async def wait(self, _number):
        self.ahead -= 1
        self.clock.now_s += self.step_s

    async def stop(self):
        self.said.append("stop")


def steps(step_s, box_s=None, batches=BATCHES):
    clock = Clock()
    talk = SlowTalk(clock, step_s)
    box = None if box_s is None else TimeBox(box_s, clock)
    metrics_KM = asyncio.run(take_steps(talk, batches, len(batches), 1, box))
    return metrics_KM[:, 0].tolist(), talk


@pytest.mark.parametrize(
    ("step_s", "taken"),
    [
        (99.0, 1),  # the first step is finished, however long it takes
        (10.0, 1),  # over exactly when the box is: no further one begins
        (4.0, 3),  # begun at 8 s, it is finished at 12 s
        (2.0, 5),
    ],
)
def test_steps_begin_while_the_box_is_open_and_each_is_finished(step_s, taken):
    metrics, talk = steps(step_s, box_s=10.0)
    assert metrics == list(range(taken))
    assert talk.said == [*range(taken), "stop"]
    assert talk.most_ahead == 1, "what is handed over is trained on"


def test_a_fast_site_takes_the_most_steps_and_no_more():
    metrics, talk = steps(0.1, box_s=10.0)
    assert metrics == list(range(6))
    assert talk.said == list(range(6)), "the trainer knows how many there are at most"


def test_without_a_box_all_are_taken_with_one_ready_ahead():
    metrics, talk = steps(99.0)
    assert metrics == list(range(6))
    assert talk.most_ahead == SLOTS
    assert steps(1.0, batches=[])[0] == []


def test_batches_are_drawn_as_they_are_needed():
    drawn = []

    class Drawing(list):
        def __iter__(self):
            for batch in BATCHES:
                drawn.append(len(drawn))
                yield batch

    steps(4.0, 10.0, Drawing(BATCHES))
    assert len(drawn) == 4, "three that were trained on, and the one that was at hand"


@pytest.mark.parametrize("length_s", [0.0, -1.0, float("nan")])
def test_a_box_has_a_length(length_s):
    with pytest.raises(UsageError):
        TimeBox(length_s)


def test_a_real_trainer_stops_and_goes_on_with_the_next_round(tmp_path):
    batches = [rows_of(4, seed=number) for number in range(4)]
    clock = Clock()

    class Ticking:
        def __call__(self):
            clock.now_s += 1.0
            return clock.now_s

    async def scenario():
        trainer = make_trainer(write_app(tmp_path), serves=STEPS)
        boxed = await trainer.local_steps(MODEL_D, batches, 0.05, TimeBox(1.5, Ticking()))
        pid = trainer.process_id
        whole = await trainer.local_steps(MODEL_D, batches, 0.05)
        assert trainer.process_id == pid
        await trainer.stop()
        return boxed, whole

    (boxed, metrics_KM), (_, all_KM) = asyncio.run(scenario())
    assert (len(metrics_KM), len(all_KM)) == (2, 4)
    expected = MODEL_D.astype(float)
    for rows in batches[:2]:
        expected = expected - 0.05 * on_paper(expected, rows)[0].mean(axis=0)
    np.testing.assert_allclose(boxed, expected, rtol=1e-4, atol=1e-5)
