"""Turn bytes from the wire into values and back: every bound on received data is checked here.

``bounds`` holds the checks; ``secagg``, ``session``, ``transfer`` and ``operator`` the messages.
Both ends take values from here only, so nothing unchecked reaches a state machine (architecture.md
section 4).
"""

from tidegate.convert.bounds import DEFAULT_LIMITS, Limits, printable
from tidegate.convert.operator import (
    job_id_from_wire,
    job_status_from_wire,
    job_status_to_wire,
    revocation_from_wire,
    sealed_manifest_from_wire,
    site_record_from_wire,
    site_record_to_wire,
    stop_request_from_wire,
    submit_data_from_wire,
    submit_header_from_wire,
    submit_header_to_wire,
    token_grant_from_wire,
    token_grant_to_wire,
    token_request_from_wire,
)
from tidegate.convert.session import (
    aggregator_message_from_wire,
    aggregator_message_to_wire,
    site_message_from_wire,
    site_message_to_wire,
)
from tidegate.convert.transfer import (
    download_chunk_from_wire,
    download_chunk_to_wire,
    download_request_from_wire,
    download_request_to_wire,
    enrolment_grant_from_wire,
    enrolment_grant_to_wire,
    enrolment_request_from_wire,
    enrolment_request_to_wire,
    upload_chunk_from_wire,
    upload_chunk_to_wire,
    upload_header_from_wire,
    upload_header_to_wire,
    upload_offset_from_wire,
    upload_offset_request_from_wire,
    upload_receipt_from_wire,
    upload_receipt_to_wire,
)

__all__ = [
    "DEFAULT_LIMITS",
    "Limits",
    "aggregator_message_from_wire",
    "aggregator_message_to_wire",
    "download_chunk_from_wire",
    "download_chunk_to_wire",
    "download_request_from_wire",
    "download_request_to_wire",
    "enrolment_grant_from_wire",
    "enrolment_grant_to_wire",
    "enrolment_request_from_wire",
    "enrolment_request_to_wire",
    "job_id_from_wire",
    "job_status_from_wire",
    "job_status_to_wire",
    "printable",
    "revocation_from_wire",
    "sealed_manifest_from_wire",
    "site_message_from_wire",
    "site_message_to_wire",
    "site_record_from_wire",
    "site_record_to_wire",
    "stop_request_from_wire",
    "submit_data_from_wire",
    "submit_header_from_wire",
    "submit_header_to_wire",
    "token_grant_from_wire",
    "token_grant_to_wire",
    "token_request_from_wire",
    "upload_chunk_from_wire",
    "upload_chunk_to_wire",
    "upload_header_from_wire",
    "upload_header_to_wire",
    "upload_offset_from_wire",
    "upload_offset_request_from_wire",
    "upload_receipt_from_wire",
    "upload_receipt_to_wire",
]
