"""Frames that we parse and build, compared with websockets on the same bytes."""

from __future__ import annotations

import asyncio
import os
import struct
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Side

from support.clients.raw_client import BINARY, CLOSE, CONT, PING, PONG, TEXT, websocket_frame
from support.parts.memory_endpoint import MemoryEndpoint, Outcome, by_websockets, frames_in
from toolbus.transport.framing import FrameCutter, Passthrough, masking, unmasked

SIZES = (0, 1, 125, 126, 127, 300, 65_535, 65_536)
LARGE = 65_536
MAX_BYTES = 70_000
HANDSHAKE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
both_ends = pytest.mark.parametrize("from_client", [True, False], ids=["server", "client"])


def cutter(*, from_client: bool = True, max_bytes: int | None = MAX_BYTES) -> FrameCutter:
    """Make a cutter that is past its handshake."""
    made = FrameCutter(from_client=from_client, max_bytes=max_bytes)
    made.skip(HANDSHAKE)
    return made


@cache
def text_of(size: int) -> bytes:
    return bytes(at * 7 % 251 for at in range(size))


def with_length(payload: bytes, length_bytes: int, *, masked: bool) -> bytes:
    """Build a binary frame whose length field is longer than needed."""
    plain = websocket_frame(payload, masked=masked)
    body = plain[2 + (2 if len(payload) > 125 else 0) :]
    mark, form = {2: (126, "!H"), 8: (127, "!Q")}[length_bytes]
    head = bytes([plain[0], plain[1] & 0x80 | mark])
    return head + struct.pack(form, len(payload)) + body


# Parsing


@both_ends
@pytest.mark.parametrize("size", SIZES)
def test_ordinary_messages_are_parsed(size: int, *, from_client: bool) -> None:
    frame = websocket_frame(text_of(size), masked=from_client)

    assert cutter(from_client=from_client).cut(frame * 3) == [text_of(size)] * 3


@both_ends
def test_other_frames_are_passed_through_one_by_one(*, from_client: bool) -> None:
    others = [
        websocket_frame(b"ping", opcode=PING, masked=from_client),
        websocket_frame(b"", opcode=PONG, masked=from_client),
        websocket_frame(b"text", opcode=TEXT, masked=from_client),
        websocket_frame(b"nothing was begun", opcode=CONT, masked=from_client),
        websocket_frame(text_of(MAX_BYTES + 1), masked=from_client),
        websocket_frame(b"reserved", rsv=4, masked=from_client),
        websocket_frame(b"wrong way", masked=not from_client),
        websocket_frame(text_of(300), masked=not from_client),
        websocket_frame(b"\x03\xe8", opcode=CLOSE, masked=from_client),
    ]
    message = websocket_frame(b"message", masked=from_client)
    received = b"".join(other + message for other in others)

    parts = cutter(from_client=from_client).cut(received)
    assert parts == [part for other in others for part in (Passthrough(other), b"message")]


def test_message_beyond_the_limit_is_passed_through() -> None:
    fits, too_large = (websocket_frame(text_of(size)) for size in (200, 201))

    assert cutter(max_bytes=200).cut(fits + too_large) == [text_of(200), Passthrough(too_large)]


def test_without_a_limit_all_messages_are_parsed() -> None:
    large = text_of(2**20 + 1)
    assert cutter(max_bytes=None).cut(websocket_frame(large)) == [large]


@both_ends
@pytest.mark.parametrize("size", [0, 5, 126, LARGE])
def test_frame_with_a_split_head_is_passed_through_at_once(size: int, *, from_client: bool) -> None:
    frame = websocket_frame(text_of(size), masked=from_client)
    message = websocket_frame(b"message", masked=from_client)
    for place in range(1, len(frame) - size):
        ours = cutter(from_client=from_client)
        assert ours.cut(message + frame[:place]) == [b"message", Passthrough(frame[:place])]
        assert ours.cut(frame[place:] + message) == [Passthrough(frame[place:]), b"message"]


