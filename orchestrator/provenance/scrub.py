"""Remove secrets from text before it is recorded: tokens by their form, passwords in addresses, values by their name.

In doubt a value counts as a secret: a missing word in a record can be repaired, a leaked key cannot. Lines are never
added or removed, so that a scrubbed diff can still be applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from orchestrator.errors import QUERY

HIDDEN = "***"

TOKEN_FORMS = (
    r"(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|ANPA)[0-9A-Z]{16}",  # AWS
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    r"gl(?:pat|dt|rt|cbt|ptt|soat)-[\w-]{16,}",  # GitLab
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}",  # Hugging Face
    r"wandb_v\d+_\w{16,}|local-[0-9a-f]{40}",  # Weights & Biases
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and others
    r"[sprw]k_(?:live|test)_[A-Za-z0-9]{12,}|whsec_[A-Za-z0-9]{16,}",  # Stripe
    r"xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{16,}",  # Slack
    r"AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}",  # Google
    r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",  # SendGrid
    r"dapi[0-9a-f]{32}|dop_v1_[0-9a-f]{32,}",  # Databricks, DigitalOcean
    r"nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}",  # NVIDIA, Replicate, Groq
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # JSON web tokens
)
TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(TOKEN_FORMS)})")
WEBHOOK = re.compile(r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/)[\w/-]+")
HEADER = re.compile(
    r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|token)\s+)?)(?!(?:basic|bearer|token)\s)[\w.~+/=-]{6,}"
)
BEARER = re.compile(r"(?i)(\bbearer\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{12,}")
USERINFO = re.compile(  # the password of a database's address may hold a slash
    r"(?i)(?<![\w+.-])([a-z][\w+.-]*://)(?!git@)(?:[^\s/@:'\"<>|]*:(?!\d+/)[^\s'\"<>|]{0,300}|[^\s/@'\"<>|]+)@"
)

WORDS = r"passwords?|passwd|passphrase|pwd|secrets?|credentials?|tokens?|api_?keys?|apikey|access_?keys?|" \
        r"access_?key_?id|private_?key|secret_?key|auth_?key|account_?key|shared_?access_?signature|signature|" \
        r"connection_?string|webhook_?url|dsn"  # fmt: skip
LOWER_NAME = rf"(?<![A-Za-z0-9][.-])(?:[A-Za-z0-9]+[_.-])*(?:{WORDS.replace('_?', '[_-]?')})\d*"
UPPER_NAME = (
    r"(?:[A-Z0-9]+_)*(?:(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?|WEBHOOK)"
    r"(?!_(?:PATH|FILE|DIR|MODE|TYPE|NAME)\b)(?:_[A-Z0-9]+)*|PAT|PWD|AUTH|DSN)"
)
CAMEL_NAME = r"[a-z][A-Za-z0-9]*(?:Password|Passwd|Secret|Token|ApiKey|AccessKey|PrivateKey|Credentials?)"
NAMED = re.compile(
    rf"(?<![A-Za-z0-9_])(?P<name>(?-i:{UPPER_NAME})|(?-i:{CAMEL_NAME})|(?i:{LOWER_NAME}))(?![A-Za-z0-9_])"
    r"(?P<sign>[\"']?\]?\s*(?::=|=>|[:=](?!=))\s*|[\"']\s*,\s*(?=[\"'])|(?<=\w)\s+(?=[\"']?\S))"
    r"(?P<value>\"\"\".*?\"\"\"|[bfru]{0,2}\"(?:[^\"\\]|\\.)*\"|[bfru]{0,2}'(?:[^'\\]|\\.)*'|[^\s'\"&;,)}\]]+)"
)
FLAG = re.compile(r"(?:^|(?<=[\s'\"]))--?(?:[\w]+-)*$")

BEGIN_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----")
END_KEY = re.compile(r"-----END [A-Z ]*PRIVATE KEY( BLOCK)?-----")

NO_VALUES = {
    "str", "bytes", "int", "bool", "float", "any", "object", "none", "null", "nil", "true", "false", "string", "number",
    "optional", "secretstr", "self", "cls", "undefined", "required", HIDDEN,
}  # fmt: skip


def scrub(text: str) -> str:
    """Replace each secret by ``***``. The number of lines stays."""
    text = "".join(_keys(text.splitlines(keepends=True)))
    text = USERINFO.sub(rf"\1{HIDDEN}@", text)
    text = QUERY.sub(rf"\1{HIDDEN}", text)
    text = WEBHOOK.sub(rf"\1{HIDDEN}", text)
    text = HEADER.sub(rf"\1{HIDDEN}", text)
    text = BEARER.sub(rf"\1{HIDDEN}", text)
    text = TOKEN.sub(HIDDEN, text)
    return "".join(NAMED.sub(_named, line) for line in text.splitlines(keepends=True))


def scrub_words(words: Iterable[str]) -> list[str]:
    """Scrub the words of a command line; the value of a flag may be the next word."""
    clean: list[str] = []
    for word in words:
        last = clean[-1] if clean else ""
        hides = last.startswith("--") and "=" not in last and secret_name(last)
        clean.append(HIDDEN if hides and not word.startswith("--") else scrub(word))
    return clean


def scrub_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Scrub environment variables; those with a secret name are hidden as a whole."""
    return {name: HIDDEN if secret_name(name) else scrub(value) for name, value in variables.items()}


