"""An unchanged Flower app at one site: real confined processes, and replies that no app would give.

Shapes: D = 7 coordinates of the small model.
"""

import asyncio
import json
import os
import signal
import textwrap

import numpy as np
import psutil
import pytest

from edge_node.flower.data import FlowerData
from edge_node.rounds.contract import RoundRequest
from edge_node.rounds.flower import FlowerRound
from edge_node.trainer.trainer import Reply, TrainerFailure
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import Mode
from tests.support.flower_apps import (
    CLIENT,
    JOB,
    PLAIN,
    PROJECT,
    FlowerPlace,
    make_job,
    write_flower_app,
)
from tidegate.flower_config import MessageConfig, encode

MODEL_D = np.arange(7, dtype=np.float32) / 8
HALF = np.float32(np.sqrt(0.5))


def ask(number, purpose="train", model_D=MODEL_D, version=None, config=b""):
    return RoundRequest(number, number if version is None else version, model_D, purpose, config)


def in_units(update, plan):
    return update.vector_D / plan.scale


def run(coroutine):
    """Run a test's coroutine and see that no process is left behind."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    result = asyncio.run(coroutine)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    return result


def test_it_trains_evaluates_and_remembers_over_crashes_of_trainer_and_daemon(tmp_path):
    place = FlowerPlace(tmp_path)
    job = make_job()
    app = write_flower_app(tmp_path)

    async def counted(work, number, purpose="train"):
        """Give what the app counted: its calls so far, sent as the metric named loss."""
        update = await work.make_update(ask(number, purpose))
        if purpose == "evaluate":
            return in_units(update, job.evaluation.plan)
        values = in_units(update, job.plan)
        assert values[:7] == pytest.approx(np.full(7, 0.25), abs=1e-3), "run_config overrides lr"
        return values[7] * 8

    async def scenario():
        work = place.round(job, app)
        report = await work.start()
        assert not report.missing
        assert await counted(work, 1) == pytest.approx(1, abs=0.01)
        assert await counted(work, 2, "evaluate") == pytest.approx(
            [0.75 * HALF, HALF / 4], abs=1e-3
        )
        assert await counted(work, 3) == pytest.approx(2, abs=0.01)
        # Round 3 again, as after a crash that lost its update: it begins where it began.
        assert await counted(work, 3) == pytest.approx(2, abs=0.01)
        os.kill(work.trainer.process_id, signal.SIGKILL)
        while psutil.pid_exists(work.trainer.process_id):
            if psutil.Process(work.trainer.process_id).status() == psutil.STATUS_ZOMBIE:
                break
            await asyncio.sleep(0.01)
        assert await counted(work, 4) == pytest.approx(3, abs=0.01)
        await work.stop()
        place.reopen()
        work = place.round(job, app)
        assert await counted(work, 5) == pytest.approx(4, abs=0.01)
        await work.stop()
        place.store.jobs.end("job-1", "finished")
        assert place.store.jobs.app_state("job-1") is None

    run(scenario())


PRYING = """
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    imports = 0
    seen = []

    def mod(message, context, call_next):
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    app = ClientApp()

    def answer(message, value):
        arrays = ArrayRecord({name: a for name, a in message.content["model"].items()})
        metrics = MetricRecord({"loss": float(value)})
        return Message(RecordDict({"x": arrays, "y": metrics}), reply_to=message)

    @app.train(mods=[mod])
    def train(message, context):
        global imports
        imports += 1
        assert context.run_config == {"lr": 0.25, "nested.deep": "yes"}, context.run_config
        assert context.node_config["data"] == DATA
        assert context.node_id == 77
        settings = message.content["settings"]
        assert dict(settings) == {"server-round": 9, "name": "x", "raw": b"\\xff"}, settings
        with open(DATA + "/rows.txt") as file:
            rows = float(file.read())
        try:
            open(DATA + "/new.txt", "w")
        except OSError:
            rows += 1
        try:
            open(PRIVATE)
        except OSError:
            rows += 1
        return answer(message, rows)

    @app.train("count")
    def count(message, context):
        return answer(message, imports + len(seen))
