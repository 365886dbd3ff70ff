"""The surroundings of a flow: defaults that give way, noise that is kept, servers that answer."""

import http.server
import os
import threading
from collections.abc import Iterator

import pytest

from flows.process import prepare, quiet_start
from flows.serving import serve_flows
from placer.errors import InvalidValueError, StoreError

VARIABLES = (
    "PREFECT_API_URL", "PREFECT_HOME", "PREFECT_LOGGING_LEVEL", "PREFECT_LOGGING_EXTRA_LOGGERS",
    "PREFECT_SERVER_ANALYTICS_ENABLED", "DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY",
    "TF_CPP_MIN_LOG_LEVEL", "PREFECT_SERVER_EPHEMERAL_ENABLED",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS",
)  # fmt: skip


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path) -> Iterator[None]:
    """A process in an empty folder without any of the variables."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


class _Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """The address of something that answers like a Prefect server's health check."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_telemetry_is_off_and_prefect_lives_in_this_folder(tmp_path):
    prepare()

    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["DO_NOT_TRACK"] == "true"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert os.environ["PREFECT_HOME"] == str(tmp_path / ".prefect")


def test_what_the_user_has_set_stays():
    os.environ["PREFECT_HOME"] = "elsewhere"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"

    prepare()

    assert os.environ["PREFECT_HOME"] == "elsewhere"
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1"


def test_a_server_of_the_users_gets_placers_messages(server):
    os.environ["PREFECT_API_URL"] = f"{server}/api"

    prepare()

    assert os.environ["PREFECT_LOGGING_EXTRA_LOGGERS"] == "flows,placer,profiling"
    assert "PREFECT_LOGGING_LEVEL" not in os.environ


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "nonsense", "http://"])
def test_a_server_that_does_not_answer_is_named(url):
    os.environ["PREFECT_API_URL"] = url

    with pytest.raises(StoreError, match=f"PREFECT_API_URL={url} does not answer"):
        prepare()


def test_an_address_that_is_no_prefect_api_is_named(server):
    os.environ["PREFECT_API_URL"] = f"{server}/elsewhere"

    with pytest.raises(StoreError, match="does not answer"):
        prepare()


def test_what_libraries_say_while_they_load_is_not_shown(capfd):
    with quiet_start():
        os.write(2, b"I0000 noise\n")
    os.write(2, b"after\n")

    assert capfd.readouterr().err == "after\n"


def test_what_they_said_is_shown_if_loading_fails(capfd):
    def fail_to_load() -> None:
        os.write(2, b"the reason\n")
        raise ImportError("no library")

    with pytest.raises(ImportError), quiet_start():
        fail_to_load()

    assert "the reason" in capfd.readouterr().err


def test_the_noise_is_shown_to_who_asks_for_it(capfd):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"

    with quiet_start():
        os.write(2, b"I0000 noise\n")

    assert capfd.readouterr().err == "I0000 noise\n"


def test_flows_are_not_offered_where_nobody_could_trigger_them():
    with pytest.raises(InvalidValueError, match="PREFECT_API_URL is not set"):
        serve_flows()
