"""Fetch what a report or a model card says of a job, all of it through the operator API."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from privacy.errors import PeerError, Reason
from tidegate.convert import job_history_from_wire, job_status_from_wire
from tidegate.requests import JobHistory, JobStatus
from tidegate.v1 import operator_pb2, operator_pb2_grpc

_MAX_HEADER_BYTES = 64 << 20


@dataclass(frozen=True)
class JobFacts:
    """What a report is made of.

    Attributes:
        status: The job as it stands.
        job_toml: The job file as submitted.
        history: Its finished rounds and encoding.
        provenance: Metadata of the released model; empty before there is one.
    """

    status: JobStatus
    job_toml: bytes
    history: JobHistory
    provenance: Mapping[str, str]


def fetch_facts(api: operator_pb2_grpc.OperatorServiceStub, job_id: str) -> JobFacts:
    """Fetch a job's status, file, history and the provenance of its newest model.

    Raises:
        PeerError: There is no such job, or an answer is malformed.
    """
    answer = api.GetJob(operator_pb2.GetJobRequest(job_id=job_id))
    history = api.GetHistory(operator_pb2.GetHistoryRequest(job_id=job_id))
    status = job_status_from_wire(answer.job)
    provenance: dict[str, str] = {}
    if status.round:
        chunks = api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id))
        provenance = metadata_of(chunk.data for chunk in chunks)
    return JobFacts(status, answer.job_toml, job_history_from_wire(history), provenance)


def metadata_of(chunks: Iterable[bytes]) -> dict[str, str]:
    """Read a safetensors file's metadata: an eight-byte length, then a JSON header.

    Args:
        chunks: The file, from its beginning; read only as far as needed.

    Raises:
        PeerError: MALFORMED: it is no such file.
    """
    head = bytearray()
    size = 0
    for chunk in chunks:
        head += chunk
        if len(head) >= 8:
            size = int.from_bytes(head[:8], "little")
            if size > _MAX_HEADER_BYTES or len(head) >= 8 + size:
                break
    try:
        metadata = json.loads(bytes(head[8 : 8 + size]))["__metadata__"]
        return {str(name): str(value) for name, value in metadata.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PeerError(Reason.MALFORMED, "the model is no safetensors file with facts") from error
