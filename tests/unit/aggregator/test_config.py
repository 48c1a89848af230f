"""Unknown keys and senseless values are refused by name; the defaults run."""

import pytest

from aggregator.config import load_config
from privacy.errors import UsageError


def load(tmp_path, text):
    path = tmp_path / "aggregator.toml"
    path.write_text(text)
    return load_config(path)


def test_defaults(tmp_path):
    config = load(tmp_path, 'consortium_id = "banks"\n')
    assert config.folder == tmp_path
    assert config.database == f"sqlite:///{tmp_path / 'aggregator.sqlite'}"
    assert (config.host, config.site_port, config.device) == ("127.0.0.1", 0, "auto")


def test_every_key(tmp_path):
    text = """
consortium_id = "banks"
folder = "state"
database = "postgresql://db/tidegate"
host = "0.0.0.0"
public_host = "tidegate.example"
site_port = 7443
enrolment_port = 7444
operator_port = 7445
device = "cpu"
suite = "X25519_ED25519_SHA256_AES256"
log_level = "debug"
keep_last_uploads = true
[limits]
max_jobs = 3
[timeouts]
unmask_s = 5
"""
    config = load(tmp_path, text)
    assert config.folder == tmp_path / "state"
    assert (config.public_host, config.operator_port) == ("tidegate.example", 7445)
    assert (config.limits.max_jobs, config.timeouts.unmask_s) == (3, 5.0)
    assert config.keep_last_uploads


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "consortium_id"),
        ('consortium_id = "Banks!"', "consortium_id"),
        ('consortium_id = "a"\nsite_prt = 1', "site_prt"),
        ('consortium_id = "a"\nsite_port = 70000', "site_port"),
        ('consortium_id = "a"\nsite_port = "7443"', "site_port"),
        ('consortium_id = "a"\nsite_port = true', "site_port"),
        ('consortium_id = "a"\ndevice = 1', "device"),
        ('consortium_id = "a"\nlog_level = "loud"', "log_level"),
        ('consortium_id = "a"\nsuite = "ROT13"', "ROT13"),
        ('consortium_id = "a"\nkeep_last_uploads = 1', "keep_last_uploads"),
        ('consortium_id = "a"\nlimits = 3', "limits"),
        ('consortium_id = "a"\n[limits]\nmax_jobs = 0', "max_jobs"),
        ('consortium_id = "a"\n[limits]\nmax_job = 1', "max_job"),
        ('consortium_id = "a"\n[timeouts]\nunmask = 1', "unmask"),
        ("consortium_id = ", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, named):
    with pytest.raises(UsageError, match=named):
        load(tmp_path, text)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"aggregator\.toml"):
        load_config(tmp_path / "aggregator.toml")
