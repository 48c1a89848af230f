"""Take up what an earlier process of the edge node left: live attempts, and held updates."""

from dataclasses import replace

from edge_node import log
from edge_node.bench import Bench
from edge_node.bundles import decode_bundle, split_seeds, unpack_secrets
from edge_node.exchange import Exchange
from edge_node.job_state import AttemptFacts
from edge_node.store import Store
from edge_node.store_schema import StoredAttempt
from edge_node.upload import update_from_bytes
from privacy.secagg.commands import Step
from privacy.secagg.keys import Suite


def take_up(store: Store, exchange: Exchange, bench: Bench, suite: Suite, now_s: float) -> None:
    """Give the exchange and the bench what is durable; what is of no use any more is erased."""
    for attempt in store.held_attempts():
        if not _take_up_held(store, exchange, bench, attempt, now_s):
            store.erase(attempt.ctx)
    for attempt in store.live_attempts():
        secrets = unpack_secrets(attempt.secrets)
        taken = exchange.restore(
            (attempt.job_id, attempt.round, attempt.attempt),
            attempt.facts,
            (decode_bundle(attempt.bundle, suite), secrets),
            _slots(store, attempt.ctx),
            now_s,
        )
        update = store.update_of(attempt.ctx)
        if update is not None:
            read = update_from_bytes(update)
            bench.charged[attempt.ctx] = replace(read, surplus_seeds=secrets.surplus_seeds)
        if not taken:
            bench.forget_attempt(attempt.ctx)
            store.erase(attempt.ctx)
        log.info("attempt found after a restart", ctx=attempt.ctx, goes_on=taken)


def _take_up_held(
    store: Store, exchange: Exchange, bench: Bench, attempt: StoredAttempt, now_s: float
) -> bool:
    update = store.update_of(attempt.ctx)
    names = (attempt.job_id, attempt.round, attempt.attempt)
    slots = _slots(store, attempt.ctx)
    if update is None or not exchange.restore_held(names, attempt.facts, slots, now_s):
        return False
    read = replace(update_from_bytes(update), surplus_seeds=split_seeds(attempt.secrets))
    bench.held[attempt.job_id] = (attempt.ctx, read)
    key = AttemptFacts.decode(attempt.facts).key
    log.info("held update found after a restart", ctx=attempt.ctx, round=key.round)
    return True


def _slots(store: Store, ctx: bytes) -> dict[Step, bytes]:
    return {Step(step): slot for step, slot in store.slots(ctx).items()}
