"""What an app is called with, and how its answer is described to the daemon."""

import json

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from edge_node.flower.calls import MAX_METRICS, describe_reply, make_call
from edge_node.flower.legacy import LegacyClientError, legacy_config, modern_reply
from privacy.spec import TensorSpec, VectorSpec
from tidegate.flower_bridge import assume_task_identity
from tidegate.flower_config import MessageConfig

SPEC = VectorSpec((TensorSpec("w", (2,)), TensorSpec("b", ())))
MODEL_D = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.fixture(autouse=True)
def identity():
    assume_task_identity()


def call(purpose="train", config=None):
    return make_call(SPEC.unflatten(MODEL_D.copy()), config or MessageConfig(), purpose, 7)


def reply(content):
    return Message(RecordDict(content), reply_to=call())


def arrays_of(**arrays):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def test_a_call_is_what_a_strategy_would_send():
    config = MessageConfig({"server-round": 3, "lr": 0.5}, "model", "settings")
    message = call("evaluate.final", config)
    assert message.metadata.message_type == "evaluate.final"
    assert message.metadata.dst_node_id == 7
    assert [*message.content] == ["model", "settings"]
    assert dict(message.content["settings"]) == {"server-round": 3, "lr": 0.5}
    found = {name: array.numpy() for name, array in message.content["model"].items()}
    assert found["w"].tolist() == [1.0, 2.0]
    assert found["b"].shape == ()
    assert found["b"].dtype == np.float32


def test_an_answer_is_described_and_its_arrays_written_in_the_models_order():
    out_D = MODEL_D.copy()
    answer = reply(
        {
            "metrics": MetricRecord({"loss": 2, "all": [1.0], "n": float("nan")}),
            "any name": arrays_of(b=np.float64(9), w=np.array([7, 8], np.int64)),
            "config": ConfigRecord({"x": "y"}),
        }
    )
    described = json.loads(json.dumps(describe_reply(answer, SPEC, out_D)))
    assert described["records"] == [1, 1, 1]
    assert described["arrays"] == [["b", "float64", []], ["w", "int64", [2]]]
    assert described["metrics"] == {
        "loss": 2.0,
        "all": None,
        "n": pytest.approx(np.nan, nan_ok=True),
    }
    assert out_D.tolist() == [7.0, 8.0, 9.0]


def test_arrays_that_do_not_fit_leave_the_vector_alone():
    out_D = MODEL_D.copy()
    answer = reply({"a": arrays_of(w=np.ones(3), b=np.complex64(1), c=np.ones(1), d=np.ones(1))})
    described = describe_reply(answer, SPEC, out_D)
    # One more than the model has is enough to see that there are too many.
    assert [entry[0] for entry in described["arrays"]] == ["w", "b", "c"]
    assert out_D.tolist() == MODEL_D.tolist()


def test_a_number_beyond_float32_becomes_infinite():
    out_D = MODEL_D.copy()
    describe_reply(reply({"a": arrays_of(w=np.array([1e300, 1.0]), b=0.0)}), SPEC, out_D)
    assert np.isposinf(out_D[0])


def test_several_array_records_are_counted_and_none_is_written():
    out_D = MODEL_D.copy()
    answer = reply({"a": arrays_of(w=np.ones(2)), "b": arrays_of(b=0.0)})
    described = describe_reply(answer, SPEC, out_D)
    assert described["records"] == [2, 0, 0]
    assert described["arrays"] == []
    assert out_D.tolist() == MODEL_D.tolist()


@pytest.mark.parametrize("answer", [[], None, {"arrays": 1}, RecordDict()])
def test_what_is_no_message_is_said_to_be_none(answer):
    described = describe_reply(answer, SPEC, MODEL_D.copy())
    assert type(answer).__name__ in described["error"]


def test_an_error_is_passed_on_and_cut():
    error = Message(Error(3, "why " + "x" * 10_000), reply_to=call())
    assert describe_reply(error, SPEC, MODEL_D.copy())["error"].startswith("error 3: why x")
    assert len(describe_reply(error, SPEC, MODEL_D.copy())["error"]) < 1000


def test_metrics_and_names_are_bounded():
    metrics = MetricRecord({f"m{n}": 1.0 for n in range(MAX_METRICS + 5)} | {"x" * 9999: 1.0})
    described = describe_reply(reply({"m": metrics}), SPEC, MODEL_D.copy())
    assert len(described["metrics"]) == MAX_METRICS


def legacy_reply(content):
    status = ConfigRecord({"code": 0, "message": ""})
    return reply({"fitres.status": status, "fitres.metrics": ConfigRecord(), **content})


def test_the_earlier_interface_has_names_of_its_own():
    config = legacy_config(MessageConfig({"a": 1}), "train.x")
    assert (config.arrays_key, config.config_key) == ("fitins.parameters", "fitins.config")
    config = legacy_config(MessageConfig(), "evaluate")
    assert (config.arrays_key, config.config_key) == (
        "evaluateins.parameters",
        "evaluateins.config",
    )


def test_arrays_without_names_take_the_models_by_their_place():
    old = legacy_reply({"fitres.parameters": arrays_of(**{"0": np.ones(2), "1": 5.0, "2": 6.0})})
    out_D = MODEL_D.copy()
    described = describe_reply(modern_reply(old, "train", SPEC), SPEC, out_D)
    assert [entry[0] for entry in described["arrays"]] == ["w", "b", "array 2"]
    assert out_D.tolist() == [1.0, 1.0, 5.0]


def test_no_arrays_at_all_are_none():
    empty = ArrayRecord({"_empty": Array("", (), "numpy.ndarray", b"")})
    described = describe_reply(
        modern_reply(legacy_reply({"fitres.parameters": empty}), "train", SPEC),
        SPEC,
        MODEL_D.copy(),
    )
    assert described["records"] == [1, 1, 0]
    assert described["arrays"] == []


def test_a_client_that_says_it_failed_is_believed():
    status = ConfigRecord({"code": 2, "message": "FIT_NOT_IMPLEMENTED"})
    with pytest.raises(LegacyClientError, match="FIT_NOT"):
        modern_reply(legacy_reply({"fitres.status": status}), "train", SPEC)
