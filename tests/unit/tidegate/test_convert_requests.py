"""Each bound of transfers, enrolment and the operator's requests and answers, by name."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason
from tidegate import convert
from tidegate.convert import Limits
from tidegate.v1 import federation_pb2, operator_pb2, transfer_pb2

HASH, SIGNATURE = b"h" * 32, b"s" * 70
LONG = "x" * 1001
TINY = Limits(max_sites=5, max_vector_length=1000, max_message_bytes=1024)


def upload_chunk(offset, data):
    return transfer_pb2.UploadRequest.FromString(convert.upload_chunk_frame(offset, data))


def download_chunk(offset, size, data):
    return transfer_pb2.DownloadResponse.FromString(
        convert.download_chunk_frame(offset, size, data)
    )


class TestTransfer:
    @pytest.mark.parametrize("offset", [0, 1, 127, 128, 16_384, 2**40, 2**64 - 1])
    @pytest.mark.parametrize("data", [b"", b"x", bytes(127), bytes(128), bytes(70_000)])
    def test_frames_by_hand_are_those_of_protobuf(self, offset, data):
        plain = transfer_pb2.UploadRequest(offset=offset, data=data).SerializeToString()
        assert convert.upload_chunk_frame(offset, memoryview(data)) == plain
        plain = transfer_pb2.DownloadResponse(offset=offset, size=offset, data=data)
        assert convert.download_chunk_frame(offset, offset, data) == plain.SerializeToString()

    def header(self, **fields):
        valid = {"ctx": HASH, "size": 100, "sha256": HASH}
        header = transfer_pb2.UploadHeader(**{**valid, **fields})
        return transfer_pb2.UploadRequest(header=header)

    def test_header(self):
        header = convert.upload_header_from_wire(self.header(), TINY)
        assert (header.ctx, header.size, header.sha256) == (HASH, 100, HASH)
        assert convert.upload_header_to_wire(header) == self.header()
        spent = self.header(epsilon_spent=2.5)
        assert convert.upload_header_to_wire(convert.upload_header_from_wire(spent, TINY)) == spent

    @pytest.mark.parametrize(
        "fields",
        [
            {"ctx": b""},
            {"size": 0},
            {"size": 4001},
            {"sha256": bytes(31)},
            {"epsilon_spent": float("nan")},
            {"epsilon_spent": -1.0},
        ],
    )
    def test_bad_headers(self, fields):
        with pytest.raises(PeerError, match=f"upload.header.{next(iter(fields))}"):
            convert.upload_header_from_wire(self.header(**fields), TINY)

    def test_the_header_comes_first_and_alone(self):
        both = self.header()
        both.data = b"x"
        for message, take in (
            (both, convert.upload_header_from_wire),
            (transfer_pb2.UploadRequest(data=b"x"), convert.upload_header_from_wire),
            (self.header(), lambda m: convert.upload_chunk_from_wire(m, 100)),
        ):
            with pytest.raises(PeerError, match=r"upload\.header"):
                take(message)

    def test_a_chunk_lies_within_the_upload(self):
        chunk = convert.upload_chunk_from_wire(upload_chunk(90, b"x" * 10), 100)
        assert (chunk.offset, chunk.data) == (90, b"x" * 10)
        for offset, size in ((91, 10), (0, 101), (2**63, 1), (0, 0)):
            with pytest.raises(PeerError, match="upload"):
                convert.upload_chunk_from_wire(upload_chunk(offset, b"x" * size), 100)

    def test_a_chunk_has_a_largest_size(self):
        with pytest.raises(PeerError) as caught:
            convert.upload_chunk_from_wire(upload_chunk(0, bytes(1025)), 9999, TINY)
        assert caught.value.reason is Reason.TOO_LARGE

    def test_a_download_gives_what_was_announced(self):
        good = download_chunk(0, 100, b"x" * 100)
        assert convert.download_chunk_from_wire(good, 100).data == b"x" * 100
        for bad in (
            download_chunk(0, 101, b"x"),
            download_chunk(1, 100, b"x" * 100),
        ):
            with pytest.raises(PeerError, match="download"):
                convert.download_chunk_from_wire(bad, 100)

    def test_receipts_and_offsets(self):
        receipt = convert.upload_receipt_from_wire(
            transfer_pb2.UploadResponse(received=7, sha256=HASH)
        )
        assert (receipt.received, receipt.sha256) == (7, HASH)
        with pytest.raises(PeerError, match=r"upload\.sha256"):
            convert.upload_receipt_from_wire(transfer_pb2.UploadResponse(sha256=b"x"))
        with pytest.raises(PeerError, match="received"):
            convert.upload_offset_from_wire(transfer_pb2.UploadOffsetResponse(received=8), 7)
        with pytest.raises(PeerError, match=r"download\.sha256"):
            convert.download_request_from_wire(transfer_pb2.DownloadRequest(sha256=b"x"))


class TestEnrolmentAndOperator:
    def test_enrolment_hides_the_secret(self):
        message = federation_pb2.EnrolRequest(
            token="top-secret", csr_der=b"c", signing_spki=b"k", signing_proof=SIGNATURE
        )
        request = convert.enrolment_request_from_wire(message)
        assert convert.enrolment_request_to_wire(request) == message
        assert "top-secret" not in repr(request)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("token", "x" * 129),
            ("token", "a\nb"),
            ("csr_der", b""),
            ("csr_der", bytes(8193)),
            ("signing_spki", bytes(257)),
            ("signing_proof", b""),
        ],
    )
    def test_bad_enrolments(self, field, value):
        message = federation_pb2.EnrolRequest(
            token="t", csr_der=b"c", signing_spki=b"k", signing_proof=SIGNATURE
        )
        setattr(message, field, value)
        with pytest.raises(PeerError, match=f"enrol.{field}"):
            convert.enrolment_request_from_wire(message)

    @pytest.mark.parametrize(
        ("message", "take", "named"),
        [
            (operator_pb2.CreateTokenRequest(site_id="../x", valid_s=60),
             convert.token_request_from_wire, "create_token.site_id"),
            (operator_pb2.CreateTokenRequest(site_id="bank-1"),
             convert.token_request_from_wire, "create_token.valid_s"),
            (operator_pb2.CreateTokenRequest(site_id="bank-1", valid_s=10**8),
             convert.token_request_from_wire, "create_token.valid_s"),
            (operator_pb2.RevokeSiteRequest(site_id="b", why="a\nb"),
             convert.revocation_from_wire, "revoke_site.why"),
            (operator_pb2.PutManifestRequest(manifest=b"{}"),
             convert.sealed_manifest_from_wire, "put_manifest.signature"),
            (operator_pb2.PutManifestRequest(signature=SIGNATURE),
             convert.sealed_manifest_from_wire, "put_manifest.manifest"),
            (operator_pb2.SubmitJobRequest(data=b"x"),
             convert.submit_header_from_wire, "submit.header"),
            (operator_pb2.SubmitJobRequest(header=operator_pb2.SubmitJobHeader()),
             convert.submit_data_from_wire, "submit.header"),
            (operator_pb2.SubmitJobRequest(),
             convert.submit_data_from_wire, "submit.data"),
            (operator_pb2.GetJobRequest(job_id="j/../k"), convert.job_id_from_wire, "job_id"),
            (operator_pb2.StopJobRequest(job_id="j", why=LONG),
             convert.stop_request_from_wire, "stop_job.why"),
        ],
    )  # fmt: skip
    def test_bad_operator_requests(self, message, take, named):
        with pytest.raises(PeerError, match=named):
            take(message)

    def test_submit_header(self):
        valid = {
            "job_toml": b"x", "vector_spec": b"s", "app_size": 9, "app_sha256": HASH,
            "model_size": 4000, "model_sha256": HASH, "dry_run": True,
        }  # fmt: skip
        message = operator_pb2.SubmitJobRequest(header=operator_pb2.SubmitJobHeader(**valid))
        header = convert.submit_header_from_wire(message, TINY)
        assert vars(header) == valid
        assert convert.submit_header_to_wire(header) == message
        for field, bad in (
            ("job_toml", bytes(65_537)), ("vector_spec", b""), ("app_size", (1 << 20) + 1),
            ("app_sha256", b""), ("model_size", 4004), ("model_size", 3), ("model_sha256", b"x"),
        ):  # fmt: skip
            changed = operator_pb2.SubmitJobHeader(**{**valid, field: bad})
            with pytest.raises(PeerError, match=f"submit.header.{field}"):
                convert.submit_header_from_wire(operator_pb2.SubmitJobRequest(header=changed), TINY)


class TestWhatTheOperatorIsShown:
    def job(self, **fields):
        valid = {
            "job_id": "j-1", "name": "credit default", "state": "running", "round": 3, "rounds": 9,
            "metrics": {"auc": 0.8}, "log": ["round 3"], "mode": "record-distributed",
            "sites": [operator_pb2.SiteProgress(site_id="bank-1", state="ready", epsilon=0.5)],
        }  # fmt: skip
        return operator_pb2.Job(**{**valid, **fields})

    def test_a_job_reads_whole(self):
        status = convert.job_status_from_wire(self.job())
        assert (status.job_id, status.round, status.metrics) == ("j-1", 3, {"auc": 0.8})
        assert (status.sites[0].site_id, status.sites[0].epsilon) == ("bank-1", 0.5)
        assert status.log == ("round 3",)

    @pytest.mark.parametrize(
        ("fields", "named"),
        [
            ({"detail": "\x1b]0;owned\x07"}, "job.detail"),
            ({"log": ["fine", "a\rb"]}, "job.log"),
            ({"metrics": {"auc": float("nan")}}, "job.metrics"),
            ({"metrics": {"\x1b[31m": 1.0}}, "job.metrics"),
            ({"metrics": {str(n): 1.0 for n in range(65)}}, "job.metrics"),
            ({"name": ""}, None),
            ({"job_id": "J"}, "job.job_id"),
            ({"delta_dp": 1.5}, "job.delta_dp"),
            ({"elapsed_s": -1.0}, "job.elapsed_s"),
            ({"sites": [operator_pb2.SiteProgress(site_id="b", detail="\n")]}, "job.sites.detail"),
            ({"sites": [operator_pb2.SiteProgress(site_id="b")] * 1001}, "job.sites"),
        ],
    )
    def test_nothing_reaches_the_terminal_unchecked(self, fields, named):
        if named is None:
            assert convert.job_status_from_wire(self.job(**fields)).name == ""
            return
        with pytest.raises(PeerError, match=named):
            convert.job_status_from_wire(self.job(**fields))

    def test_what_a_site_wrote_never_hides_a_job(self):
        """Words and numbers that sites choose are cut to what the operator's end takes."""
        status = convert.job_status_from_wire(self.job())
        site = replace(status.sites[0], detail="x" * 2000, train_s=1e300, epsilon=1e13)
        sent = replace(
            status, detail="a\nb" * 900, sites=(site,), metrics={"loss": 1e300}, log=("y" * 5000,)
        )
        received = convert.job_status_from_wire(convert.job_status_to_wire(sent))
        assert len(received.sites[0].detail) == len(received.log[0]) == 1000
        assert received.sites[0].train_s == 1e12
        assert received.metrics == {}
        assert convert.job_status_from_wire(convert.job_status_to_wire(status)) == status

    def test_a_site_record(self):
        record = convert.site_record_from_wire(operator_pb2.Site(site_id="b", state="invited"))
        assert (record.site_id, record.node_fingerprint) == ("b", b"")
        for bad in (
            operator_pb2.Site(site_id="b", node_fingerprint=b"x"),
            operator_pb2.Site(site_id="b", signing_spki=bytes(257)),
            operator_pb2.Site(site_id="b", device="\x1b"),
        ):
            with pytest.raises(PeerError, match=r"^\S+: site\."):
                convert.site_record_from_wire(bad)
