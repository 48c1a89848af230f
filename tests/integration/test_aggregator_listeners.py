# ruff: noqa: ASYNC110, ASYNC220, ASYNC221 - tests wait for what has no event, and start processes
"""The listeners against wrong peers: each is refused with its reason, and nobody else notices."""

import asyncio
import hashlib
import json
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest

from privacy.secagg.messages import AbortSignature
from tests.support.live_aggregator import (
    NONE,
    OPTIONS,
    SPEC,
    LiveAggregator,
    federation,
    job_toml,
)
from tests.support.wire_site import WireSite
from tidegate import convert, pki
from tidegate import messages as m
from tidegate.v1 import federation_pb2, federation_pb2_grpc, operator_pb2_grpc
from tidegate.v1 import operator_pb2 as pb

Status = grpc.StatusCode


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def refusal(awaitable):
    """Return status and reason of a call that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    trailing = dict(caught.value.trailing_metadata() or ())
    return caught.value.code(), trailing.get("tidegate-reason")


async def first_answer(stub):
    call = stub.Session()
    await call.write(convert.site_message_to_wire(m.Hello(m.PROTOCOL, bytes(16), "cpu", ())))
    answer = await call.read()
    if answer is grpc.aio.EOF:
        await call
    raise AssertionError(answer)


# --- identities ----------------------------------------------------------------------------------


def test_wrong_certificates_are_refused_at_the_site_listener(tmp_path):
    async def scenario():
        async with federation(tmp_path, count=4) as live:
            site, address = live.sites[0], live.addresses["sites"]

            def dial(key, certificate_pem, ca_pem=site.ca_pem):
                credentials = grpc.ssl_channel_credentials(
                    ca_pem, pki.key_pem(key), certificate_pem
                )
                channel = grpc.aio.secure_channel(address, credentials, OPTIONS)
                return federation_pb2_grpc.FederationServiceStub(channel)

            validity = pki.Validity(time.time())
            foreign_ca = pki.make_ca("test", validity)
            key = pki.make_key()
            foreign, unknown = (
                pki.issue_site_cert_from_csr(ca, pki.make_csr(key, "x"), name, validity)
                for ca, name in ((foreign_ca, "bank-1"), (live.authority, "bank-9"))
            )
            _, operator_key, operator_certificate = live.operator
            assert await refusal(first_answer(dial(key, foreign))) == (Status.UNAVAILABLE, None)
            answer = await refusal(first_answer(dial(key, unknown)))
            assert answer == (Status.UNAUTHENTICATED, "unauthenticated")
            credentials = grpc.ssl_channel_credentials(
                site.ca_pem, operator_key, operator_certificate
            )
            channel = grpc.aio.secure_channel(address, credentials, OPTIONS)
            stub = federation_pb2_grpc.FederationServiceStub(channel)
            answer = await refusal(first_answer(stub))
            assert answer == (Status.UNAUTHENTICATED, "unauthenticated")
            bare = grpc.aio.secure_channel(
                address, grpc.ssl_channel_credentials(site.ca_pem), OPTIONS
            )
            stub = federation_pb2_grpc.FederationServiceStub(bare)
            assert await refusal(first_answer(stub)) == (Status.UNAVAILABLE, None)

    run(scenario())


def test_sites_and_strangers_are_refused_at_the_operator_listener(tmp_path):
    async def scenario():
        async with federation(tmp_path, count=4) as live:
            site = live.sites[0]
            channel = live.dial_operator(pki.key_pem(site.tls_key), site.grant.certificate_pem)
            api = operator_pb2_grpc.OperatorServiceStub(channel)
            calls = [
                api.GetStatus(pb.GetStatusRequest()),
                api.RevokeSite(pb.RevokeSiteRequest(site_id="bank-2", why="mine")),
                api.CreateToken(pb.CreateTokenRequest(site_id="bank-9", valid_s=60)),
                api.ListJobs(pb.ListJobsRequest()),
            ]
            for call in calls:
                assert await refusal(call) == (Status.UNAUTHENTICATED, "unauthenticated")
            for stream in (
                api.WatchJob(pb.WatchJobRequest(job_id="x")),
                api.ExportModel(pb.ExportModelRequest(job_id="x")),
            ):
                assert await refusal(stream.read()) == (Status.UNAUTHENTICATED, "unauthenticated")
            await channel.close()
            # What one listener serves does not exist on another.
            operator = operator_pb2_grpc.OperatorServiceStub(
                live.dial_operator(*live.operator[1:], address=live.addresses["sites"])
            )
            code, _ = await refusal(operator.GetStatus(pb.GetStatusRequest()))
            assert code is Status.UNIMPLEMENTED

    run(scenario())


def test_enrolment_refuses_bad_tokens_over_the_wire(tmp_path):
    async def scenario():
        live = LiveAggregator(tmp_path)
        await live.start()
        try:
            token = await live.api.CreateToken(pb.CreateTokenRequest(site_id="bank-1", valid_s=60))
            where = (live.addresses["enrolment"], token.ca_pem)
            unknown = WireSite("bank-1").enrol("x" * 40, *where)
            assert await refusal(unknown) == (Status.PERMISSION_DENIED, "token-unknown")
            long = WireSite("bank-1").enrol("x" * 4000, *where)
            assert (await refusal(long))[1] in ("too-large", "malformed")
            await WireSite("bank-1").enrol(token.secret, *where)
            again = WireSite("bank-1").enrol(token.secret, *where)
            assert await refusal(again) == (Status.PERMISSION_DENIED, "token-used")
        finally:
            await live.stop()

    run(scenario())


async def stays_out(live, site, ends):
    """Dial until the refusal itself arrives; no dial may end in anything else meanwhile."""
    for _ in range(20):
        end = await live.connect(site)
        assert end in ends
        if end is Status.PERMISSION_DENIED:
            return
    raise AssertionError("a revoked site was never told that it is refused")


def test_revocation_ends_the_live_session_at_once_and_for_good(tmp_path):
    async def scenario():
        async with federation(tmp_path) as live:
            job_id = await live.submit(job_toml(rounds=400))
            await live.watch(job_id, lambda job: job.round >= 2)
            site = live.sites[0]
            await live.api.RevokeSite(pb.RevokeSiteRequest(site_id="bank-1", why="left"))
            # gRPC may drop the last frame before a refusal, and the status where the site writes.
            ends = (Status.PERMISSION_DENIED, Status.INTERNAL)
            assert await asyncio.wait_for(live.tasks[0], 5) in ends
            gone = ("absent", "refused")  # within a round, or between two
            await live.watch(
                job_id, lambda job: {s.site_id: s.state for s in job.sites}["bank-1"] in gone
            )
            await stays_out(live, site, ends)
            answer = await live.api.ListSites(pb.ListSitesRequest())
            assert [s.state for s in answer.sites] == ["revoked"] + ["connected"] * 4
            status = await live.api.GetStatus(pb.GetStatusRequest())
            assert status.sites_connected == 4
            await live.restart()
            await stays_out(live, site, ends)

    run(scenario())


def test_a_second_daemon_of_a_site_is_refused_and_a_reconnect_is_not(tmp_path):
    async def scenario():
        async with federation(tmp_path, count=4) as live:
            first = live.sites[0]
            while live.coordinator.sessions.get(first.me) is None:
                await asyncio.sleep(0.01)
            twin = WireSite("bank-1")
            twin.__dict__.update(
                {k: first.__dict__[k] for k in ("tls_key", "signer", "me", "grant", "ca_pem")}
            )
            assert await live.connect(twin) is Status.PERMISSION_DENIED
            assert live.coordinator.sessions.get(first.me).hello.instance_id == first.instance_id
            twin.instance_id = first.instance_id
            live.connect(twin)
            await asyncio.wait_for(first.dead.wait(), 5)
            assert live.coordinator.sessions.get(first.me) is not None

    run(scenario())


# --- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\xff\xff\xff\xff", "malformed"),
        (b"", "malformed"),
        (
            federation_pb2.SessionRequest(
                ready=federation_pb2.Ready(job_id="x", epsilon_spent=float("nan"))
            ).SerializeToString(),
            "not-finite",
        ),
        (bytes(4_200_000), "too-large"),
        (
            convert.site_message_to_wire(
                m.Hello(m.PROTOCOL, bytes(16), "cpu", ())
            ).SerializeToString(),
            "malformed",
        ),
    ],
    ids=["rubbish", "empty", "nan", "oversized", "second hello"],
)
def test_a_bad_frame_ends_that_session_only(tmp_path, frame, reason):
    async def scenario():
        async with federation(tmp_path) as live:
            job_id = await live.submit(job_toml(rounds=30))
            await live.watch(job_id, lambda job: job.round >= 1)
            site = live.sites[4]
            raw = site.channel.stream_stream("/tidegate.v1.FederationService/Session")
            call = raw()
            # The attacker is the site itself, on a fresh session of the same daemon.
            hello = m.Hello(m.PROTOCOL, site.instance_id, "cpu", ())
            await call.write(convert.site_message_to_wire(hello).SerializeToString())
            await call.write(frame)
            seen = []
            async with asyncio.timeout(10):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await _note_answers(call, seen)
            assert dict(caught.value.trailing_metadata())["tidegate-reason"] == reason
            assert seen[0] == "welcome"
            job = await live.watch(job_id)
            assert job.state == "finished"

    run(scenario())


def test_hello_comes_first_and_speaks_our_protocol(tmp_path):
    async def scenario():
        async with federation(tmp_path, count=4) as live:
            await hang_up(live, 0)
            stub = live.sites[0].dial(live.addresses["sites"])
            for message in (
                AbortSignature(bytes(32), live.sites[0].me, bytes(70)),
                m.Hello("tidegate/0.1", bytes(16), "cpu", ()),
            ):
                call = stub.Session()
                await call.write(convert.site_message_to_wire(message))
                code, reason = await refusal(_read_to_end(call))
                assert (code, reason) == (Status.INVALID_ARGUMENT, "malformed")

    run(scenario())


async def _note_answers(call, seen):
    async for answer in call:
        parsed = federation_pb2.SessionResponse.FromString(answer)
        seen.append(parsed.WhichOneof("message"))


async def hang_up(live, index):
    """Wait until all are connected, then let one go."""
    while len(tuple(live.coordinator.sessions.live())) < len(live.sites):
        await asyncio.sleep(0.01)
    live.tasks[index].cancel()
    await live.sites[index].dead.wait()
    while live.coordinator.sessions.get(live.sites[index].me) is not None:
        await asyncio.sleep(0.01)


async def _read_to_end(call):
    async for _ in call:
        pass


def test_a_site_that_does_not_read_is_dropped_with_the_reason(tmp_path):
    async def scenario():
        async with federation(tmp_path, count=4) as live:
            while len(tuple(live.coordinator.sessions.live())) < 4:
                await asyncio.sleep(0.01)
            session = live.coordinator.sessions.get(live.sites[0].me)
            for _ in range(live.config.limits.outgoing_messages + 1):
                session.send(m.JobEnded("x", "stopped", ""))
            await asyncio.wait_for(live.sites[0].dead.wait(), 5)
            assert live.coordinator.sessions.get(live.sites[0].me) is None
            assert len(tuple(live.coordinator.sessions.live())) == 3

    run(scenario())


# --- transfers -----------------------------------------------------------------------------------


def test_contents_are_for_those_who_may_see_them(tmp_path):
    async def scenario():
        async with federation(tmp_path) as live:
            await live.add_site("late")
            late = live.sites[5]
            live.connect(late)
            job_id = await live.submit(job_toml(rounds=400))
            await live.watch(job_id, lambda job: job.round >= 1)
            app = live.sites[0].offers[0].app_sha256
            data = await live.sites[0].download(app)
            assert hashlib.sha256(data).digest() == app
            assert await live.sites[0].download(app, offset=5) == data[5:]
            assert await live.sites[0].download(app, offset=len(data)) == b""
            answer = await refusal(late.download(app))
            assert answer == (Status.NOT_FOUND, "unknown-job")
            answer = await refusal(live.sites[0].download(bytes(32)))
            assert answer == (Status.NOT_FOUND, "unknown-job")
            beyond = live.sites[0].download(app, offset=len(data) + 1)
            assert await refusal(beyond) == (Status.INVALID_ARGUMENT, "malformed")
            assert late.offers == []

    run(scenario())


class Uploader(WireSite):
    """Uploads in the way that a test says."""

    async def upload_bytes(self, ctx, packed, **options):
        self.answers = []
        return await self.how(super().upload_bytes, ctx, packed)


def test_uploads_resume_and_faulty_ones_are_refused(tmp_path):
    """Wrong digest, wrong size, a second and different update; then the right one, in two parts."""

    async def how(upload, ctx, packed):
        site = UPLOADER[0]
        site.seen.append(await refusal(upload(ctx, packed + b"x")))
        site.seen.append(await refusal(upload(bytes(32), packed)))
        partial = await upload(ctx, packed, chunk=500, end=1000)
        assert (partial.received, partial.sha256) == (1000, b"")
        site.seen.append(await refusal(upload(ctx, bytes(len(packed)))))
        receipt = await upload(ctx, packed, chunk=500, begin=1000)
        assert receipt.received == len(packed)
        again = await upload(ctx, packed)
        assert again == receipt
        return receipt

    UPLOADER = []

    async def scenario():
        async with federation(tmp_path, count=4) as live:
            site = Uploader("bank-5", None)
            site.how, site.seen = how, []
            UPLOADER.append(site)
            old = live.sites[0]
            await hang_up(live, 0)
            site.__dict__.update(
                {
                    k: v
                    for k, v in old.__dict__.items()
                    if k not in ("dead", "delta_of", "serial", "secrets", "instance_id")
                }
            )
            live.connect(site)
            job_id = await live.submit(job_toml(rounds=1, target=4))
            job = await live.watch(job_id)
            assert job.state == "finished"
            assert {s.site_id: s.rounds_in for s in job.sites}["bank-1"] == 1
            assert site.seen == [
                (Status.INVALID_ARGUMENT, "wrong-shape"),
                (Status.FAILED_PRECONDITION, "wrong-context"),
                (Status.FAILED_PRECONDITION, "equivocation"),
            ]

    run(scenario())


# --- jobs ----------------------------------------------------------------------------------------


def test_submissions_that_cannot_run_are_refused_with_the_mend(tmp_path):
    async def scenario():
        live = LiveAggregator(tmp_path)
        await live.start()
        try:
            for index in range(5):
                await live.add_site(f"bank-{index}")
            code, reason = await refusal(live.submit())
            assert (code, reason) == (Status.PERMISSION_DENIED, "policy")
            await live.seal()
            cases = [
                ({"toml": job_toml(target=3)}, "policy"),
                ({"toml": job_toml(target=6)}, "policy"),
                ({"toml": b"[job]\nname = 3"}, "malformed"),
                ({"toml": job_toml(strategy="Krum")}, "malformed"),
                ({"app_sha256": bytes(32)}, "wrong-digest"),
                ({"model_sha256": bytes(32)}, "wrong-digest"),
                ({"model_D": np.zeros(SPEC.length - 1)}, "wrong-shape"),
                ({"vector_spec": b"[]"}, "wrong-shape"),
                ({"app_size": 5}, "too-large"),
                ({"toml": job_toml().replace(b"task.py", b"other.py")}, "malformed"),
            ]
            for changes, expected in cases:
                _, reason = await refusal(live.submit(**changes))
                assert reason == expected, changes
            assert (await live.api.ListJobs(pb.ListJobsRequest())).jobs == []
            for call in (
                live.api.GetJob(pb.GetJobRequest(job_id="nothing")),
                live.api.StopJob(pb.StopJobRequest(job_id="nothing", why="x")),
            ):
                assert (await refusal(call))[1] == "unknown-job"
        finally:
            await live.stop()

    run(scenario())


def test_jobs_queue_and_stop_and_policies_refuse(tmp_path):
    async def scenario():
        async with federation(tmp_path) as live:
            first = await live.submit(job_toml(rounds=5000))
            second = await live.submit(job_toml(rounds=1))
            await live.watch(first, lambda job: job.round >= 1)
            states = [j.state for j in (await live.api.ListJobs(pb.ListJobsRequest())).jobs]
            assert states == ["running", "queued"]
            await live.api.StopJob(pb.StopJobRequest(job_id=first, why="enough"))
            job = await live.watch(second)
            assert job.state == "finished"
            job = (await live.api.GetJob(pb.GetJobRequest(job_id=first))).job
            assert (job.state, job.detail) == ("stopped", "enough")
            while len(live.sites[0].ended) < 2:  # sites hear of an end when the operator does
                await asyncio.sleep(0.01)
            assert [(end.job_id, end.state) for end in live.sites[0].ended] == [
                (first, "stopped"),
                (second, "finished"),
            ]
            for site in live.sites[:2]:
                site.answer_offer = lambda offer: m.JobReply(
                    offer.job_id, False, "policy", "mode none is not allowed here"
                )
            job = await live.watch(await live.submit(job_toml(privacy=NONE)))
            assert job.state == "failed"
            assert "bank-1: policy: mode none is not allowed here" in job.detail

    run(scenario())


def test_the_process_survives_kill_9_and_stops_cleanly(tmp_path):
    """The real process, killed in the middle of rounds, goes on from the last committed version."""

    async def start():
        folder = tmp_path
        process = subprocess.Popen(
            [sys.executable, "-m", "aggregator", "--config", str(folder / "aggregator.toml")],
            stderr=subprocess.DEVNULL,
        )
        while not (folder / "addresses.json").exists():
            await asyncio.sleep(0.05)
            assert process.poll() is None
        live.addresses = json.loads((folder / "addresses.json").read_text())
        live.channel = live.dial_operator(*live.operator[1:])
        live.api = operator_pb2_grpc.OperatorServiceStub(live.channel)
        return process

    async def scenario():
        (tmp_path / "aggregator.toml").write_text('consortium_id = "test"\nlog_level = "error"\n')
        process = await start()
        twin = subprocess.run(
            [sys.executable, "-m", "aggregator", "--config", str(tmp_path / "aggregator.toml")],
            capture_output=True,
            check=False,
        )
        assert twin.returncode == 2
        assert b"in use by another aggregator" in twin.stderr
        for index in range(5):
            await live.add_site(f"bank-{index + 1}")
        await live.seal()
        for site in live.sites:
            live.connect(site)
        job_id = await live.submit(job_toml(rounds=300))
        job = await live.watch(job_id, lambda job: job.round >= 5)
        process.kill()
        process.wait()
        (tmp_path / "addresses.json").unlink()
        for site in live.sites:
            await site.dead.wait()
        process = await start()
        for site in live.sites:
            live.connect(site)
        again = await live.watch(job_id, lambda other: other.round >= job.round + 5)
        assert again.state == "running"
        versions = [request.version for request in live.sites[0].requests]
        assert versions == sorted(versions)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert not (tmp_path / "addresses.json").exists()
        await live.channel.close()
        for task in live.tasks:
            task.cancel()
        await asyncio.gather(*live.tasks, return_exceptions=True)

    live = LiveAggregator(tmp_path)
    run(scenario())