"""


def test_it_is_shown_its_data_read_only_and_what_the_strategy_said(tmp_path):
    data = tmp_path / "rows"
    data.mkdir()
    (data / "rows.txt").write_text("3")
    shown = FlowerData((data,), {"data": str(data)})
    place = FlowerPlace(tmp_path, shown)
    head = f"DATA, PRIVATE = {str(data)!r}, {str(place.folder / 'site' / 'site.db')!r}\n"
    app = write_flower_app(tmp_path)
    (app / "small" / "client_app.py").write_text(head + textwrap.dedent(PRYING))
    job = make_job()
    config = encode(
        MessageConfig({"server-round": 9, "name": "x", "raw": b"\xff"}, "model", "settings")
    )

    async def scenario():
        work = place.round(job, app)
        first = await work.make_update(ask(1, config=config))
        assert in_units(first, job.plan)[7] * 8 == pytest.approx(5, abs=0.01)
        assert in_units(first, job.plan)[:7] == pytest.approx(np.zeros(7), abs=1e-6)
        await work.make_update(ask(2, config=config))
        # One import, two calls, each through the mod: the process was warm.
        third = await work.make_update(ask(3, "train.count", config=config))
        assert in_units(third, job.plan)[7] * 8 == pytest.approx(4, abs=0.01)
        await work.stop()

    run(scenario())
    assert not (data / "new.txt").exists()


FAILING = CLIENT.replace(
    'given = message.content["arrays"]',
    'given = message.content["arrays"]\n'
    '    if message.content["config"].get("fail"):\n'
    '        raise RuntimeError("row 17 is odd")',
)


def test_a_call_that_raises_moves_no_state_and_the_app_is_started_again(tmp_path):
    place = FlowerPlace(tmp_path)
    job = make_job()

    async def scenario():
        work = place.round(job, write_flower_app(tmp_path, FAILING))
        await work.make_update(ask(1))
        with pytest.raises(TrainerFailure) as caught:
            await work.make_update(ask(2, config=encode(MessageConfig({"fail": 1}))))
        assert "row 17" not in str(caught.value)
        assert "row 17" in caught.value.detail
        update = await work.make_update(ask(3))
        assert in_units(update, job.plan)[7] * 8 == pytest.approx(2, abs=0.01)
        with pytest.raises(TrainerFailure) as caught:
            await work.make_update(ask(4, "train.unknown"))
        assert "No train function" in caught.value.detail
        await work.stop()

    run(scenario())


LEGACY = """
    import numpy as np
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp

    class Client(NumPyClient):
        def __init__(self, context):
            self.lr = context.run_config["lr"]

        def fit(self, parameters, config):
            moved = [p + np.float64(self.lr) for p in parameters]
            return moved, 10, {"loss": float(config["server-round"]), "name": "x"}

        def evaluate(self, parameters, config):
            return 0.5, 10, {"accuracy": float(parameters[1]), "seen": 1.0}

    app = ClientApp(lambda context: Client(context).to_client())
