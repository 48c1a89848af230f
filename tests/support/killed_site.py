"""A site on a real store, killed in each state that it leaves on disk while it trains and sends.

    python -P -m tests.support.killed_site FOLDER {shared|large|local}

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
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import tidegate.keys
from edge_node import boot_key, budget, mirror, steps, store, updates
from edge_node import commands as ec
from edge_node.bench import Bench
from edge_node.boot_key import BootKey
from edge_node.budget import Ledgers, read_entries
from edge_node.bundles import decode_bundle, encode_bundle, unpack_secrets
from edge_node.data import from_table
from edge_node.participant import Participant
from edge_node.policy import BudgetRule, Policy
from edge_node.rounds.contract import JobAtSite
from edge_node.steps import StepWriter
from edge_node.store import Store
from edge_node.store_schema import StoredBundle
from edge_node.updates import UpdateDesk
from edge_node.upload import update_from_bytes
from privacy.accounting.chain import TIER_ENFORCED
from privacy.noise import NoisedUpdate
from privacy.pipeline import Mode
from privacy.planning import CohortRules, step_event
from privacy.secagg.commands import Step
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
TRACED = {m.__file__ for m in (boot_key, budget, mirror, steps, store, updates, tidegate.keys)}


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
        self.desk = UpdateDesk(None, POLICY, self.ledgers, self.bench, self.steps)

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
        taken = []
        for attempt in self.store.live_attempts():
            goes_on = self.participant.exchange.restore(
                (attempt.job_id, attempt.round, attempt.attempt),
                attempt.facts,
                (decode_bundle(attempt.bundle, P256), unpack_secrets(attempt.secrets)),
                {Step(step): slot for step, slot in self.store.slots(attempt.ctx).items()},
                self.now_s,
            )
            kept = self.store.update_of(attempt.ctx)
            if kept is not None:
                self.bench.charged[attempt.ctx] = update_from_bytes(kept)
            if goes_on:
                taken.append(attempt.ctx)
            else:
                self.carry_out(ec.EraseAttempt(attempt.ctx))
        return taken

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
                self.bench.models[JOB] = (command.model_sha256, bytes(20))
                return asyncio.run(self.desk.make(command))
            case ec.UploadUpdate(ctx, _, ring_bits, terms):
                sent = mask(self.bench.update_of(ctx), terms, ring_bits).values_d
                self.send(sent.tobytes())
                self.uploads[ctx] = sent
                return None
            case ec.DropUpdate(job_id):
                self.bench.ready.pop(job_id, None)
                return None
            case ec.EraseAttempt(ctx):
                self.bench.forget_attempt(ctx)
                self.store.erase(ctx)
                return None
        return super().carry_out(command)

    def send(self, data):
        with self.wire.open("ab", buffering=0) as file:
            file.write(data[: len(data) // 2])
            file.write(data[len(data) // 2 :])

    def charged_digests(self):
        (ledger,) = self.store.ledgers()
        return [entry.occasion.context_digest for entry in read_entries(ledger)]


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


def attempt_once(market, folder):
    """Train and run one attempt from the start, in a new folder."""
    site = market.sites[ME]
    site.open(folder, 1)
    site.keep_stock()
    yield
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


def first_life(market, folder, strike_at):
    """Run to the end, or to the strike; without one, keep the lines before which to strike."""
    killer = Killer(folder, strike_at)
    life = attempt_once(market, folder)
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
    for event in (ec.Connected(), market.welcome()):
        site.feed(event)
    again = site.wire.read_bytes() if site.wire.exists() else b""
    resent = site.charged_digests()
    site.wire = folder / "wire-3"
    site.sent.clear()
    market.attempt += 1  # the one that was cut off
    for stock in market.stock.values():
        stock.popleft()
    ready = market.ask_to_train()
    outcome = market.run_attempt(NAMES)
    return {
        "charges": first,
        "ran": ran,
        "sent": sent.hex(),
        "taken": [ctx.hex() for ctx in taken],
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
    assert in_a_process(first_life, market, whole, 0) == 0
    for number in json.loads((whole / "states").read_text()):
        folder = where / f"{number}"
        folder.mkdir(mode=0o700)
        ended = in_a_process(first_life, market, folder, number)
        assert ended == -signal.SIGKILL, (number, ended)
        assert in_a_process(report, market, folder) == 0, number
        sys.stdout.write((folder / "seen").read_text() + "\n")


if __name__ == "__main__":
    main()
