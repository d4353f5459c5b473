"""Event files as TensorBoard writes them."""

from pathlib import Path

DATA = Path(__file__).parent / "data" / "logs"


def event_file(*records: bytes) -> bytes:
    """A version and records in their frames; checksums are left out."""
    version = next((DATA / "tensorboard").iterdir()).read_bytes()
    version = version[: 12 + version[0] + 4]
    return version + b"".join(len(r).to_bytes(8, "little") + bytes(4) + r + bytes(4) for r in records)


def scalar(step: int, tag: str, value: float) -> bytes:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    return Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])).SerializeToString()