"""


def test_an_app_of_the_earlier_interface_runs_too(tmp_path):
    place = FlowerPlace(tmp_path)
    job = make_job()
    config = encode(MessageConfig({"server-round": 4}))

    async def scenario():
        work = place.round(job, write_flower_app(tmp_path, LEGACY))
        update = await work.make_update(ask(1, config=config))
        evaluation = await work.make_update(ask(2, "evaluate", config=config))
        await work.stop()
        return in_units(update, job.plan), in_units(evaluation, job.evaluation.plan)

    update, evaluation = run(scenario())
    assert update == pytest.approx([*np.full(7, 0.25), 0.5], abs=1e-3)
    assert evaluation == pytest.approx([0.75 * HALF, HALF / 4], abs=1e-3)


def test_an_app_that_is_none_does_not_start(tmp_path):
    place = FlowerPlace(tmp_path)
    project = PROJECT.replace("client_app:app", "steps:moved")

    async def scenario():
        work = place.round(make_job(), write_flower_app(tmp_path, project=project))
        with pytest.raises(TrainerFailure) as caught:
            await work.start()
        await work.stop()
        return caught.value.detail

    assert "is no ClientApp" in run(scenario())


# --- replies that no app would give --------------------------------------------------------------


GOOD = {
    "records": [1, 1, 0],
    "arrays": [["layer.weight", "float32", [2, 3]], ["layer.bias", "float32", []]],
    "metrics": {"loss": 2.0, "num-examples": 5.0},
}


class ScriptedTrainer:
    """Answers what it was told to."""

    def __init__(self, description, answer_D=MODEL_D, state=b"", fields=None):
        raw = description if isinstance(description, bytes) else json.dumps(description).encode()
        self.reply = Reply(fields or {"description": len(raw)}, raw + state)
        self.answer_D = np.asarray(answer_D, np.float32)
        self.blobs = []

    async def request(self, frame, _model_D, blob):
        begin = sum(frame["sizes"][:2])
        self.blobs.append(blob[begin : begin + frame["sizes"][2]])
        return self.reply, self.answer_D.copy()


def answered(tmp_path, trainer, purpose="train", job=None, most=100):
    place = FlowerPlace(tmp_path)
    job = job or make_job()
    work = FlowerRound(job, trainer, place.states, most)
    update = asyncio.run(work.make_update(ask(1, purpose)))
    plan, _ = job.terms_for(purpose)
    return in_units(update, plan), place


def refused(tmp_path, trainer, purpose="train", most=100):
    place = FlowerPlace(tmp_path)
    work = FlowerRound(make_job(), trainer, place.states, most)
    with pytest.raises(PeerError) as caught:
        asyncio.run(work.make_update(ask(1, purpose)))
    assert place.store.jobs.app_state("job-1") is None, "a refused reply moves no state"
    return caught.value.reason


def test_the_difference_is_clipped_and_the_metrics_cut_to_their_range(tmp_path):
    description = {**GOOD, "metrics": {"loss": 1e300, "num-examples": 1e12, "secret": 3.0}}
    values, _ = answered(tmp_path, ScriptedTrainer(description, MODEL_D + 1e6))
    assert values[:7] == pytest.approx(np.full(7, 10 / np.sqrt(7)), rel=1e-3)
    assert values[7] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("weight", [0.0, -5.0, 1e12, float("nan"), None])
def test_the_number_of_examples_weighs_nothing(tmp_path, weight):
    metrics = {"loss": -2.0} if weight is None else {"loss": -2.0, "num-examples": weight}
    values, _ = answered(tmp_path, ScriptedTrainer({**GOOD, "metrics": metrics}, MODEL_D + 1))
    assert values == pytest.approx([*np.ones(7), 0.0], abs=1e-3)


def test_an_update_of_zero_is_sent(tmp_path):
    values, _ = answered(tmp_path, ScriptedTrainer(GOOD, MODEL_D))
    assert values[:7] == pytest.approx(np.zeros(7), abs=1e-6)


@pytest.mark.parametrize("kind", ["float64", "float16", "int64"])
def test_other_real_numbers_are_rounded(tmp_path, kind):
    arrays = [["layer.bias", kind, []], ["layer.weight", "float32", [2, 3]]]
    values, _ = answered(tmp_path, ScriptedTrainer({**GOOD, "arrays": arrays}, MODEL_D + 1))
    assert values[:7] == pytest.approx(np.ones(7), abs=1e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"error": "row 17"}, Reason.TRAINER_FAILED),
        ({"records": [0, 1, 0], "arrays": []}, Reason.MALFORMED),
        ({"records": [2, 1, 0]}, Reason.MALFORMED),
        ({"records": [1, 2, 0]}, Reason.MALFORMED),
        ({"arrays": GOOD["arrays"][:1]}, Reason.WRONG_SHAPE),
        ({"arrays": [*GOOD["arrays"], ["more", "float32", [1]]]}, Reason.WRONG_SHAPE),
        ({"arrays": [*GOOD["arrays"], GOOD["arrays"][0]]}, Reason.MALFORMED),
        ({"arrays": [["layer.weight", "float32", [3, 2]], GOOD["arrays"][1]]}, Reason.WRONG_SHAPE),
        ({"arrays": [["layer.weight", "float32", [6]], GOOD["arrays"][1]]}, Reason.WRONG_SHAPE),
        (
            {"arrays": [["layer.weight", "complex64", [2, 3]], GOOD["arrays"][1]]},
            Reason.WRONG_SHAPE,
        ),
        ({"arrays": [["layer.weight", "float32", [2, True]], GOOD["arrays"][1]]}, Reason.MALFORMED),
        ({"arrays": [["layer.weight", "float32", [2, -3]], GOOD["arrays"][1]]}, Reason.MALFORMED),
        ({"arrays": 7}, Reason.MALFORMED),
        ({"metrics": {}}, Reason.TRAINER_FAILED),
        ({"metrics": {"loss": None}}, Reason.TRAINER_FAILED),
        ({"metrics": {"loss": float("nan")}}, Reason.NOT_FINITE),
        ({"metrics": {"loss": float("-inf")}}, Reason.NOT_FINITE),
        ({"metrics": {"loss": 10**400}}, Reason.MALFORMED),
        ({"metrics": {"loss": True}}, Reason.MALFORMED),
        ({"metrics": {"loss": "2"}}, Reason.MALFORMED),
        ({"metrics": {"loss": [1.0]}}, Reason.MALFORMED),
        ({"metrics": []}, Reason.MALFORMED),
        ({"records": [1, 1]}, Reason.MALFORMED),
        ({"records": [True, 1, 0]}, Reason.MALFORMED),
    ],
)
def test_a_reply_that_does_not_fit_is_refused(tmp_path, change, reason):
    trainer = ScriptedTrainer({**GOOD, **change}, MODEL_D + 1, state=b"after")
    assert refused(tmp_path, trainer) is reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_arrays_that_are_not_finite_are_refused(tmp_path, value):
    answer_D = MODEL_D.copy()
    answer_D[3] = value
    assert refused(tmp_path, ScriptedTrainer(GOOD, answer_D, b"after")) is Reason.NOT_FINITE


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"7", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"records":{}}']
)
def test_a_description_that_is_none_is_refused(tmp_path, raw):
    assert refused(tmp_path, ScriptedTrainer(raw)) is Reason.MALFORMED


@pytest.mark.parametrize("size", [-1, 10**9, True, "3", None])
def test_a_wrong_length_of_the_description_is_refused(tmp_path, size):
    trainer = ScriptedTrainer(GOOD, fields={"description": size})
    assert refused(tmp_path, trainer) is Reason.MALFORMED


def test_a_state_beyond_the_sites_limit_is_refused(tmp_path):
    assert refused(tmp_path, ScriptedTrainer(GOOD, state=b"x" * 101)) is Reason.TOO_LARGE


def test_a_kept_state_begins_the_next_call(tmp_path):
    trainer = ScriptedTrainer(GOOD, state=b"after 1")
    _, place = answered(tmp_path, trainer)
    work = FlowerRound(make_job(), trainer, place.states, 100)
    asyncio.run(work.make_update(ask(2)))
    asyncio.run(work.make_update(ask(2)))
    assert trainer.blobs == [b"", b"after 1", b"after 1"]


EVALUATED = {"records": [0, 1, 0], "arrays": [], "metrics": {"accuracy": 0.5, "seen": 9.0}}


def test_an_evaluation_sends_its_metrics_and_nothing_else(tmp_path):
    values, _ = answered(tmp_path, ScriptedTrainer(EVALUATED), "evaluate")
    assert values == pytest.approx([0.5 * HALF, HALF], abs=1e-3)
    more = {**GOOD, "metrics": EVALUATED["metrics"]}
    values, _ = answered(tmp_path / "b", ScriptedTrainer(more, MODEL_D + 9), "evaluate")
    assert values == pytest.approx([0.5 * HALF, HALF], abs=1e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metrics": {"accuracy": 0.5}}, Reason.TRAINER_FAILED),
        ({"metrics": {"accuracy": 0.5, "seen": float("nan")}}, Reason.NOT_FINITE),
        ({"records": [0, 0, 0], "metrics": {}}, Reason.TRAINER_FAILED),
        ({"records": [0, 2, 0]}, Reason.MALFORMED),
    ],
)
def test_an_evaluation_that_does_not_fit_is_refused(tmp_path, change, reason):
    trainer = ScriptedTrainer({**EVALUATED, **change})
    assert refused(tmp_path, trainer, "evaluate") is reason


def test_a_job_without_evaluation_makes_none(tmp_path):
    toml = (JOB % PLAIN).replace("evaluate_every = 1", "")
    job = make_job(toml.split("[[evaluation_metrics]]")[0] + toml[toml.index("[strategy]") :])
    with pytest.raises(PeerError, match="no evaluation"):
        answered(tmp_path, ScriptedTrainer(EVALUATED), "evaluate", job)


SITE = 'mode = "site"\nepsilon = 30.0\ndelta_dp = 1e-5\nclipping_norm = 2.0'


def test_mode_site_adds_fresh_noise_to_each_update(tmp_path):
    job = make_job(JOB % SITE)
    first, _ = answered(tmp_path / "a", ScriptedTrainer(GOOD, MODEL_D), job=job)
    second, _ = answered(tmp_path / "b", ScriptedTrainer(GOOD, MODEL_D), job=job)
    assert not np.array_equal(first, second)
    evaluated, _ = answered(tmp_path / "c", ScriptedTrainer(EVALUATED), "evaluate", job)
    assert evaluated != pytest.approx([0.5 * HALF, HALF], abs=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_in_mode_site_a_reply_that_is_not_finite_counts_as_zero_and_is_sent(tmp_path, value):
    """A refusal would tell, uncharged, what the site's data did to the training."""
    job = make_job(JOB % SITE)
    answer_D = MODEL_D + 1
    answer_D[3] = value
    hurt, _ = answered(tmp_path / "a", ScriptedTrainer(GOOD, answer_D), job=job)
    strange = {**GOOD, "metrics": {"loss": float("nan")}}
    lost, _ = answered(tmp_path / "b", ScriptedTrainer(strange, MODEL_D + 1), job=job)
    strange = {**EVALUATED, "metrics": {"accuracy": 0.5, "seen": float("nan")}}
    seen, _ = answered(tmp_path / "c", ScriptedTrainer(strange), "evaluate", job)
    for values in (hurt, lost, seen):
        assert np.isfinite(values).all()
        assert values.any(), "its noise is in it"


