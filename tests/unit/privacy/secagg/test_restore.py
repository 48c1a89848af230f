"""A crash at every slot, before and after its transaction: the same bytes, one charge, no reuse."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import slots
from privacy.secagg.commands import Erase, MaskAndUpload, Send, Sign, Step, Tick
from privacy.secagg.messages import AbortRequest, AbortSignature, SurvivorSignature
from privacy.secagg.retry import RetryPermit
from privacy.secagg.site import SiteAttempt
from tests.support.secagg_harness import NOW_S, Federation, refused, seed, with_config

ALL = (1, 2, 3, 4, 5)
STEPS = list(Step)[1:]
"""Of a complete cohort; step 0 is in test_sparse_restore.py."""


def inputs(survivors=ALL):
    """Return site 1's four inputs, made by a twin federation without a fault."""
    twin = Federation(5)
    dealt = twin.upload_all()
    chosen = twin.survivor_set(ALL, survivors)
    votes = [twin.site(i).feed(chosen)[0] for i in survivors]
    return (twin.roster, twin.delivery(dealt, 1), chosen, twin.quorum(votes))


def frozen(message):
    return message.values_d.tobytes() if hasattr(message, "values_d") else message


@pytest.mark.parametrize("survivors", [ALL, (1, 2, 3, 5)], ids=str)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_slot_gives_byte_identical_messages(step, when, survivors):
    smooth = Federation(5)
    expected = [frozen(smooth.site(1).feed(message)[0]) for message in inputs(survivors)]
    federation = Federation(5)
    site = federation.site(1)
    got = []
    for number, message in enumerate(inputs(survivors), start=1):
        if number != step:
            got.append(frozen(site.feed(message)[0]))
            continue
        site.crash_at = (when, step)
        assert site.feed(message) == []
        resumed = site.restart()
        if when == "after":
            # Durable: it goes out by itself, and again when it is asked for again.
            assert frozen(resumed[-1]) == expected[number - 1]
        got.append(frozen(site.feed(message)[0]))
    assert got == expected
    assert site.charges == 1
    assert site.aborted is None


@pytest.mark.parametrize("step", STEPS)
def test_after_a_restart_a_different_input_still_kills(step):
    federation = Federation(5)
    site = federation.site(1)
    messages = inputs()
    for message in messages[: int(step)]:
        site.feed(message)
    site.restart()
    other = Federation(5, serial=2)
    different = {
        Step.SHARE_KEYS: federation.roster.__class__(
            federation.context, other.bundles, federation.plan
        ),
        Step.MASKED_UPDATE: messages[1].__class__(messages[1].ctx, messages[1].shares[:3]),
        Step.CONSISTENCY: federation.survivor_set(ALL, (1, 2, 3, 4)),
        Step.UNMASK: federation.survivor_set(ALL, (1, 2, 3, 4)),
    }[step]
    site.feed(different)
    assert site.aborted.reason is Reason.EQUIVOCATION
    votes = [m for m in site.sent if isinstance(m, SurvivorSignature)]
    aborts = [m for m in site.sent if isinstance(m, AbortSignature)]
    assert not (votes and aborts), "slot 3 holds one of the two"


def test_a_dead_attempt_stays_dead_after_a_restart():
    federation = Federation(5)
    site = federation.site(1)
    messages = inputs()
    site.feed(messages[0])
    (abort,) = site.feed(AbortRequest(federation.context.digest(), "stop"))
    assert site.erased
    assert site.restart() == [abort]
    with pytest.raises(PeerError, match="stopped"):
        site.feed(messages[1])
    assert site.feed(AbortRequest(federation.context.digest(), "stop")) == [abort]


def test_a_restored_abort_is_given_again_even_before_resume():
    federation = Federation(5)
    site = federation.site(1)
    site.feed(inputs()[0])
    request = AbortRequest(federation.context.digest(), "stop")
    (abort,) = site.feed(request)
    attempt = SiteAttempt.restore(site.config, site.own, None, site.slots, NOW_S)
    assert [command.message for command in attempt.handle(request, NOW_S)] == [abort]
    ends = attempt.handle(Tick(), attempt.next_deadline_s())
    assert [type(command) for command in ends] == [Send, Erase], "its Abort was given before"


def test_a_permit_that_was_used_is_not_asked_for_again():
    # Once slot 2 is written, this attempt is itself the last that sent the update.
    federation = Federation(5)
    site = federation.site(1)
    messages = inputs()
    site.feed(messages[0])
    site.feed(messages[1])
    config = replace(site.config, last_sent=(7, 1))
    used = RetryPermit(7, 0, config.update_digest())
    attempt = SiteAttempt.restore(config, site.own, site.secrets, site.slots, NOW_S, used)
    assert isinstance(attempt.resume()[0], MaskAndUpload)