@both_ends
@pytest.mark.parametrize("size", [5, 126, LARGE])
def test_message_with_a_split_body_is_assembled(size: int, *, from_client: bool) -> None:
    frame = websocket_frame(text_of(size), masked=from_client)
    message = websocket_frame(b"message", masked=from_client)
    head = len(frame) - size
    for place in (*range(head, min(head + 6, len(frame))), len(frame) - 1):
        ours = cutter(from_client=from_client)
        assert ours.cut(message + frame[:place]) == [b"message"]
        assert ours.wanted == len(frame) - place
        assert ours.cut(frame[place:] + message) == [text_of(size), b"message"]
        assert ours.wanted == 0


@both_ends
def test_frame_received_byte_by_byte_is_passed_through_byte_by_byte(*, from_client: bool) -> None:
    frame = websocket_frame(text_of(130), masked=from_client)
    ours = cutter(from_client=from_client)
    for byte in frame:
        assert ours.cut(bytes([byte])) == [Passthrough(bytes([byte]))]

    message = websocket_frame(b"message", masked=from_client)
    assert ours.cut(message) == [b"message"]


@both_ends
def test_body_received_byte_by_byte_is_assembled(*, from_client: bool) -> None:
    frame = websocket_frame(text_of(130), masked=from_client)
    ours, head = cutter(from_client=from_client), len(frame) - 130
    parts = ours.cut(frame[:head])
    for byte in frame[head:-1]:
        parts += ours.cut(bytes([byte]))
    assert parts == []
    assert ours.cut(frame[-1:]) == [text_of(130)]


@both_ends
def test_released_message_is_tracked_to_its_end(*, from_client: bool) -> None:
    frame = websocket_frame(text_of(LARGE), masked=from_client)
    message = websocket_frame(b"message", masked=from_client)
    for place in (len(frame) - LARGE, len(frame) - 1):
        ours = cutter(from_client=from_client)
        assert ours.cut(frame[:place]) == []
        assert ours.release() == frame[:place]
        assert (ours.wanted, ours.release()) == (0, b"")
        ours.skip(frame[place:])
        assert ours.cut(message) == [b"message"]


def test_message_amid_fragments_and_control_frames_are_passed_through() -> None:
    first = websocket_frame(b"a", fin=False)
    amid = [
        websocket_frame(b"b", opcode=CONT, fin=False),
        websocket_frame(b"ping", opcode=PING),
        websocket_frame(b"against the rules"),
    ]
    ours = cutter()
    assert ours.cut(first) == [Passthrough(first)]
    assert ours.cut(b"".join(amid[:2])) == [Passthrough(frame) for frame in amid[:2]]
    assert ours.cut(amid[2]) == [Passthrough(amid[2])]


def test_skipped_bytes_are_tracked() -> None:
    frame = websocket_frame(text_of(300))
    fragment = websocket_frame(b"", fin=False)
    message = websocket_frame(b"message")
    received = HANDSHAKE + frame * 2 + fragment
    for place in range(1, len(received)):
        ours = FrameCutter(from_client=True, max_bytes=MAX_BYTES)
        ours.skip(received[:place])
        ours.skip(received[place:])
        last = websocket_frame(b"", opcode=CONT)
        assert ours.cut(message + last + message) == [
            Passthrough(message),
            Passthrough(last),
            b"message",
        ]


def test_handshake_ends_with_the_first_empty_line_in_any_pieces() -> None:
    ours = FrameCutter(from_client=True, max_bytes=MAX_BYTES)
    for byte in HANDSHAKE:
        ours.skip(bytes([byte]))

    assert ours.cut(websocket_frame(b"\r\n\r\n")) == [b"\r\n\r\n"]


# Building


@pytest.mark.parametrize("size", [*SIZES, 2**20])
def test_frames_equal_those_of_websockets(size: int) -> None:
    message = text_of(size)
    theirs = Frame(Opcode.BINARY, message)
    assert unmasked(message) == theirs.serialize(mask=False)

    masked = masking()(message)
    assert frames_in(masked, masked=True) == [(BINARY, message)]
    assert len(masked) == len(theirs.serialize(mask=True))  # of the same form


