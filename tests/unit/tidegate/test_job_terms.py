"""From a job file to the terms of its privacy, for every mode and unit."""

import pytest

from privacy.errors import UsageError
from privacy.pipeline import Mode
from privacy.planning import evaluation_encoding
from privacy.quantise import Rounding
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile

HEAD = """
[job]
name = "credit"
dataset = "loans"
rounds = 30
[round]
target_sites = 5
"""
STRATEGY = '[strategy]\nname = "FedAvg"\n'
TARGET = "epsilon = 4.0\ndelta_dp = 1e-6\nclipping_norm = 0.5\n"
LOCAL = f"""
[privacy]
mode = "record-local"
{TARGET}
sampling_rate = 0.05
expected_batch_size = 64
max_records = 5000
update_norm = 3.0
"""
STEPS = "[local]\nsteps = 7\n"
SITE = f'[privacy]\nmode = "site"\n{TARGET}'
USERS = 'unit = "user"\nuser_column = "customer"\nmax_rows_per_user = 12\n'
FLOWER = '[flower]\ndriver = "{driver}"\n{more}\n'
EVALUATION = '[[evaluation_metrics]]\nname = "loss"\nkind = "mean"\nupper = 2.0\n'


def terms(*parts, head=HEAD):
    return privacy_terms(JobFile.parse("\n".join((head, *parts)).encode()))


def test_record_local_takes_its_steps_and_norms():
    found = terms(STRATEGY, LOCAL, "noise_multiplier = 1.5", STEPS, "learning_rate = 0.1")
    assert (found.mode, found.epsilon, found.delta_dp) == (Mode.RECORD_LOCAL, 4.0, 1e-6)
    assert (found.sampling_rate, found.expected_batch_size, found.max_records) == (0.05, 64.0, 5000)
    assert (found.local_steps, found.update_norm, found.noise_multiplier) == (7, 3.0, 1.5)
    assert (found.unit, found.max_rows, found.protected) == ("record", 0, "record")


def test_epochs_count_their_steps():
    # 3 epochs at q = 0.05 and 7 steps a round: ceil(60 / 7) = 9 rounds.
    head = HEAD.replace("rounds = 30\n", "")
    found = terms(STRATEGY, LOCAL, "epochs = 3.0", STEPS, "learning_rate = 0.1", head=head)
    assert (found.rounds, found.local_steps) == (9, 7)


def test_users_are_the_unit_with_their_row_cap():
    found = terms(STRATEGY, LOCAL, USERS, STEPS, "learning_rate = 0.1")
    assert (found.unit, found.max_rows, found.protected) == ("user", 12, "user")


def test_site_protects_whole_sites():
    found = terms(STRATEGY, SITE, STEPS, "batch_size = 32\nlearning_rate = 0.1")
    assert (found.mode, found.protected, found.rounding) == (
        Mode.SITE,
        "site",
        Rounding.CONDITIONAL,
    )
    assert (found.epsilon, found.sampling_rate, found.noise_multiplier) == (4.0, 1.0, None)


@pytest.mark.parametrize(("every", "rounds"), [(4, 7), (30, 1), (31, 0)])
def test_a_strategys_evaluations_are_counted_beside_its_rounds(every, rounds):
    more = f"evaluate_every = {every}"
    found = terms(FLOWER.format(driver="strategy", more=more), STRATEGY, SITE, EVALUATION)
    assert (found.evaluation_rounds, found.exchanges) == (rounds, 30 + rounds)
    # None asked for, none planned for: a length alone would say that any round may be one.
    assert found.evaluation_length == (1 if rounds else 0)


def test_a_server_apps_rounds_may_be_evaluations():
    found = terms(FLOWER.format(driver="server-app", more=""), SITE, EVALUATION)
    assert (found.rounds, found.evaluation_rounds, found.evaluation_length) == (30, 0, 1)
    assert found.exchanges == 30, "trainings and evaluations together"


def test_a_strategy_that_never_evaluates_has_no_evaluation():
    found = terms(FLOWER.format(driver="strategy", more=""), STRATEGY, SITE, EVALUATION)
    assert (found.evaluation_rounds, found.evaluation_length) == (0, 0)
    with pytest.raises(UsageError):
        evaluation_encoding(found, None, None, b"m" * 32)


def test_an_app_that_adds_its_own_noise_must_say_how_much():
    flower = FLOWER.format(driver="strategy", more="")
    with pytest.raises(UsageError, match="noise_multiplier"):
        terms(flower, STRATEGY, LOCAL, STEPS)
    assert terms(flower, STRATEGY, LOCAL, "noise_multiplier = 1.1", STEPS).local_steps == 7


REMOVE = "remove_surplus_noise = true\n"


@pytest.mark.parametrize("text", [SITE, LOCAL.replace("record-local", "record-distributed")])
def test_surplus_noise_may_go_where_it_is_shared_and_only_if_asked(text):
    steps = "" if "distributed" in text else STEPS + "batch_size = 8\n"
    text = text.replace("update_norm = 3.0\n", "")
    assert terms(text, steps, STRATEGY).surplus_up_to == 0
    assert terms(text + REMOVE, steps, STRATEGY).surplus_up_to == 5
    assert terms(text + REMOVE.replace("true", "false"), steps, STRATEGY).surplus_up_to == 0


@pytest.mark.parametrize("text", [LOCAL, '[privacy]\nmode = "none"\nclipping_norm = 1.0\n'])
def test_modes_without_shared_noise_refuse_the_option(text):
    with pytest.raises(UsageError, match="remove_surplus_noise"):
        terms(text + REMOVE, STEPS, STRATEGY)
