"""A trainer over many requests, with apps that leak, crash and reach beyond their own."""

import logging
import re

import numpy as np
import pytest

from edge_node.trainer.frames import STEPS
from edge_node.trainer.trainer import HealthRules, TrainerFailure
from privacy.errors import Reason
from tests.support.trainer_apps import COLUMNS, make_trainer, write_app
from tests.unit.edge_node.trainer.test_trainer import MODEL_D, run

APP = """
    import ctypes, pathlib, socket, threading
    print("imported")
    kept = []

    def fork_bomb():
        while True:
            os.fork()

    def thread_bomb():
        for _ in range(2000):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

    def reach():
        refused = {}
        for reaching in (
            fork_bomb,
            thread_bomb,
            lambda: pathlib.Path("/app/written").write_text("x"),
            lambda: socket.create_connection(("127.0.0.1", 80)),
        ):
            try:
                reaching()
            except (OSError, RuntimeError) as error:
                refused[len(refused)] = type(error).__name__
        raise SystemExit(str(list(refused.values())))

    acts = {
        101: lambda: os._exit(3),
        102: lambda: ctypes.string_at(0),
        104: reach,
        108: lambda: kept.append(torch.ones(5 << 20)),
    }

    def loss(model, batch):
        act = acts.get(int(batch["x0"].max()))
        if act is not None:
            act()
        return error(model, batch) ** 2
"""


def act(number):
    """Make a batch at which the app does one of its acts; 0 is for an innocent one."""
    rows = np.zeros((3, len(COLUMNS)), dtype=np.float32)
    rows[1, 0] = number
    return [rows]


async def failure_of(trainer, number):
    with pytest.raises(TrainerFailure) as caught:
        await trainer.local_steps(MODEL_D, act(number), 0.1)
    assert caught.value.reason is Reason.TRAINER_FAILED
    return caught.value


def test_one_process_answers_every_round_and_imports_the_app_once(tmp_path):
    log = tmp_path / "log"

    async def scenario():
        trainer = make_trainer(write_app(tmp_path, APP), serves=STEPS, log_path=log)
        pids = set()
        for _ in range(6):
            await trainer.local_steps(MODEL_D, act(0), 0.1)
            pids.add(trainer.process_id)
        await trainer.stop()
        return pids, trainer.process_id

    pids, after = run(scenario())
    assert len(pids) == 1
    assert after is None
    assert log.read_text().count("imported") == 1


def test_a_hostile_act_ends_the_process_with_its_name_and_the_next_round_works(tmp_path, caplog):
    expected = {
        102: ("ended unexpectedly", "signal 11 (SIGSEGV)"),
        104: (
            "raised an error",
            "['PermissionError', 'RuntimeError', 'OSError', 'PermissionError']",
        ),
    }

    async def scenario():
        app = write_app(tmp_path, APP)
        trainer = make_trainer(app, serves=STEPS, memory_mib=1500)
        failures = {}
        for number in expected:
            await trainer.start()
            failures[number] = await failure_of(trainer, number)
            assert trainer.process_id is None
        trained, _ = await trainer.local_steps(MODEL_D, act(0), 0.1)
        await trainer.stop()
        return failures, trained

    with caplog.at_level(logging.WARNING):
        failures, trained = run(scenario())
    assert np.isfinite(trained).all()
    for number, (sentence, detail) in expected.items():
        assert sentence in str(failures[number]), number
        assert detail in failures[number].detail, number
        # The app chooses its exit code and its signal, and it sees rows: they stay at the site.
        assert not re.search("code|signal|Error", str(failures[number].args))
    assert not (tmp_path / "app" / "written").exists()
    assert "SIGSEGV" in caplog.text


def test_an_app_that_leaks_is_replaced_between_rounds_and_the_log_says_why(tmp_path, caplog):
    rules = HealthRules(leak_rounds=3, leak_share=0.05)

    async def scenario():
        app = write_app(tmp_path, APP)
        trainer = make_trainer(app, serves=STEPS, memory_mib=900, health=rules)
        pids = []
        for number in (0, 0, 108, 108, 108, 0):  # 20 MiB each
            await trainer.local_steps(MODEL_D, act(number), 0.1)
            pids.append(trainer.process_id)
        await trainer.stop()
        return pids

    with caplog.at_level(logging.WARNING):
        pids = run(scenario())
    assert len(set(pids[:4])) == 1
    assert pids[4] is None  # replaced after its round, which was answered
    assert pids[5] not in pids[:5]
    assert "trainer replaced" in caplog.text
    assert re.search(r"it leaks: \d\d MiB more over 3 requests", caplog.text)


def test_an_app_that_crashes_each_time_is_given_up_without_another_start(tmp_path, caplog):
    rules = HealthRules(max_restarts=1, backoff_s=0.01)

    async def scenario():
        trainer = make_trainer(write_app(tmp_path, APP), serves=STEPS, health=rules)
        first = await failure_of(trainer, 101)
        second = await failure_of(trainer, 102)
        third = await failure_of(trainer, 0)
        assert trainer.process_id is None
        with pytest.raises(TrainerFailure, match="2 times in a row"):
            await trainer.start()
        return first, second, third

    with caplog.at_level(logging.WARNING):
        _, _, third = run(scenario())
    assert "failed 2 times in a row and is not started again" in str(third)
    assert "SIGSEGV" in third.detail
    assert caplog.text.count("trainer starts again") == 1