def secret_name(name: str) -> bool:
    """Whether a name is that of a secret: ``HF_TOKEN``, ``--api-key``, ``db.password``."""
    return re.fullmatch(rf"-*(?:(?-i:{UPPER_NAME})|(?-i:{CAMEL_NAME})|(?i:{LOWER_NAME}))", name) is not None


def _keys(lines: list[str]) -> list[str]:
    """Hide the body of PEM private keys; in a diff the sign of each line stays."""
    inside = False
    clean = []
    for line in lines:
        if inside and not END_KEY.search(line):
            clean.append(f"{line[0] if line[:1] in '+- ' else ''}{HIDDEN}{_end(line)}")
            continue
        begins = BEGIN_KEY.search(line)
        ends = END_KEY.search(line)
        if begins and ends and begins.start() < ends.start():  # a whole key in one line of code
            line = f"{line[: begins.end()]}{HIDDEN}{line[ends.start() :]}"
            begins = None
        elif begins:
            line = line[: begins.end()] + (HIDDEN if line[begins.end() :].strip() else "") + _end(line)
        inside = begins is not None
        clean.append(line)
    return clean


def _end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _named(match: re.Match[str]) -> str:
    name, sign, value = match.group("name", "sign", "value")
    whole = match[0]
    before, after = _around(match)
    if "," in sign and not (before[-1:] in "\"'" and after.lstrip().startswith(")")):  # only getenv("NAME", "value")
        return whole
    login = name in ("password", "passwd") and re.search(r"\blogin\s+\S+\s+$", before)
    if not sign.strip() and not login and not FLAG.search(before):  # prose, neither a flag nor a line of .netrc
        return whole
    quoted = re.fullmatch(r"([bfru]{0,2})(\"\"\"|\"|')(.*)\2", value, re.DOTALL)
    if quoted:
        prefix, quote, inner = quoted.groups()
        return whole if _harmless(inner) else f"{name}{sign}{prefix}{quote}{HIDDEN}{quote}"
    return whole if _code(match, value) else f"{name}{sign}{HIDDEN}"


def _harmless(inner: str) -> bool:
    """Whether a quoted value is no secret: empty, a variable, or a special token such as ``<pad>`` and ``[MASK]``."""
    return (
        not inner.strip()
        or inner == HIDDEN
        or re.fullmatch(r"<[^<>]*>|\[[A-Za-z_]+\]|\$\{?\w+\}?|\$\{\{[^{}]*\}\}|%\(?\w+\)?s|\{[\w.]*\}", inner)
        is not None
    )


def _code(match: re.Match[str], value: str) -> bool:
    """Whether a bare value is an expression, a type or a variable rather than the secret itself."""
    name = match["name"]
    before, _ = _around(match)
    if before.endswith(("?", "&", "--")):  # an address or a command line, which hold no code
        return value.startswith("$")
    if name.isupper() and "=" in match["sign"] and match["sign"].strip() == match["sign"]:  # NAME=value in a shell
        return value.startswith("$") or _call(value)
    if value.startswith(("$", "<", "*", "[", "{", "(")) or _call(value) or value.lower().strip("|:") in NO_VALUES:
        return True
    bare = value.rstrip(":.|")
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", bare):  # an attribute: args.password
        return True
    if re.fullmatch(r"[\d_.]+", bare):  # a number is a secret only if it can be a PIN or password
        return not re.search(r"(?i)pass|pwd|secret", name) or len(bare) < 4
    if bare.lower() == name.lower().rpartition(".")[2]:  # password=password
        return True
    if re.search(r"(?i)pass|pwd|secret|credential", name):
        return False
    return len(bare) < 16 and not re.search(r"\d", bare)


def _around(match: re.Match[str]) -> tuple[str, str]:
    """The 80 characters before and the 8 after a match."""
    return match.string[max(0, match.start() - 80) : match.start()], match.string[match.end() : match.end() + 8]


def _call(value: str) -> bool:
    return re.match(r"[A-Za-z_][\w.]*[(\[]", value) is not None
