"""Secrets are removed from texts, and texts without secrets are unchanged."""

from __future__ import annotations

import time

import pytest

from orchestrator.provenance.record import command
from orchestrator.provenance.scrub import HIDDEN, scrub, scrub_variables, scrub_words
from tests.support.readme_tree import ROOT

LEAKS = {
    "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "HF_TOKEN=abc": "abc",
    "token: hf_AbCdEfGhIjKlMnOpQrStUv": "hf_",
    "x = 'hf_AbCdEfGhIjKlMnOpQrStUv'": "hf_",
    "password: hunter2": "hunter2",
    "password: swordfish": "swordfish",
    'password = "correct horse"': "horse",
    "'db_password': 'pw,1'": "pw",
    "os.environ['AWS_SECRET_ACCESS_KEY'] = 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY'": "wJalr",
    "aws_access_key_id = AKIAIOSFODNN7EXAMPLE": "AKIA",
    "key AKIAIOSFODNN7EXAMPLE here": "AKIA",
    '{"api_key": "x1y2z3", "n": 3}': "x1y2z3",
    "x-api-key: abcdef123": "abcdef123",
    "postgresql+psycopg2://me:p%40ss@db:5432/x": "p%40ss",
    "redis://:pw@cache:6379": "pw@",
    "https://ghp_0123456789abcdefghij0123456789abcdef@github.com/a/b": "ghp_",
    "url = https://oauth2:glpat-0123456789abcdefghij@gitlab.com/a": "glpat",
    "Authorization: Basic dXNlcjpwYXNz": "dXNl",
    '{"Authorization": "Bearer abcdef123456789"}': "abcdef1",
    'curl -H "X: Bearer abc123def456ghi"': "abc123",
    "orchestrator x --password hunter2 --y": "hunter2",
    "orchestrator x --db-password=abc": "abc",
    "machine h login me password abc": "abc",
    "https://h/x?a=1&token=abcdef&sig=2": "abcdef",
    "https://b.s3.amazonaws.com/x?X-Amz-Signature=abcdef123&y": "abcdef123",
    "os.getenv('API_TOKEN', 'abc123')": "abc123",
    "sk-proj-abcdefghijklmnopqrstuv": "abcdefgh",
    "OPENAI_API_KEY: 'sk-abcdefghijklmnopqrstuvwxyz'": "abcdefgh",
    "sk-ant-api03-abcdefghijklmnopqrstuvwxyz": "abcdefgh",
    'clientSecret: "abc"': "abc",
    'MY_SECRET_VALUE = "abc"': "abc",
    "https://hooks.slack.com/services/T00/B00/XXXXXXXX": "XXXX",
    "export SLACK_WEBHOOK_URL=https://h.example/x/abc": "abc",
    "xoxb-1234567890-abcdef": "1234567890",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig-part_1": "eyJ",
    "+PASSWORD=hunter2": "hunter2",
    "secret_key: 'django-insecure-1'": "insecure",
    "AccountKey=abc123==;EndpointSuffix=core": "abc123",
    "auth: {api-key: k1k2k3}": "k1k2k3",
}
"""Texts, each with the part that must be removed."""

HARMLESS = [
    "token = tokenizer.next()",
    "max_tokens: 4096",
    "num_tokens=128",
    "tokens = text.split()",
    'pad_token="<pad>"',
    'mask_token: "[MASK]"',
    "def f(password: str, token: str | None = None) -> None:",
    "connect(password=password, token=self.token)",
    "password=getpass()",
    "TOKENIZERS_PARALLELISM=false",
    "token_type: int = 3",
    "secret: ${{ secrets.NAME }}",
    "DB_PASSWORD=$PASSWORD",
    "ssh://git@github.com/a/b",
    "git@github.com:a/b.git",
    "https://registry.example:443/@scope/x",
    "the token is a word, and so is a secret",
    "lr=0.01 loss=bcl dataset=ml-100k seed=3",
    "task-name risk-assessment-for-many-people",
    "basic internationalization of the token stream",
    "RAY_AUTH_TOKEN_PATH=/home/me/token",
]


@pytest.mark.parametrize("text", LEAKS)
def test_secrets_are_hidden(text: str) -> None:
    clean = scrub(text)
    assert LEAKS[text] not in clean
    assert HIDDEN in clean


@pytest.mark.parametrize("text", HARMLESS)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize("text", LEAKS)
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    assert scrub(scrub(text)) == scrub(text)


@pytest.mark.parametrize("sign", ["", "+", "-", " "])
def test_a_private_key_is_blanked_line_by_line(sign: str) -> None:
    lines = [
        "-----BEGIN RSA PRIVATE KEY-----",
        "MIIEpAIBAAKCAQEA",
        "q1w2e3==",
        "-----END RSA PRIVATE KEY-----",
        "x = 1",
    ]
    clean = scrub("".join(f"{sign}{line}\n" for line in lines)).splitlines()
    assert clean == [f"{sign}{line}" for line in (lines[0], HIDDEN, HIDDEN, lines[3], lines[4])]


def test_private_key_in_one_line_of_code_is_hidden() -> None:
    clean = scrub(r'KEY = "-----BEGIN PRIVATE KEY-----\nMIIEpAIB\n-----END PRIVATE KEY-----"; x = 1')
    assert "MIIE" not in clean
    assert clean.endswith("x = 1")


def test_secrets_in_command_line_words_are_hidden() -> None:
    words = ["x", "--api-key", "a b", "--tracking", "http://me:pw@h", "--token=t1", "lr=0.1"]
    assert scrub_words(words) == [
        "x", "--api-key", HIDDEN, "--tracking", f"http://{HIDDEN}@h", f"--token={HIDDEN}", "lr=0.1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("/opt/bin/orchestrator", "orchestrator"), (str(ROOT / "orchestrator" / "__main__.py"), "orchestrator"),
        ("/home/ada/mine/__main__.py", "/home/ada/mine/__main__.py"),
    ],
)  # fmt: skip
def test_command_shortens_the_path_of_the_orchestrator_only(
    program: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program, "--fast"])
    assert command() == f"{shown} --fast"


def test_secrets_in_environment_variables_are_hidden() -> None:
    given = {"MLFLOW_TRACKING_PASSWORD": "pw", "MLFLOW_TRACKING_URI": "https://me:pw@h", "OMP_NUM_THREADS": "2"}
    assert scrub_variables(given) == {
        "MLFLOW_TRACKING_PASSWORD": HIDDEN, "MLFLOW_TRACKING_URI": f"https://{HIDDEN}@h", "OMP_NUM_THREADS": "2",
    }  # fmt: skip


@pytest.mark.parametrize("unit", ["token ", "a-", "a.b_", "://", 'token="', "login x password ", "-----BEGIN ", "A_"])
def test_scrubbing_time_is_bounded_for_a_long_line(unit: str) -> None:
    """The time is that of the processor: a search that is quadratic in the line's length takes minutes."""
    started = time.process_time()
    scrub((unit * 200_000)[:200_000])
    assert time.process_time() - started < 20
