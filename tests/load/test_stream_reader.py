"""The stream reader against the recorded streams, however their bytes are cut."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.load._shortcut import take
from autotune.load.reader import StreamReader
from autotune.load.records import ErrorKind, TokenSource

DATA = Path(__file__).parent / "data"
CASES = {
    row["file"]: row for row in csv.DictReader((DATA / "manifest.tsv").open(), delimiter="\t", quoting=csv.QUOTE_NONE)
}
SPLITS = [
    (row["file"], [int(cut) for cut in row["cut_offsets"].split(",")])
    for row in csv.DictReader((DATA / "splits.tsv").open(), delimiter="\t", quoting=csv.QUOTE_NONE)
    if row["file"] in CASES
]


@dataclass(frozen=True)
class Reading:
    """What is read from a stream, times aside."""

    output_tokens: int
    source: TokenSource
    first_token_event: int | None
    chunks: int
    events: int
    finish_reason: str | None
    failure: tuple[ErrorKind, str] | None
    text: str


def read(pieces: list[bytes], *, keep_text: bool = False) -> Reading:
    reader = StreamReader(keep_text=keep_text)
    for number, piece in enumerate(pieces):
        reader.feed(piece, float(number))
    reader.close(float(len(pieces)))
    return Reading(
        reader.output_tokens,
        reader.token_source,
        reader.first_token_event,
        reader.chunks,
        reader.events,
        reader.finish_reason,
        reader.failure,
        reader.text,
    )


def cut(data: bytes, offsets: list[int]) -> list[bytes]:
    marks = [0, *sorted(offsets), len(data)]
    return [data[a:b] for a, b in pairwise(marks)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [None, 1, 7, 64])
def test_every_recorded_stream_reads_as_its_manifest_says(name: str, size: int | None) -> None:
    row, data = CASES[name], (DATA / name).read_bytes()
    assert len(data) == int(row["bytes"])
    pieces = [data] if size is None else [data[i : i + size] for i in range(0, len(data), size)]
    reading = read(pieces, keep_text=True)
    assert (reading.failure is None) == (row["outcome"] == "success")
    assert reading.first_token_event == int(row["first_token_event"])
    assert reading.text == json.loads(row["visible_text_json"])
    if row["outcome"] == "success":
        assert reading.output_tokens == int(row["output_tokens"])
        assert reading.source == row["token_source"].split()[0]
    else:
        assert reading.source is TokenSource.NONE


@pytest.mark.parametrize("name", CASES)
def test_the_first_token_has_the_time_of_the_read_that_completed_it(name: str) -> None:
    row, data = CASES[name], (DATA / name).read_bytes()
    start = int(row["first_token_byte"])
    end = min(i for i in (data.find(b"\n\n", start), data.find(b"\r\n\r\n", start)) if i >= 0)
    reader = StreamReader()
    reader.feed(data[:start], 1.0)
    assert reader.first_token is None
    reader.feed(data[start : end + 4], 2.0)
    assert reader.first_token == 2.0
    reader.feed(data[end + 4 :], 3.0)
    reader.close(4.0)
    assert reader.first_token == 2.0


@pytest.mark.parametrize(("name", "offsets"), SPLITS)
def test_the_recorded_cuts(name: str, offsets: list[int]) -> None:
    data = (DATA / name).read_bytes()
    assert read(cut(data, offsets)) == read([data])


@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 1500), max_size=30), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_cut_of_a_recorded_stream_reads_the_same(name: str, offsets: list[int], keep_text: bool) -> None:
    data = (DATA / name).read_bytes()
    offsets = [min(offset, len(data)) for offset in offsets]
    assert read(cut(data, offsets), keep_text=keep_text) == read([data], keep_text=keep_text)


@given(
    st.sampled_from(sorted(CASES)),
    st.lists(st.tuples(st.integers(0, 1500), st.binary(max_size=4), st.integers(0, 8)), max_size=6),
    st.lists(st.integers(0, 1500), max_size=10),
)
@settings(max_examples=500, deadline=None)
def test_damaged_streams_never_raise_and_read_the_same_however_cut(
    name: str, damage: list[tuple[int, bytes, int]], offsets: list[int]
) -> None:
    data = (DATA / name).read_bytes()
    for position, inserted, removed in damage:
        data = data[:position] + inserted + data[position + removed :]
    offsets = [min(offset, len(data)) for offset in offsets]
    assert read(cut(data, offsets)) == read([data])


@given(st.lists(st.binary(max_size=200), max_size=20))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_a_failure_that_does_not_depend_on_their_cut(pieces: list[bytes]) -> None:
    reading = read(pieces)
    assert reading.failure is not None
    assert reading == read([b"".join(pieces)])


def event(text: str, reason: str = "null", usage: str = "") -> bytes:
    choice = f'{{"index":0,"text":{json.dumps(text)},"logprobs":null,"finish_reason":{reason}}}'
    return f'data: {{"id":"cmpl-1","model":"m","choices":[{choice}]{usage}}}\n\n'.encode()


def usage_event(tokens: int) -> bytes:
    return b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n' % tokens


DONE = b"data: [DONE]\n\n"


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_the_shortcut_and_the_reader_agree_on_any_text(texts: list[str]) -> None:
    shortened, plain = StreamReader(), StreamReader()
    for number, text in enumerate(texts):
        data = event(text)
        plain.feed(data, float(number))
        shortcut = shortened.shortcut
        chunk = b"%x\r\n%s\r\n" % (len(data), data)
        if shortcut is None or not take(shortcut, chunk, float(number)):
            shortened.feed(data, float(number))
    assert plain.times == shortened.times
    assert plain.chunks == len(texts)


@pytest.mark.parametrize(
    "chunk",
    [
        event("a", '"length"'),
        event("", "null"),
        event('say "hi"'),
        event("back\\slash\\"),
        event("a") + event("b"),
        event("a")[:-1],
        DONE,
        usage_event(3),
        event("a").replace(b"cmpl-1", b"cmpl-2"),
    ],
)
def test_the_shortcut_takes_nothing_but_a_plain_token(chunk: bytes) -> None:
    reader = StreamReader()
    reader.feed(event("first"), 0.0)
    shortcut = reader.shortcut
    assert shortcut is not None
    assert take(shortcut, b"%x\r\n%s\r\n" % (len(event("x")), event("x")), 1.0)
    framed = b"%x\r\n%s\r\n" % (len(chunk), chunk)
    assert not take(shortcut, framed, 2.0)
    assert not take(shortcut, framed[:-1], 2.0)
    assert not take(shortcut, b"1" + framed, 2.0)


def test_a_lone_done_is_a_failure() -> None:
    assert read([DONE]).failure == (ErrorKind.BROKEN_STREAM, "the stream ended before the first token")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"error": {"message": "EngineCore died", "code": 500}}', "EngineCore died"),
        (b'{"object": "error", "message": "bad request", "code": 400}', "bad request"),
        (b'{"error": "overloaded"}', "overloaded"),
    ],
)
def test_error_objects_of_each_shape_fail_with_their_message(payload: bytes, message: str) -> None:
    reading = read([event("a"), b"data: " + payload + b"\n\n", DONE])
    assert reading.failure == (ErrorKind.STREAM_ERROR, message)


def test_an_unparsable_event_fails_the_request() -> None:
    failure = read([event("a"), b"data: : OPENROUTER PROCESSING\n\n", event("b"), DONE]).failure
    assert failure is not None
    assert failure[0] is ErrorKind.BROKEN_STREAM
    assert "OPENROUTER" in failure[1]


def test_a_truncated_stream_is_a_failure() -> None:
    failure = read([event("a"), event("b")[:30]]).failure
    assert failure is not None
    assert failure[0] is ErrorKind.BROKEN_STREAM


def test_the_older_field_of_reasoning_counts_as_a_token() -> None:
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}\n\n'
    thought = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"Hm"},"finish_reason":null}]}\n\n'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    reading = read([role, thought, end, DONE])
    assert reading.first_token_event == 1
    assert reading.failure is None


def test_tokens_without_text_count_when_the_server_counts_every_event() -> None:
    reader = StreamReader()
    for number, data in enumerate([event(""), event("a"), event("", '"length"'), usage_event(3), DONE]):
        reader.feed(data, float(number))
    reader.close(9.0)
    assert (reader.first_token, reader.last_token) == (0.0, 2.0)


def test_events_without_text_do_not_count_when_the_server_counts_fewer() -> None:
    reader = StreamReader()
    for number, data in enumerate([event(""), event("a"), event("b"), event("", '"stop"'), usage_event(2), DONE]):
        reader.feed(data, float(number))
    reader.close(9.0)
    assert (reader.first_token, reader.last_token) == (1.0, 2.0)


def test_several_events_in_one_read_have_gaps_of_zero() -> None:
    reader = StreamReader()
    reader.feed(event("a") + event("b"), 1.0)
    reader.feed(event("c"), 3.0)
    assert list(reader.gaps) == [0.0, 2.0]


def test_events_that_lost_their_blank_line_are_read_one_by_one() -> None:
    joined = event("a")[:-1] + event("b", '"length"')
    reading = read([joined, DONE])
    assert reading.chunks == 2
    assert reading.failure is None