def test_each_mask_is_new_from_the_systems_random_source(monkeypatch: pytest.MonkeyPatch) -> None:
    real, drawn = os.urandom, bytearray()

    def noted(size: int) -> bytes:
        drawn.extend(data := real(size))
        return data

    monkeypatch.setattr(os, "urandom", noted)
    masked = masking()
    # With a payload of zeros the masked payload is the mask.
    masks = b"".join(masked(bytes(4))[2:6] for _ in range(1_000))
    assert masks == drawn[:4_000]
    before = len(drawn)
    assert masking()(bytes(4))[2:6] == drawn[before : before + 4]  # another connection


# Comparison with websockets


@cache
def frame_of(side: Side, payload: bytes, opcode: int = BINARY, *, fin: bool = True) -> bytes:
    return websocket_frame(payload, opcode=opcode, fin=fin, masked=side is Side.SERVER)


sizes = st.sampled_from(SIZES)
small = st.binary(max_size=125)
"""Payloads that a control frame may have."""


@st.composite
def messages(draw: st.DrawFn, side: Side) -> list[bytes]:
    size = draw(sizes)
    return [frame_of(side, bytes([number]) * size) for number in range(draw(st.integers(1, 20)))]


@st.composite
def controls(draw: st.DrawFn, side: Side) -> list[bytes]:
    return [frame_of(side, draw(small), draw(st.sampled_from([PING, PONG])))]


@st.composite
def fragments(draw: st.DrawFn, side: Side) -> list[bytes]:
    """A message in fragments, with control frames between."""
    pieces = draw(st.lists(sizes, min_size=2, max_size=5))
    frames = [frame_of(side, text_of(pieces[0]), fin=False)]
    for size in pieces[1:-1]:
        frames.append(frame_of(side, text_of(size), CONT, fin=False))
        frames += draw(st.just([]) | controls(side))
    return [*frames, frame_of(side, text_of(pieces[-1]), CONT)]


@st.composite
def ends(draw: st.DrawFn, side: Side) -> list[bytes]:
    """Frames that end a connection, and unusual ones that do not."""
    from_client = side is Side.SERVER
    wrong = websocket_frame(draw(small), masked=not from_client)
    reserved = websocket_frame(b"", rsv=draw(st.integers(1, 7)), masked=from_client)
    code = struct.pack("!H", draw(st.sampled_from([1000, 1001, 1005, 999, 4000])))
    return [
        draw(
            st.sampled_from(
                [
                    frame_of(side, b"text", TEXT),
                    frame_of(side, b"text", TEXT, fin=False),
                    frame_of(side, b"begun", fin=False),
                    frame_of(side, b"nothing was begun", CONT),
                    frame_of(side, text_of(MAX_BYTES)),
                    frame_of(side, text_of(MAX_BYTES + 1)),
                    frame_of(side, b"no such opcode", draw(st.sampled_from([3, 7, 11, 15]))),
                    frame_of(side, b"", PING, fin=False),
                    frame_of(side, text_of(126), PING),
                    frame_of(side, b"", CLOSE),
                    frame_of(side, b"\x03", CLOSE),
                    frame_of(side, code + b"bye", CLOSE),
                    frame_of(side, code + b"\xff", CLOSE),
                    with_length(b"five", 2, masked=from_client),
                    with_length(b"five", 8, masked=from_client),
                    with_length(text_of(300), 8, masked=from_client),
                    frame_of(side, b"")[:1] + bytes([127 | from_client << 7]) + b"\xff" * 8,
                    wrong,
                    reserved,
                ]
            )
        )
    ]


def conversations(side: Side) -> st.SearchStrategy[list[bytes]]:
    turn = messages(side) | messages(side) | controls(side) | fragments(side) | ends(side)
    return st.lists(turn, max_size=12).map(lambda turns: [one for turn in turns for one in turn])


def sliced(data: bytes, pieces: list[int]) -> list[bytes]:
    """Cut data into pieces of these sizes and one of the rest."""
    places = [0]
    for size in pieces:
        places.append(min(places[-1] + size, len(data)))
    return [data[a:b] for a, b in pairwise([*places, len(data)]) if a < b]


async def by_us(side: Side, pieces: list[bytes], limit: int | None, *, batches: bool) -> Outcome:
    make = MemoryEndpoint.server if side is Side.SERVER else MemoryEndpoint.client
    end = await make(limit, batches=batches)
    for piece in pieces:
        await end.read(piece)
    return await end.outcome()