def test_a_crash_while_the_abort_is_written_leaves_the_slot_free_or_aborted():
    for when in ("before", "after"):
        federation = Federation(5)
        site = federation.site(1)
        site.feed(inputs()[0])
        site.crash_at = (when, Step.CONSISTENCY)
        site.feed(AbortRequest(federation.context.digest(), "stop"))
        site.aborted = None
        site.restart()
        out = [*site.sent, *site.feed(AbortRequest(federation.context.digest(), "stop"))]
        assert isinstance(out[-1], AbortSignature)


def test_without_its_secrets_an_attempt_is_void_and_signs_the_abort():
    # A new boot key, or a restored backup: no keys, so nothing can be replayed.
    federation = Federation(5)
    site = federation.site(1)
    messages = inputs()
    site.feed(messages[0])
    site.feed(messages[1])
    (abort,) = site.restart(secrets=None)
    assert isinstance(abort, AbortSignature)
    assert site.aborted.reason is Reason.STOPPED
    with pytest.raises(PeerError, match="stopped"):
        site.feed(messages[2])


def test_without_its_secrets_a_signed_u3_is_given_again_but_no_share():
    federation = Federation(5)
    site = federation.site(1)
    messages = inputs()
    for message in messages[:3]:
        site.feed(message)
    site.restart(secrets=None)
    with pytest.raises(PeerError, match="stopped"):
        site.feed(messages[3])
    (vote,) = site.feed(AbortRequest(federation.context.digest(), "x"))
    assert isinstance(vote, SurvivorSignature)


def test_a_damaged_slot_stops_the_site():
    federation = Federation(5)
    site = federation.site(1)
    for message in inputs():
        site.feed(message)
    for step, slot in list(site.slots.items()):
        for bad in (slot[:-1], b"", slot + slot, b"z" + slot[1:]):
            site.slots[step] = bad
            with pytest.raises(UsageError, match="slot"):
                site.restart()
        site.slots[step] = slot
    site.slots[Step.SHARE_KEYS], site.slots[Step.UNMASK] = (
        site.slots[Step.UNMASK],
        site.slots[Step.SHARE_KEYS],
    )
    with pytest.raises(UsageError):
        site.restart()


def test_a_slot_is_read_back_only_under_its_own_step():
    federation = Federation(5)
    site = federation.site(1)
    for message in inputs():
        site.feed(message)
    for step in STEPS:
        assert slots.decode(step, site.slots[step]).encode() == site.slots[step]
        for other in set(Step) - {step}:
            with pytest.raises(UsageError, match="not what was committed"):
                slots.decode(other, site.slots[step])


def test_a_missing_slot_stops_the_site():
    federation = Federation(5)
    site = federation.site(1)
    for message in inputs():
        site.feed(message)
    del site.slots[Step.MASKED_UPDATE]
    with pytest.raises(UsageError, match="missing"):
        site.restart()


def test_slots_of_another_attempt_are_refused():
    federation, other = Federation(5), Federation(5, attempt=2)
    site = federation.site(1)
    site.feed(federation.roster)
    moved = with_config(other.site(1))
    moved.slots = site.slots
    with pytest.raises(UsageError, match="another attempt"):
        moved.restart()


def test_dealing_again_after_a_crash_never_reuses_a_nonce_under_another_roster():
    # The crash came before slot 1: the roster may change, and then so does the key of each pair.
    federation = Federation(5)
    site = federation.site(1)
    site.crash_at = ("before", Step.SHARE_KEYS)
    site.feed(federation.roster)
    site.restart()
    other = Federation(5, serial=2)
    bundles = (federation.bundles[0], federation.bundles[1], *other.bundles[2:])
    (second,) = site.feed(federation.roster.__class__(federation.context, bundles, federation.plan))
    first = Federation(5).deal_all()[1]
    assert second.ciphertexts[1] != first.ciphertexts[1]


def test_timeouts_start_anew_after_a_restart_and_end_with_an_abort():
    federation = Federation(5)
    site = federation.site(1)
    assert site.attempt.next_deadline_s() is None
    site.feed(federation.roster)
    deadline = site.attempt.next_deadline_s()
    assert deadline == NOW_S + site.config.step_timeout_s
    assert site.attempt.handle(Tick(), deadline - 1) == []
    site.restart(now_s=deadline)
    assert site.attempt.next_deadline_s() == deadline + site.config.step_timeout_s
    commands = site.attempt.handle(Tick(), deadline + site.config.step_timeout_s)
    assert isinstance(commands[-1], Sign)
    assert commands[0].reason is Reason.TIMEOUT
    # The abort has a timeout of its own: another tick at once does not throw it away.
    again_s = deadline + site.config.step_timeout_s
    assert site.attempt.next_deadline_s() > again_s
    assert site.attempt.handle(Tick(), again_s) == []
    assert not site.attempt.is_over
    assert [type(c) for c in site.attempt.handle(Tick(), again_s + 1e6)] == [Erase]


def test_the_own_bundle_must_still_be_the_one_of_the_stock():
    federation = Federation(5)
    site = federation.site(1)
    site.own = Federation(5, serial=2).site(1).own
    with_config(site)
    refused(site, federation.roster, Reason.EQUIVOCATION, "own bundle")
    assert seed("unused")
