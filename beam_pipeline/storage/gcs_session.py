"""The HTTP session for Google Cloud Storage, with the credentials that can be found."""

from __future__ import annotations

import os
import threading
from typing import Any

from beam_pipeline.errors import StorageError

MAX_CONNECTIONS = 64  # at least the number of threads that read at the same time
CREDENTIALS_SECONDS = 8.0  # a metadata server that does not answer by then is none
MEND_CREDENTIALS = "run gcloud auth application-default login, or set \
GOOGLE_APPLICATION_CREDENTIALS to a service account's key file, on the workers too"

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


def make_session(custom_endpoint: bool) -> tuple[Any, bool]:
    """A session that adds credentials to each request, and whether it has none to add.

    An emulator needs none. Elsewhere, without any, public buckets can be read.
    """
    import google.auth.transport.requests
    import requests
    import requests.adapters

    credentials = None
    if not custom_endpoint or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        credentials = _find_credentials()
    session: Any = requests.Session()
    if credentials is not None:
        session = google.auth.transport.requests.AuthorizedSession(credentials, refresh_timeout=30)
    adapter = requests.adapters.HTTPAdapter(
        pool_connections=4, pool_maxsize=MAX_CONNECTIONS, max_retries=0
    )
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session, credentials is None and not custom_endpoint


def _find_credentials() -> Any:
    """Application Default Credentials, or None; looks for them a few seconds at most."""
    import google.auth
    import google.auth.exceptions

    found: list[Any] = []

    def look() -> None:
        try:
            found.append(google.auth.default(scopes=[_SCOPE])[0])
        except Exception as error:
            found.append(error)

    # In a thread, because off Google's machines the wait for the metadata server
    # may take far longer than anybody wants to wait for an error message.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(CREDENTIALS_SECONDS)
    if not found or isinstance(found[0], google.auth.exceptions.DefaultCredentialsError):
        if found and os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise StorageError(f"cannot use gs://: {found[0]} ({MEND_CREDENTIALS})") from found[0]
        return None
    if isinstance(found[0], Exception):
        raise StorageError(f"cannot use gs://: {found[0]} ({MEND_CREDENTIALS})") from found[0]
    return found[0]
