"""Write a model card: what the model is, what it was trained on, and its privacy statement."""

import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from aggregator.cli.job_facts import JobFacts
from aggregator.cli.report import PAGES, conditional_note, measured, person_facts, privacy_facts
from privacy.pipeline import EncodingPlan
from privacy.spec import VectorSpec
from tidegate.jobfile import JobFile


def write(path: Path, facts: JobFacts) -> None:
    """Write a job's model card as Markdown."""
    job = JobFile.parse(facts.job_toml)
    plan = EncodingPlan.from_bytes(facts.history.encoding)
    environment = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=False,  # noqa: S701 - Markdown; every value was bounded and made printable
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("card.md.j2").render(
        status=facts.status,
        job=job,
        metrics=measured(facts.status.metrics, job),
        spec=VectorSpec.from_bytes(facts.history.vector_spec),
        facts=privacy_facts(job, plan, facts.history) + person_facts(facts.status),
        conditional=conditional_note(job, facts.history.app_sha256),
        epsilon=max((site.epsilon for site in facts.status.sites), default=0.0),
        provenance=facts.provenance,
        made_at=time.strftime("%Y-%m-%d", time.gmtime()),
    )
    path.write_text(text, encoding="utf-8")