LIMITS = st.sampled_from([MAX_BYTES, MAX_BYTES, 300, None])
SLICES = st.lists(st.sampled_from([1, 1, 2, 3, 7, 100, 300, 4_096, LARGE, 200_000]), max_size=60)


@example_settings(max_examples=200)
@given(st.data(), st.sampled_from(list(Side)), SLICES, LIMITS, st.booleans())
def test_any_frames_in_any_pieces_give_the_result_of_websockets(
    data: st.DataObject,
    side: Side,
    slices: list[int],
    limit: int | None,
    batches: bool,
) -> None:
    """The same messages, the same replies in the same order, the same end."""
    frames = data.draw(conversations(side))
    pieces = sliced(b"".join(frames), slices)

    ours = asyncio.run(by_us(side, pieces, limit, batches=batches))
    assert ours == by_websockets(side, frames, limit)


@pytest.mark.parametrize("side", list(Side))
async def test_message_beyond_the_limit_of_the_connection_is_refused(side: Side) -> None:
    """FRAME-4."""
    fits, too_large = (frame_of(side, text_of(size)) for size in (200, 201))

    outcome = await by_us(side, [fits, too_large], 200, batches=False)
    assert outcome.messages == [text_of(200)]
    assert outcome.close_sent is not None
    assert outcome.close_sent.code == 1009


def arrived(*payloads: bytes) -> bytes:
    """Return messages of a server as one piece of data."""
    return b"".join(websocket_frame(payload, masked=False) for payload in payloads)


IN_FRAGMENTS = websocket_frame(b"fi", fin=False, masked=False) + websocket_frame(
    b"rst", opcode=CONT, masked=False
)


@pytest.mark.parametrize(
    "first", [arrived(b"first"), IN_FRAGMENTS], ids=["cut here", "left to websockets"]
)
async def test_second_reply_in_a_batch_is_written_after_the_iteration(
    first: bytes,
) -> None:
    for batches, writes in ((True, 1), (False, 2)):
        end = await MemoryEndpoint.client(MAX_BYTES, batches=batches)
        await end.read(first + arrived(b"small"))

        assert end.wire.writes == writes
        received = (await end.outcome()).sent
        assert received == [(BINARY, b"first"), (BINARY, b"small")]


async def test_replies_keep_their_order_while_some_wait_for_the_flush() -> None:
    end = await MemoryEndpoint.client(MAX_BYTES, batches=True)
    await end.read(arrived(b"1", b"2"))
    for piece in (b"3", b"4", b"5"):
        await end.read(arrived(piece))
    assert end.wire.writes == 1

    await end.read(websocket_frame(b"6", opcode=PING, masked=False))  # its pong flushes all
    await end.read(arrived(b"7"))
    output = [payload for _, payload in (await end.outcome()).sent]
    assert output == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


async def test_small_gathered_messages_share_one_write() -> None:
    end = await MemoryEndpoint.client(MAX_BYTES, batches=True)
    end.connection.gather()
    for message in (b"1", b"2", b"3"):
        end.connection.send_message(message)
    assert end.wire.writes == 0

    received = (await end.outcome()).sent
    assert (end.wire.writes, received) == (1, [(BINARY, each) for each in (b"1", b"2", b"3")])
    end.connection.send_message(b"alone")  # another iteration
    assert end.wire.writes == 2


async def test_large_gathered_message_is_written_at_once_after_earlier_ones() -> None:
    end = await MemoryEndpoint.client(MAX_BYTES, batches=True)
    end.connection.gather()
    end.connection.send_message(b"small")
    end.connection.send_message(text_of(LARGE))
    assert end.wire.writes == 1

    end.connection.send_message(b"last")
    output = [payload for _, payload in (await end.outcome()).sent]
    assert output == [b"small", text_of(LARGE), b"last"]


async def test_connection_without_batches_gathers_nothing() -> None:
    end = await MemoryEndpoint.client(MAX_BYTES, batches=False)
    end.connection.gather()
    end.connection.send_message(b"at once")
    assert end.wire.writes == 1
