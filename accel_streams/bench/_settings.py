"""What can be measured: a setting of the training, and the variants that run it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VARIANTS", "Setting", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to train.

    ``accelerator``: DeepSpeed's own, or the one of this package. ``mode``: ACCEL_STREAMS_ZERO.
    ``overlap``: ``overlap_comm``. ``engine``: what trains.
    """

    engine: str = "deepspeed"
    own_accelerator: bool = False
    mode: str = "off"
    overlap: bool = True


VARIANTS = {
    "stock": Variant(),
    "stock-no-overlap": Variant(overlap=False),
    "sync": Variant(own_accelerator=True, mode="sync"),
    "track": Variant(own_accelerator=True, mode="track"),
    "track-no-overlap": Variant(own_accelerator=True, mode="track", overlap=False),
    "ddp": Variant(engine="ddp"),
    "fsdp2": Variant(engine="fsdp2"),
}
"""``stock`` is DeepSpeed alone, its methods without this package's hooks."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One training: the model, ZeRO's stage and bucket, and the stream that the step runs on.

    ``bucket`` is in elements, ``batch`` in sequences a rank, ``sequence`` in tokens.
    ``persistence`` is ZeRO-3's ``stage3_param_persistence_threshold``, None for its default.
    """

    stage: int = 2
    bucket: int = 8_000_000
    layers: int = 12
    width: int = 1024
    batch: int = 4
    sequence: int = 256
    user_stream: bool = True
    persistence: int | None = None

    @property
    def name(self) -> str:
        """Return what tells it from the others."""
        persistence = "" if self.persistence is None else f"-persist{self.persistence}"
        return (
            f"zero{self.stage}-bucket{self.bucket:.0e}-{self.layers}x{self.width}-batch{self.batch}"
            f"{persistence}-{'user' if self.user_stream else 'default'}-stream"
        ).replace("e+0", "e")
