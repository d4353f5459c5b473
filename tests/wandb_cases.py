"""Files as Weights & Biases writes them: records of protocol buffers in LevelDB's format of logs."""

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

BLOCK = 32 * 1024


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def history(values: Mapping[str, Any], step: int | None = None) -> bytes:
    """A record with what was logged at a step; nested names have a slash."""
    items = [
        field(1, b"".join(field(2, part.encode()) for part in name.split("/")) + field(16, json.dumps(value).encode()))
        for name, value in values.items()
    ]
    at = b"" if step is None else field(2, varint(1 << 3) + varint(step))
    return varint(1 << 3) + varint(3) + field(2, b"".join(items) + at)


def wandb_file(records: Iterable[bytes]) -> bytes:
    content = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        at, is_first = 0, True
        while is_first or at < len(record):
            left = BLOCK - len(content) % BLOCK
            if left < 7:
                content += bytes(left)
                continue
            piece = record[at : at + left - 7]
            at += len(piece)
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, at == len(record)]
            content += struct.pack("<IHB", 0, len(piece), kind) + piece
            is_first = False
    return bytes(content)
