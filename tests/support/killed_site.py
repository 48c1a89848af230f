"""A site on a real store, killed in each state that it leaves on disk while it trains and sends.

    python -P -m tests.support.killed_site FOLDER {shared|large|local|retry}

A first run looks at the folder before every line of the modules in ``TRACED``, so that no state
between two writes is missed: what a killed process leaves is what lies on disk. Then, for each of
these states, a forked process runs in a folder of its own and kills itself (SIGKILL) there; another
one starts on what is left, goes on as the daemon does, and takes part in the next attempt. What it
found is printed as JSON, one object a line. The wire is a file: what reached it has left the site.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import tidegate.keys
from edge_node import boot_key, budget, mirror, steps, store, store_held, updates
from edge_node import commands as ec
from edge_node.bench import Bench
from edge_node.boot_key import BootKey
from edge_node.budget import Ledgers, read_entries
from edge_node.bundles import encode_bundle
from edge_node.data import from_table
from edge_node.participant import Participant
from edge_node.policy import BudgetRule, Policy
from edge_node.recovery import take_up
from edge_node.rounds.contract import JobAtSite
from edge_node.steps import StepWriter
from edge_node.store import Store
from edge_node.store_schema import StoredBundle
from edge_node.updates import UpdateDesk
from privacy.accounting.chain import TIER_ENFORCED
from privacy.noise import NoisedUpdate
from privacy.pipeline import Mode
from privacy.planning import CohortRules, step_event
from privacy.secagg.keys import P256
from privacy.secagg.masking import mask
from privacy.spec import TensorSpec, VectorSpec
from tests.support.encoding_plans import make_plan
from tests.support.secagg_harness import seed
from tests.support.site_simulation import NAMES, PLAN, SimAggregator, SimSite
from tidegate.manifest import parse

ME = "bank-a"
JOB = "job-1"
KEY = BootKey(b"k" * 32, fresh=False, on_memory=True)
POLICY = Policy(budgets=(BudgetRule("loans", 20.0, 1e-5),))
RULES = CohortRules(1, 4, 5)
LOCAL = make_plan(Mode.RECORD_LOCAL, gradient=5, metrics=0, z=2.0, steps=4)
TRACED = {
    m.__file__ for m in (boot_key, budget, mirror, steps, store, store_held, updates, tidegate.keys)
}


class DurableSite(SimSite):
    """A simulated site whose steps and charges go to a real store and whose bytes to a file."""

    def open(self, folder, generation):
        """Start on what lies in a folder; ``generation`` tells this start's updates apart."""
        self.folder, self.generation = folder, generation
        self.wire = folder / f"wire-{generation}"
        self.store = Store(folder / "state" / "site.db", folder / "mirror", KEY)
        self.ledgers = Ledgers(self.store, self.name)
        self.ledgers.ensure(POLICY, "loans", step_event(self.plan, RULES, 10))
        self.bench = Bench()
        self.bench.jobs[JOB] = Work(self)
        self.steps = StepWriter(self.store, self.ledgers, self.bench)
        books = self.ledgers, self.steps
        self.desk = UpdateDesk(None, Versions(), POLICY, books, self.bench)

    def keep_stock(self):
        bundles = [
            StoredBundle(serial, encode_bundle(signed), seed("bundle", self.name, serial))
            for serial, signed in self.stock.items()
        ]
        self.store.reserve_serials(len(bundles))
        self.store.add_bundles(bundles, 512)

    def restore(self, manifest):
        """Take up what an earlier process left, in the order of ``EdgeNode``."""
        self.participant = Participant(self.identity, self.policy, manifest)
        self.participant.restore_job(self.accepted(JOB))
        take_up(self.store, self.participant.exchange, self.bench, P256, self.now_s)
        return list(self.participant.exchange._attempts)

    def with_secrets(self, roster):
        arrived = super().with_secrets(roster)
        if arrived.own_bundle is not None:
            serial = arrived.own_bundle.bundle.serial
            self.bench.joining[roster.context.digest()] = (serial, arrived.secrets)
        return arrived

    def carry_out(self, command):
        match command:
            case ec.CommitStep():
                return self.steps.commit(command)
            case ec.Train():
                return asyncio.run(self.desk.make(command))
            case ec.UploadUpdate(ctx, _, ring_bits, terms):
                sent = mask(self.bench.update_of(ctx), terms, ring_bits).values_d
                self.send(sent.tobytes())
                self.uploads[ctx] = sent
                return None
        return super().carry_out(command)

    def put_away(self, command):
        match command:
            case ec.DropUpdate(job_id):
                self.bench.ready.pop(job_id, None)
                held = self.bench.held.pop(job_id, None)
                if held is not None:
                    self.store.erase(held[0])
            case ec.HoldUpdate(ctx, job_id):
                self.store.hold(ctx, self.bench.hold(job_id, ctx))
            case ec.RecallUpdate(job_id, key):
                self.bench.recall(job_id, key)
            case ec.EraseAttempt(ctx):
                self.bench.forget_attempt(ctx)
                self.store.erase(ctx)

    def send(self, data):
        with self.wire.open("ab", buffering=0) as file:
            file.write(data[: len(data) // 2])
            file.write(data[len(data) // 2 :])

    def updates_on_disk(self):
        """Count the attempts that an update is kept with: live ones and held ones."""
        attempts = (*self.store.live_attempts(), *self.store.held_attempts())
        return sum(self.store.update_of(attempt.ctx) is not None for attempt in attempts)

    def charged_digests(self):
        (ledger,) = self.store.ledgers()
        return [entry.occasion.context_digest for entry in read_entries(ledger)]


class Versions:
    """Every model version is there already."""

    async def come_to(self, _wanted, _job):
        return SimpleNamespace(model_D=np.zeros(5, np.float32), passed_lint=True)


class Work:
    """The job at the site; what it makes is another update each time, and says that it was made."""

    def __init__(self, site):
        self.site = site
        dataset = from_table("loans", "loans", ("x",), np.zeros((4, 1), np.float32))
        job_file = SimpleNamespace(privacy=SimpleNamespace(delta_dp=1e-5))
        spec = VectorSpec((TensorSpec("w", (5,)),))
        event = step_event(site.plan, RULES)
        self.job = JobAtSite(JOB, job_file, site.plan, spec, event, TIER_ENFORCED, dataset)
        self.made = 0

    async def make_update(self, request):
        self.made += 1
        ran = self.site.folder / f"local-steps-{self.site.generation}"
        ran.write_bytes(b"ran")
        number = 1000 * self.site.generation + 10 * request.round + self.made
        return NoisedUpdate(np.arange(1, 6, dtype=np.int64) * number)


SEND = DurableSite.send.__code__


def make_market(plan):
    """Make an aggregator and sites that have taken the job, before anything was trained."""
    market = SimAggregator(NAMES, plan=plan)
    site = DurableSite(ME, plan=plan)
    market.sites[ME] = market.by_me[site.me] = site
    market.connect()
    market.offer()
    return market


def attempt_once(market, folder, *, retry=False):
    """Train and run one attempt from the start, in a new folder; first one in vain, if asked."""
    site = market.sites[ME]
    site.open(folder, 1)
    site.keep_stock()
    yield
    market.ask_to_train()
    if retry:
        outcome = market.run_attempt(NAMES, lose={NAMES[-1]: "upload", NAMES[-2]: "upload"})
        assert outcome[0] == "aborted", outcome
        market.free(NAMES)
        market.ask_to_train()
    outcome = market.run_attempt(NAMES)
    assert outcome[0] == "published", outcome


class Killer:
    """Counts the lines that run in ``TRACED`` and in the wire, and strikes before the n-th.

    Attributes:
        states: Before which lines the folder was another than before, if that is watched.
    """

    def __init__(self, folder, strike_at):
        self.folder = folder
        self.strike_at = strike_at
        self.lines = 0
        self.states = []
        self._seen = None

    def trace(self, frame, _event, _argument):
        code = frame.f_code
        return self.line if code.co_filename in TRACED or code is SEND else None

    def line(self, _frame, event, _argument):
        if event == "line":
            self.lines += 1
            if self.lines == self.strike_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if not self.strike_at:
                self.watch()
        return self.line

    def watch(self):
        seen = {
            path.relative_to(self.folder): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.name.endswith("-shm")
        }
        if seen != self._seen:
            self.states.append(self.lines)
            self._seen = seen


def first_life(market, folder, strike_at, *, retry=False):
    """Run to the end, or to the strike; without one, keep the lines before which to strike."""
    killer = Killer(folder, strike_at)
    life = attempt_once(market, folder, retry=retry)
    next(life)
    sys.settrace(killer.trace)
    for _ in life:
        pass
    sys.settrace(None)
    (folder / "states").write_text(json.dumps(killer.states))


def second_life(market, folder):
    """Start on what is left, go on, then take part in the next attempt; say what was seen."""
    site = market.sites[ME]
    site.open(folder, 2)
    first = site.charged_digests()
    ran = (folder / "local-steps-1").exists()
    sent = (folder / "wire-1").read_bytes() if (folder / "wire-1").exists() else b""
    taken = site.restore(parse(market.manifest.canonical()))
    copies = site.updates_on_disk()
    for event in (ec.Connected(), market.welcome()):
        site.feed(event)
    again = site.wire.read_bytes() if site.wire.exists() else b""
    resent = site.charged_digests()
    site.wire = folder / "wire-3"
    site.sent.clear()
    market.attempt += 2  # those that were cut off
    for stock in market.stock.values():
        stock.popleft()
        stock.popleft()
    ready = market.ask_to_train()
    outcome = market.run_attempt(NAMES)
    return {
        "charges": first,
        "ran": ran,
        "sent": sent.hex(),
        "taken": [ctx.hex() for ctx in taken],
        "copies": copies,
        "served": [ctx.hex() for ctx in site.store.held.served().values()],
        "again": again.hex(),
        "charges_after_resending": resent,
        "ready": ME in ready,
        "outcome": outcome[0],
        "survived": ME in outcome[2],
        "charges_at_end": site.charged_digests(),
        "sent_anew": (folder / "wire-3").read_bytes().hex(),
        "left_over": sorted(path.name for path in (folder / "state" / "updates").iterdir()),
    }


def in_a_process(work, *arguments):
    """Run something in a fork of this process; gives the status it ended with."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        work(*arguments)
        status = 0
    except BaseException:  # noqa: BLE001 - said, and the status tells
        traceback.print_exc()
    os._exit(status)


def report(market, folder):
    (folder / "seen").write_text(json.dumps(second_life(market, folder)))


def main():
    where, kind = Path(sys.argv[1]), sys.argv[2]
    if kind == "large":
        store._LARGE_UPDATE_BYTES = 16  # the update goes to a file of its own
    market = make_market(LOCAL if kind == "local" else PLAN)
    whole = where / "whole"
    whole.mkdir(mode=0o700)
    live = partial(first_life, retry=kind == "retry")
    assert in_a_process(live, market, whole, 0) == 0
    for number in json.loads((whole / "states").read_text()):
        folder = where / f"{number}"
        folder.mkdir(mode=0o700)
        ended = in_a_process(live, market, folder, number)
        assert ended == -signal.SIGKILL, (number, ended)
        assert in_a_process(report, market, folder) == 0, number
        sys.stdout.write((folder / "seen").read_text() + "\n")


if __name__ == "__main__":
    main()
