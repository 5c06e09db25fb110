"""The golden frames of tests/wire_vectors, read and written by the codec of this SDK.

A client in another language can use the same files in the same way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from toolbus.chunks.chunk_types import chunk_from_wire, file_piece_from_wire, file_piece_to_wire
from toolbus.wire import (
    BadBody,
    BadFrame,
    Frame,
    UnknownFrame,
    decode_from_client,
    decode_from_server,
    encode,
    exception_of,
    pack_body,
    unpack_body,
)
from toolbus.wire.frames import FROM_CLIENT, FROM_SERVER, KINDS, Failed
from toolbus_server.registry.toolkit_definition import read_definition

_VECTORS = Path(__file__).parents[2] / "wire_vectors"
_DECODERS = {"client": decode_from_client, "server": decode_from_server}
_SHORT = {
    "ListToolkits": "list",
    "StreamChunk": "chunk",
    "AssessDispatch": "assess_dispatch",
}
_NAMES = {frame: _SHORT.get(frame.__name__, frame.__name__.lower()) for frame in KINDS}
_FRAMES = {name: frame for frame, name in _NAMES.items()}


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$bin"}:
            return bytes.fromhex(value["$bin"])
        return {key: _from_plain(item) for key, item in value.items()}
    return [_from_plain(item) for item in value] if isinstance(value, list) else value


def _vectors(folder: str, names: str = "*") -> list[Any]:
    found = sorted((_VECTORS / folder).glob(f"{names}.json"))
    assert found, f"no vectors in {folder}"
    return [pytest.param(path, id=path.stem) for path in found]


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content, path.with_suffix(".msgpack").read_bytes()


def _same(one: Any, other: Any) -> bool:
    """Equal in type too: 1 is not 1.0, and not True."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("path", _vectors("frames"))
def test_golden_frame_decodes_to_its_json(path: Path) -> None:
    """FRAME-2, FRAME-3: an array of the kind and the fields in their order."""
    content, data = _read(path)
    for sender in content["from"]:
        frame = _DECODERS[sender](data)
        assert type(frame) is _FRAMES[content["kind"]]
        assert _same(list(astuple(frame)), _from_plain(content["fields"]))


@pytest.mark.parametrize("path", _vectors("frames"))
def test_golden_frame_encodes_to_its_bytes(path: Path) -> None:
    """FRAME-2."""
    content, data = _read(path)
    kind = _FRAMES[content["kind"]]
    frame: Frame = kind(*_from_plain(content["fields"]))
    assert KINDS[kind] == content["number"]
    assert encode(frame) == data


def test_every_built_kind_has_a_golden_frame_from_each_side_that_sends_it() -> None:
    shown = {
        (content["kind"], sender)
        for content, _ in (_read(path) for path in (_VECTORS / "frames").glob("*.json"))
        for sender in content["from"]
    }
    assert shown == {(_NAMES[frame], "client") for frame in FROM_CLIENT} | {
        (_NAMES[frame], "server") for frame in FROM_SERVER
    }


def test_every_vector_is_a_pair() -> None:
    for folder in ("frames", "bodies", "broken", "broken_bodies", "tolerated"):
        files = list((_VECTORS / folder).iterdir())
        words = {path.stem for path in files if path.suffix == ".json"}
        assert words == {path.stem for path in files if path.suffix == ".msgpack"}
        assert len(files) == 2 * len(words)


@pytest.mark.parametrize("path", _vectors("broken"))
def test_broken_frame_ends_the_connection_with_its_code(path: Path) -> None:
    """FRAME-2, FRAME-3, FRAME-5, FRAME-6, FRAME-7."""
    content, data = _read(path)
    with pytest.raises(BadFrame) as refused:
        _DECODERS[content["from"]](data)
    assert refused.value.close_code == content["close_code"]


@pytest.mark.parametrize("path", _vectors("tolerated"))
def test_frame_of_a_newer_release_is_read_as_far_as_it_is_known(path: Path) -> None:
    """FRAME-8, FRAME-9, GROW-1."""
    content, data = _read(path)
    expected = content["reads_as"]
    frame = _DECODERS[content["from"]](data)
    if "unknown" in expected:
        assert frame == UnknownFrame(expected["unknown"], expected["id"])
    else:
        assert type(frame) is _FRAMES[expected["kind"]]
        assert _same(list(astuple(frame)), _from_plain(expected["fields"]))


@pytest.mark.parametrize("path", _vectors("bodies"))
def test_golden_body_is_read_and_written_both_ways(path: Path) -> None:
    """BODY-1, BODY-2."""
    content, data = _read(path)
    value = _from_plain(content["value"])
    assert _same(unpack_body(data, binary=content["what"] == "chunk"), value)
    assert pack_body(value) == data


@pytest.mark.parametrize("path", _vectors("bodies", "chunk_*"))
def test_golden_chunk_is_unchanged_by_the_sdk(path: Path) -> None:
    """BODY-3, BODY-4."""
    _, data = _read(path)
    fields = unpack_body(data, binary=True)
    if len(fields) > 4:
        piece, more = file_piece_from_wire([*fields, "a field of a later release"]) or (None, None)
        assert piece is not None
        assert more is fields[4]
        sent = file_piece_to_wire(piece, piece.data, more=more)
        assert sent == (fields if more else fields[:4])  # a false one is usually left out
        return
    chunk = chunk_from_wire(fields)
    assert pack_body(chunk.to_wire()) == data
    assert chunk_from_wire([*fields, "a field of a later release"]) == chunk


_MANIFESTS = sorted(path.stem for path in (_VECTORS / "bodies").glob("manifest*.json"))


@pytest.mark.parametrize("name", _MANIFESTS)
def test_digest_of_a_manifest_ignores_defaults_and_unknown_fields(name: str) -> None:
    """REG-5."""
    content, data = _read(_VECTORS / "bodies" / f"{name}.json")
    definition = read_definition(data)
    assert definition.digest == content["digest"]
    assert unpack_body(definition.packed) == json.loads(content["canonical"])


@pytest.mark.parametrize("path", _vectors("broken_bodies"))
def test_broken_body_is_refused_by_its_reader_with_the_path(path: Path) -> None:
    """BODY-1, BODY-5."""
    content, data = _read(path)
    with pytest.raises(BadBody) as refused:
        unpack_body(data)
    assert refused.value.path == content["path"]


def test_details_of_a_golden_error_are_read_by_their_names() -> None:
    """ERR-6."""
    _, data = _read(_VECTORS / "frames" / "failed.json")
    frame = decode_from_server(data)
    assert isinstance(frame, Failed)
    assert exception_of(frame).details["path"] == "/days"
