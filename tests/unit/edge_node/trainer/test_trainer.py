"""The trainer, with real processes: what it computes, and what happens when the app fails."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_node.tasks.base_models import LocalBaseModel, folder_digest
from edge_node.trainer.frames import OPTIMISE, STEPS
from edge_node.trainer.trainer import TrainerFailure
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import TensorSpec, VectorSpec
from tests.support.trainer_apps import COLUMNS, LINEAR_SPEC, make_trainer, write_app
from tidegate.schema import Schema

MODEL_D = np.array([0.5, -1.0, 2.0, 0.25], dtype=np.float32)


def rows_of(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, len(COLUMNS))).astype(np.float32)


def on_paper(model_D, rows_NC):
    x, y = rows_NC[:, :3].astype(float), rows_NC[:, 3].astype(float)
    error = x @ model_D[:3] + model_D[3] - y
    gradients = 2 * error[:, None] * np.hstack([x, np.ones((len(x), 1))])
    return gradients, np.stack([np.minimum(error**2, 1), y > 0], axis=1)


class Collector:
    """Keeps copies of the valid rows of every chunk."""

    def __init__(self):
        self.sizes, self.gradients, self.metrics = [], [], []

    def __call__(self, gradients_PD, metrics_PM, n_valid):
        self.sizes.append(n_valid)
        self.gradients.append(gradients_PD[:n_valid].copy())
        self.metrics.append(metrics_PM[:n_valid].copy())


async def gradients_of(trainer, rows_NC, model_D=MODEL_D):
    collector = Collector()
    await trainer.record_gradients(model_D, rows_NC, collector)
    return np.concatenate(collector.gradients), np.concatenate(collector.metrics), collector.sizes


def processes():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def run(coroutine):
    """Run a test's coroutine and see that no process is left behind."""
    before = processes()
    result = asyncio.run(coroutine)
    assert processes() <= before
    return result


