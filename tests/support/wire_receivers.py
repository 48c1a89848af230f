"""Every message of the wire with the function that takes it; and what taking bytes may do."""

from google.protobuf.message import DecodeError

from privacy.errors import PeerError
from tests.support.wire_messages import SENDER
from tidegate import convert
from tidegate.v1 import federation_pb2, operator_pb2, transfer_pb2


def with_site(progress):
    return operator_pb2.Job(job_id="j", name="job", state="running", sites=[progress])


RECEIVERS = [
    (federation_pb2.SessionRequest, lambda m: convert.site_message_from_wire(m, SENDER)),
    (federation_pb2.SessionResponse, convert.aggregator_message_from_wire),
    (federation_pb2.EnrolRequest, convert.enrolment_request_from_wire),
    (federation_pb2.EnrolResponse, convert.enrolment_grant_from_wire),
    (transfer_pb2.UploadRequest, convert.upload_header_from_wire),
    (transfer_pb2.UploadRequest, lambda m: convert.upload_chunk_from_wire(m, 1000)),
    (transfer_pb2.UploadResponse, convert.upload_receipt_from_wire),
    (transfer_pb2.UploadOffsetRequest, convert.upload_offset_request_from_wire),
    (transfer_pb2.UploadOffsetResponse, lambda m: convert.upload_offset_from_wire(m, 1000)),
    (transfer_pb2.DownloadRequest, convert.download_request_from_wire),
    (transfer_pb2.DownloadResponse, lambda m: convert.download_chunk_from_wire(m, 1000)),
    (operator_pb2.CreateTokenRequest, convert.token_request_from_wire),
    (operator_pb2.CreateTokenResponse, convert.token_grant_from_wire),
    (operator_pb2.RevokeSiteRequest, convert.revocation_from_wire),
    (operator_pb2.PutManifestRequest, convert.sealed_manifest_from_wire),
    (operator_pb2.SubmitJobRequest, convert.submit_header_from_wire),
    (operator_pb2.SubmitJobRequest, convert.submit_data_from_wire),
    (operator_pb2.StopJobRequest, convert.stop_request_from_wire),
    (operator_pb2.GetJobRequest, convert.job_id_from_wire),
    (operator_pb2.Site, convert.site_record_from_wire),
    (operator_pb2.SiteProgress, lambda m: convert.job_status_from_wire(with_site(m))),
    (operator_pb2.SubmitJobResponse, convert.job_id_from_wire),
    (operator_pb2.SubmitJobResponse, convert.dry_run_from_wire),
]


def receive(kind, take, raw):
    """Parse and convert; a refusal gives None, anything else than a ``PeerError`` fails."""
    try:
        message = kind.FromString(raw)
    except DecodeError:  # gRPC's answer, before our code sees the message
        return None
    try:
        return take(message)
    except PeerError:
        return None