DECLARED = """mode = "record-local"
epsilon = 30.0
delta_dp = 1e-5
noise_multiplier = 1.0
sampling_rate = 0.05
clipping_norm = 1.0
update_norm = 4.0
expected_batch_size = 50
max_records = 1000"""


def test_an_app_that_declares_its_own_noise_is_charged_ahead_and_encoded_as_it_is(tmp_path):
    job = make_job((JOB % DECLARED) + "[local]\nsteps = 5\n")
    assert job.charged_ahead
    first, _ = answered(tmp_path / "a", ScriptedTrainer(GOOD, MODEL_D + 0.5), job=job)
    second, _ = answered(tmp_path / "b", ScriptedTrainer(GOOD, MODEL_D + 0.5), job=job)
    assert np.array_equal(first, second)
    assert first[:7] == pytest.approx(np.full(7, 0.5), abs=1e-3)
    clipped, _ = answered(tmp_path / "c", ScriptedTrainer(GOOD, MODEL_D + 50), job=job)
    assert np.linalg.norm(clipped[:7]) == pytest.approx(4.0, abs=1e-2)


def test_mode_record_distributed_is_for_tasks(tmp_path):
    job = make_job()
    object.__setattr__(job.plan, "mode", Mode.RECORD_DISTRIBUTED)
    with pytest.raises(PeerError, match="record-distributed"):
        FlowerPlace(tmp_path).round(job, tmp_path)


def test_a_data_set_that_is_shown_to_no_flower_app_refuses_the_job(tmp_path):
    place = FlowerPlace(tmp_path)
    place.data = None
    with pytest.raises(PeerError, match=r"\[datasets.credit.flower\]"):
        place.round(make_job(), tmp_path)
    place.data = FlowerData((tmp_path / "gone",))
    with pytest.raises(PeerError, match="cannot show"):
        place.round(make_job(), tmp_path)


def test_a_lost_state_stops_the_call(tmp_path):
    trainer = ScriptedTrainer(GOOD, state=b"x" * 100_000)
    _, place = answered(tmp_path, trainer, most=200_000)
    for path in place.folder.glob("site/app-states/*"):
        path.write_bytes(b"changed")
    work = FlowerRound(make_job(), trainer, place.states, 100)
    with pytest.raises(UsageError, match="damaged"):
        asyncio.run(work.make_update(ask(2)))