def test_gradients_and_metrics_are_those_on_paper(tmp_path):
    rows = rows_of(29)

    async def scenario():
        trainer = make_trainer(write_app(tmp_path))
        await trainer.start()
        first = await gradients_of(trainer, rows)
        again = await gradients_of(trainer, rows[:3], MODEL_D * 2)
        await trainer.record_gradients(MODEL_D, rows[:0], lambda *_: pytest.fail("no chunk"))
        await trainer.stop()
        return first, again, trainer.device

    (gradients, metrics, sizes), (gradients_2, _, sizes_2), device = run(scenario())
    expected, expected_metrics = on_paper(MODEL_D, rows)
    assert sizes == [8, 8, 8, 5]
    np.testing.assert_allclose(gradients, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
    assert sizes_2 == [3]
    np.testing.assert_allclose(
        gradients_2, on_paper(MODEL_D * 2, rows[:3])[0], rtol=1e-4, atol=1e-4
    )
    assert device == "cpu"


def test_a_record_gives_the_same_bits_among_any_mates_in_any_slot(tmp_path):
    # Else one record more would move the others, past the sensitivity that the noise is made for.
    probe = rows_of(1, seed=7)

    async def scenario():
        trainer = make_trainer(write_app(tmp_path), physical_batch=16)
        seen = set()
        for position in range(20):
            rows = np.insert(rows_of(30, seed=position), position, probe, axis=0)
            rows[-1] = np.nan  # not even a record that is not finite touches its mates
            gradients, metrics, _ = await gradients_of(trainer, rows)
            seen.add(gradients[position].tobytes() + metrics[position].tobytes())
        await trainer.stop()
        return seen

    assert len(run(scenario())) == 1


def test_local_steps_are_plain_gradient_descent(tmp_path):
    batches = [rows_of(n, seed=n) for n in (8, 1, 5, 8)]

    async def scenario():
        trainer = make_trainer(write_app(tmp_path), serves=STEPS)
        result = await trainer.local_steps(MODEL_D, batches, 0.05)
        unchanged = await trainer.local_steps(MODEL_D, [], 0.05)
        with pytest.raises(UsageError, match="1 to 8 rows"):
            await trainer.local_steps(MODEL_D, [rows_of(9)], 0.05)
        with pytest.raises(UsageError, match="learning rate"):
            await trainer.local_steps(MODEL_D, batches, float("nan"))
        with pytest.raises(UsageError, match="serves requests for steps, not gradients"):
            await trainer.record_gradients(MODEL_D, rows_of(2), lambda *_: None)
        await trainer.stop()
        return result, unchanged

    (result, metrics), (unchanged, none) = run(scenario())
    assert none.shape == (0, 2)
    expected = MODEL_D.astype(float)
    for rows, metrics_M in zip(batches, metrics, strict=True):
        np.testing.assert_allclose(metrics_M, on_paper(expected, rows)[1].mean(0), rtol=1e-4)
        expected = expected - 0.05 * on_paper(expected, rows)[0].mean(axis=0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(unchanged, MODEL_D)


# Local steps run outside vmap, so the loss can look at values; they also start a second sooner.
FAULTS = """
    def loss(model, batch):
        code = int(batch["x0"].max())
        if code == 101:
            raise ValueError("row holds 31337")
        if code == 102:
            while True:
                time.sleep(1)
        if code == 103:
            os._exit(3)
        if code == 104:
            torch.ones(1 << 28)
        if code == 105:
            for number in range(3, 1000):
                try:
                    os.write(number, b"[not json")
                except OSError:
                    pass
        if code == 106:
            sys.exit(0)
        return error(model, batch) ** 2
"""


def test_an_app_that_fails_is_ended_named_and_started_again(tmp_path):
    expected = {
        101: ("raised an error", r"ValueError: row holds 31337 (task.py, line 24)"),
        102: ("ended after 1 s without an answer", "without an answer"),
        103: ("ended unexpectedly", "exit code 3"),
        104: ("exceeded its memory limit of 900 MiB", "allocate"),
        105: ("broke the trainer's protocol", "JSON"),
        106: ("raised an error", "SystemExit"),
    }

    async def scenario():
        limits = {"memory_mib": 900, "request_timeout_s": 1.0}
        trainer = make_trainer(write_app(tmp_path, FAULTS), serves=STEPS, **limits)
        failures = {}
        for code in expected:
            rows = rows_of(3)
            rows[1, 0] = code
            await trainer.start()
            with pytest.raises(TrainerFailure) as caught:
                await trainer.local_steps(MODEL_D, [rows], 0.1)
            failures[code] = caught.value
        trained, _ = await trainer.local_steps(MODEL_D, [rows_of(3)], 0.1)
        await trainer.stop()
        return failures, trained

    failures, trained = run(scenario())
    assert np.isfinite(trained).all()
    for code, (sentence, detail) in expected.items():
        failure = failures[code]
        assert isinstance(failure, PeerError)
        assert failure.reason is Reason.TRAINER_FAILED
        assert sentence in str(failure), code
        assert detail in failure.detail, code
        assert "31337" not in str(failure)  # what the app raised may hold data: local log only


def test_a_task_that_does_not_load_says_why(tmp_path):
    async def scenario():
        app = write_app(tmp_path, task="import nothing_of_the_kind")
        with pytest.raises(TrainerFailure) as caught:
            await make_trainer(app, serves=STEPS).start()
        return caught.value.detail

    assert "No module named 'nothing_of_the_kind' (task.py, line 1)" in run(scenario())


def test_a_model_that_is_not_the_jobs_is_refused(tmp_path):
    spec = VectorSpec((TensorSpec("weight", (1, 3)), TensorSpec("bias", (2,))))

    async def scenario():
        with pytest.raises(TrainerFailure) as caught:
            await make_trainer(write_app(tmp_path), spec=spec, serves=STEPS).start()
        return caught.value.detail

    assert "weight [1, 3], bias [1]" in run(scenario())


def test_arrays_that_do_not_fit_are_refused_before_the_process_sees_them(tmp_path):
    async def scenario():
        trainer = make_trainer(write_app(tmp_path))
        for model, rows in (
            (MODEL_D[:3], rows_of(2)),
            (MODEL_D.astype(float), rows_of(2)),
            (MODEL_D, rows_of(2)[:, :3]),
            (MODEL_D, rows_of(2).astype(float)),
        ):
            with pytest.raises((UsageError, PeerError)):
                await trainer.record_gradients(model, rows, lambda *_: None)
        await trainer.stop()

    run(scenario())


def test_an_error_of_the_callback_ends_the_request_and_the_next_one_works(tmp_path):
    def refuse(*_):
        raise UsageError("budget")

    async def scenario():
        trainer = make_trainer(write_app(tmp_path))
        with pytest.raises(UsageError, match="budget"):
            await trainer.record_gradients(MODEL_D, rows_of(40), refuse)
        gradients, _, _ = await gradients_of(trainer, rows_of(5))
        await trainer.stop()
        return gradients

    np.testing.assert_allclose(
        run(scenario()), on_paper(MODEL_D, rows_of(5))[0], rtol=1e-4, atol=1e-5
    )


def test_a_cancelled_request_leaves_no_process(tmp_path):
    async def scenario():
        trainer = make_trainer(write_app(tmp_path, FAULTS), serves=STEPS)
        await trainer.start()
        rows = rows_of(3)
        rows[0, 0] = 102
        request = asyncio.create_task(trainer.local_steps(MODEL_D, [rows], 0.1))
        await asyncio.sleep(0.3)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        left = processes()
        await trainer.stop()
        return left

    before = processes()
    assert run(scenario()) <= before


PARENT = """
import asyncio, json, sys
import numpy as np, psutil
from pathlib import Path
from edge_node.trainer.frames import STEPS
from tests.support.trainer_apps import make_trainer

async def main():
    trainer = make_trainer(Path(sys.argv[1]), serves=STEPS)
    await trainer.start()
    print(json.dumps([p.pid for p in psutil.Process().children(recursive=True)]), flush=True)
    rows = np.full((3, 4), 102, dtype=np.float32)
    await trainer.local_steps(np.zeros(4, dtype=np.float32), [rows], 0.1)

asyncio.run(main())
"""


def test_nothing_is_left_when_the_daemon_is_killed_in_the_middle_of_a_request(tmp_path):
    app = write_app(tmp_path, FAULTS)
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", PARENT, str(app)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 2
        time.sleep(0.2)  # into the request
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_running(pid) for pid in pids)


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_the_app_prints_goes_to_the_log_of_the_site_only(tmp_path, capfd):
    app = write_app(tmp_path, "print('a row: 31337')\nprint('oops', file=sys.stderr)\n")

    async def scenario():
        trainer = make_trainer(app, log_path=tmp_path / "trainer.log", serves=STEPS)
        await trainer.start()
        await trainer.stop()

    run(scenario())
    log = (tmp_path / "trainer.log").read_text()
    assert "a row: 31337" in log
    assert "oops" in log
    assert (tmp_path / "trainer.log").stat().st_mode & 0o077 == 0
    assert "31337" not in "".join(capfd.readouterr())


def test_the_seed_fixes_what_is_not_in_the_vector(tmp_path):
    # A frozen layer comes from model(), so it must come out alike at every site and restart.
    app = write_app(
        tmp_path,
        """
        class Frozen(nn.Module):
            def __init__(self):
                super().__init__()
                self.base = nn.Linear(3, 3)
                self.base.requires_grad_(False)
                self.head = nn.Linear(3, 1)

            def forward(self, x):
                return self.head(self.base(x))

        def model():
            return Frozen()
        """,
    )
    spec = VectorSpec((TensorSpec("head.weight", (1, 3)), TensorSpec("head.bias", (1,))))

    async def scenario():
        results = []
        for seed in (1, 1, 2):
            trainer = make_trainer(app, spec=spec, seed=seed, serves=STEPS)
            model_D, _ = await trainer.local_steps(MODEL_D, [rows_of(4)], 0.1)
            results.append(model_D.tobytes())
            await trainer.stop()
        return results

    first, again, other = run(scenario())
    assert first == again != other


def test_the_linear_spec_is_that_of_the_linear_app():
    assert LINEAR_SPEC.length == len(MODEL_D)


def test_a_failure_is_named_though_the_process_is_gone_before_the_next_chunk(tmp_path):
    """The first chunk's failure and the second chunk's broken pipe race; the failure must win."""

    async def scenario():
        trainer = make_trainer(write_app(tmp_path, FAULTS), serves=STEPS)
        await trainer.start()
        child = trainer._running()
        send = child.send

        async def late(frame):
            if frame.get("chunk") == 1:
                await asyncio.to_thread(child._process.wait, 30)
            await send(frame)

        child.send = late
        rows = rows_of(8)
        rows[1, 0] = 101
        with pytest.raises(TrainerFailure) as caught:
            await trainer.local_steps(MODEL_D, [rows, rows_of(8)], 0.1)
        await trainer.stop()
        return caught.value

    failure = run(scenario())
    assert "raised an error" in str(failure)
    assert "31337" in failure.detail


OPTIMIZER = """
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
"""


def test_the_tasks_optimizer_steps_in_a_process_that_is_handed_no_row(tmp_path):
    gradient = np.array([1.0, 2.0, 0.0, -1.0], np.float32)

    async def scenario():
        app = write_app(tmp_path, OPTIMIZER)
        nothing = {"schema": Schema(()), "metrics_length": 0, "physical_batch": 1}
        trainer = make_trainer(app, serves=OPTIMISE, own_optimiser=True, **nothing)
        first = await trainer.optimise(MODEL_D, gradient)
        second = await trainer.optimise(first, gradient)
        with pytest.raises(UsageError, match="serves requests for optimise, not gradients"):
            await trainer.record_gradients(MODEL_D, rows_of(0)[:, :0], lambda *_: None)
        await trainer.stop()
        return first, second

    first, second = run(scenario())
    np.testing.assert_allclose(first, MODEL_D - 0.5 * gradient, rtol=1e-6)
    np.testing.assert_allclose(second, first - 0.5 * 1.5 * gradient, rtol=1e-6)  # its state lasts


def test_local_steps_take_the_tasks_optimizer_and_keep_its_state_across_rounds(tmp_path):
    rows = rows_of(8)

    async def scenario():
        trainer = make_trainer(write_app(tmp_path, OPTIMIZER), serves=STEPS, own_optimiser=True)
        first, _ = await trainer.local_steps(MODEL_D, [rows], 0.0)
        second, _ = await trainer.local_steps(first, [rows], 0.0)
        await trainer.stop()
        return first, second

    first, second = run(scenario())
    slope = on_paper(MODEL_D, rows)[0].mean(axis=0)
    np.testing.assert_allclose(first, MODEL_D - 0.5 * slope, rtol=1e-4, atol=1e-5)
    expected = first - 0.5 * (on_paper(first, rows)[0].mean(axis=0) + 0.5 * slope)
    np.testing.assert_allclose(second, expected, rtol=1e-4, atol=1e-4)


WIDTHS = """
    import pathlib
    def model(base_models):
        folder = base_models["tiny"]
        try:
            (folder / "new").write_text("")
        except OSError:
            return nn.Linear(int((folder / "width.txt").read_text()), 1)
"""


def test_a_base_model_is_read_only_and_hashed_before_each_start(tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "width.txt").write_text("3")
    model = LocalBaseModel("tiny", weights, folder_digest(weights))

    async def scenario():
        trainer = make_trainer(write_app(tmp_path, WIDTHS), serves=STEPS, base_models=(model,))
        await trainer.local_steps(MODEL_D, [rows_of(2)], 0.1)
        await trainer.stop()
        (weights / "width.txt").write_text("4")
        with pytest.raises(PeerError, match="another digest"):
            await trainer.start()

    run(scenario())
    assert [path.name for path in weights.iterdir()] == ["width.txt"]
