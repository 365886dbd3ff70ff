"""Messages between an owner and an agent: what is said is what is understood, and no more."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import WorkerError
from profiling.messages import (
    AskStatus,
    Done,
    End,
    Ending,
    Offer,
    Offered,
    Own,
    Refused,
    Start,
    Status,
    WorkerFacts,
    decode_answer,
    decode_request,
    encode,
)

FACTS = {
    "host_name": "node-a",
    "clock": "c",
    "cpu": "Xeon",
    "core": None,
    "threads": 8,
    "memory_bytes": 2**34,
    "gpu_names": ["Tesla K80"],
    "is_confined": True,
}

addresses = st.from_regex(r"[a-z][a-z0-9.-]{0,9}:[0-9]{1,5}", fullmatch=True)
requests = st.sampled_from([Own(), Offer(), AskStatus(), End()]) | st.builds(
    Start, addresses=st.lists(addresses, min_size=1).map(tuple), task=st.integers(0, 2**31)
)
endings = st.builds(Ending, st.text(), st.booleans(), st.booleans())
facts = st.builds(
    WorkerFacts,
    host_name=st.text(), clock=st.text(), cpu=st.text(), core=st.none() | st.integers(0, 999),
    threads=st.integers(1, 999), memory_bytes=st.integers(1, 2**60),
    gpu_names=st.lists(st.text()).map(tuple), is_confined=st.booleans(),
)  # fmt: skip
answers = (
    st.just(Done())
    | st.builds(Offered, port=st.integers(1, 65535))
    | st.builds(Refused, reason=st.text())
    | st.builds(
        Status,
        pid=st.none() | st.integers(1),
        facts=st.none() | facts,
        ending=st.none() | endings,
        last_words=st.text(),
    )
)


@given(request_=requests)
def test_a_request_is_one_line_and_is_read_back_equal(request_):
    line = encode(request_)

    assert line.count(b"\n") == 1
    assert decode_request(line) == request_


@given(answer=answers)
def test_an_answer_is_one_line_and_is_read_back_equal(answer):
    line = encode(answer)

    assert line.count(b"\n") == 1
    assert decode_answer(line) == answer


def test_a_request_looks_as_the_documentation_says():
    request = decode_request(b'{"request": "start", "addresses": ["10.0.0.2:4000"], "task": 0}\n')

    assert request == Start(addresses=("10.0.0.2:4000",), task=0)
    assert json.loads(encode(Own())) == {"request": "own", "version": 1}


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"{}\n",
        b'{"request": "dance"}\n',
        b'{"request": "own", "version": 2}\n',
        b'{"request": "own", "version": "1"}\n',
        b'{"request": "offer", "port": 1}\n',
        b'{"request": "start", "addresses": [], "task": 0}\n',
        b'{"request": "start", "addresses": ["a:1"], "task": -1}\n',
        b'{"request": "start", "addresses": ["a:1"], "task": "0"}\n',
        b'{"request": "start", "addresses": ["--core:1"], "task": 0}\n',
        b'{"request": "start", "addresses": ["a:1,b:2"], "task": 0}\n',
        b'{"answer": "done"}\n',
    ],
)
def test_what_is_no_request_is_told_in_one_line(line):
    with pytest.raises(WorkerError, match="not a message of version 1: ") as error:
        decode_request(line)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change", [{"threads": 0}, {"memory_bytes": -1}, {"core": "0"}, {"gpu_names": "K80"}, {"x": 1}]
)
def test_facts_that_cannot_be_are_no_answer(change):
    status = {"answer": "status", "facts": FACTS}
    good = decode_answer(json.dumps(status).encode())

    with pytest.raises(WorkerError):
        decode_answer(json.dumps({**status, "facts": {**FACTS, **change}}).encode())
    assert isinstance(good, Status)


def test_an_ending_reads_behind_the_name_of_its_worker():
    assert f"worker 1 {Ending('was killed by SIGKILL')}" == "worker 1 was killed by SIGKILL"
