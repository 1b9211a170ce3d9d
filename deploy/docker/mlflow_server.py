"""Start MLflow with passwords; before it, make the account that training uses, so that no node is the administrator.

The account is ``MLFLOW_TRACKING_USERNAME`` with ``MLFLOW_TRACKING_PASSWORD``, as every client reads them; a changed
password is taken over at the next start. All else is ``mlflow server``'s own: ``MLFLOW_BACKEND_STORE_URI`` ...
"""

import os
import sys

from mlflow.server.auth.config import read_auth_config
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore


def make_account(name: str, password: str) -> None:
    """Make the account, or give it this password. Raises MlflowException for a password that is too short."""
    store = SqlAlchemyStore()
    store.init_db(read_auth_config().database_uri)
    if store.has_user(name):
        store.update_user(name, password=password)
    else:
        store.create_user(name, password)


if __name__ == "__main__":
    make_account(os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"])
    os.execvp("mlflow", ["mlflow", "server", "--app-name", "basic-auth", *sys.argv[1:]])
