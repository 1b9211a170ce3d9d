"""Names of files and folders with secret content, which are neither recorded nor sent to a cluster.

A general word counts only with a suffix of data: ``credentials.json`` is secret, ``credentials.py`` is code.
"""

from __future__ import annotations

import re
from fnmatch import translate
from itertools import accumulate

DATA = ("json", "y*ml", "toml", "ini", "cfg", "conf", "config", "properties", "txt", "csv", "xml", "db", "bak")

SECRET_FILES = (
    # environments, and what clients of hosts, databases and package indexes log in with
    ".env", ".envrc", ".env[._-]*", "*.env", ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".pg_service.conf",
    ".my.cnf", ".mylogin.cnf", ".pypirc", ".npmrc", ".htpasswd*", "*.htpasswd", "auth.json", "basic_auth.ini",
    # clouds and clusters
    "kubeconfig", "kubeconfig.y*ml", "*.kubeconfig", "kube.config", ".dockercfg", ".dockerconfigjson",
    ".databrickscfg", ".s3cfg", ".boto", "rclone.conf", ".rclone.conf", ".vault-token", "kaggle.json",
    ".comet.config", "*.publishsettings", "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json", ".terraformrc",
    "*service[_-]account*.json", "*serviceaccount*.json", "*adminsdk*.json",
    # keys
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*-key.json", "*.ppk", "*.p8", "*.p12",
    "*.pfx", "*.jks", "*.jceks", "*.keystore", "*.kdbx", "*.keytab", "*.ovpn",
    *(f"*{word}{end}" for word in ("api_key", "api-key", "apikey", "access_key", "private_key")
      for end in ("", ".json", ".txt")),
    # tokens, passwords, and what says so itself
    "token", ".token", "*[_-]token", "*.token", "token.txt", "token.json", "*[_-]token.txt", "*[_-]token.json",
    "*access[_-]token*.json", "*access[_-]token*.db", "accesstokens.json", "secret", "secrets", ".secret",
    ".secrets", "*.secret", "credentials", "*[._-]credentials",
    *(f"*{word}*.{suffix}" for word in ("credential", "secret", "password") for suffix in DATA),
)  # fmt: skip
"""Names in lower case, as patterns that mean the same to ``fnmatch`` and git."""

SECRET_FOLDERS = (
    ".ssh", ".aws", ".azure", ".docker", ".gnupg", ".huggingface", ".kaggle", ".kube", ".mlflow", ".ray",
    ".config/gcloud", ".config/gh", ".config/rclone",
)  # fmt: skip
"""Paths in lower case; everything in them counts as secret."""

_FILE = re.compile("|".join(map(translate, SECRET_FILES)))


def secret_file(path: str) -> bool:
    """Whether a file is left out because of its path."""
    folder, _, name = path.lower().rpartition("/")
    return _FILE.match(name) is not None or any(map(secret_folder, accumulate(folder.split("/"), "{}/{}".format)))


def secret_folder(path: str) -> bool:
    """Whether everything in a folder is left out because of its path."""
    return any(f"/{path.lower()}".endswith(f"/{folder}") for folder in SECRET_FOLDERS)
