"""Start MLflow with passwords; before it, make the account that training uses, so that no node is the administrator.

    python mlflow_server.py                  # `mlflow server`, set by MLFLOW_BACKEND_STORE_URI ...
    python mlflow_server.py account ada      # an account for a person, or a new password for it: it is asked for

The account of training is ``MLFLOW_TRACKING_USERNAME`` with ``MLFLOW_TRACKING_PASSWORD``, as every client reads them; a
changed password is taken over at the next start. Accounts share a role: all may write runs to any experiment, the one
of promotions included, read everything, and change those registered models that they have made.
"""

import getpass
import os
import sys

from mlflow.server.auth.config import read_auth_config
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.workspace_utils import DEFAULT_WORKSPACE_NAME

ROLE = "people"


def make_account(name: str, password: str) -> None:
    """Make the account, or give it this password. Raises MlflowException for a password that is too short."""
    store = SqlAlchemyStore()
    store.init_db(read_auth_config().database_uri)
    if store.has_user(name):
        store.update_user(name, password=password)
    else:
        store.create_user(name, password)
    user = store.get_user(name)
    role = _role(store)
    if role not in [each.id for each in store.list_user_roles(user.id)]:
        store.assign_role_to_user(user.id, role)


def _role(store: SqlAlchemyStore) -> int:
    """The id of the role, which is made at its first use."""
    for role in store.list_roles([DEFAULT_WORKSPACE_NAME]):
        if role.name == ROLE:
            return role.id
    made = store.create_role(ROLE, DEFAULT_WORKSPACE_NAME)
    store.add_role_permission(made.id, "experiment", "*", "EDIT")
    return made.id


if __name__ == "__main__":
    if sys.argv[1:2] == ["account"]:
        (name,) = sys.argv[2:]
        make_account(name, getpass.getpass(f"Password of {name} (12 characters or more): "))
        sys.exit()
    make_account(os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"])
    os.execvp("mlflow", ["mlflow", "server", "--app-name", "basic-auth", *sys.argv[1:]])
