"""Train two towers with any of DeepSpeed's ZeRO settings, with gradient hooks on chosen streams.

One program for the scenarios of ZeRO and for the benchmark that explores its settings. The towers
have their layers in turn, so that their gradients come in turn as well. Nothing here waits for the
device where a real program wouldn't: that would hide what is looked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

__all__ = ["Case", "run"]

WIDTH = 16
LAYERS = 6
# Two weights and their biases fill a bucket: many reductions in one backward.
BUCKET = 2 * WIDTH * (WIDTH + 1) + WIDTH

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Case:
    """The settings of one training.

    ``producers``: ``sides``: each tower runs on a side stream of its own, so one process has two
    streams with hooks. ``user``: all on one stream of the program's own; with several processes,
    ZeRO-1 and ZeRO-2 run the hooks of this rank's own parameters on the stream of
    ``deepspeed.initialize`` nevertheless. ``freed``: as ``user``, with that made so for a part of
    the parameters on any number of ranks. ``one``: the default stream only.
    """

    stage: int = 2
    dtype: Literal["fp32", "bf16", "fp16", "autocast"] = "bf16"
    overlap: bool = True
    contiguous: bool = True
    reduce_scatter: bool = True
    multi_rank: bool = True
    communication: str = ""
    """The dtype of the communication; the model's if empty."""
    accumulate: str = ""
    """The dtype in which gradients are accumulated; DeepSpeed's choice if empty."""
    micro_batches: int = 1
    no_sync: bool = False
    clip: float = 0.0
    bucket: int = BUCKET
    offload: Literal["", "optimizer", "parameters"] = ""
    """Keep the optimizer, or with it the parameters (stage 3), in host memory."""
    pinned: bool = True
    zenflow: bool = False
    overlap_step: bool = False
    moe: bool = False
    persistence: int | None = None
    """``stage3_param_persistence_threshold``; DeepSpeed's default if None."""
    reuse_distance: int | None = None
    """``stage3_max_reuse_distance``: for how many parameters to come one is kept."""
    producers: Literal["sides", "user", "freed", "one"] = "sides"
    whole: bool = False
    """Whether all, the initialisation too, is done under one stream of the program's own."""
    oversized: bool = False
    """Whether some parameters are larger than a bucket."""
    shared: bool = False
    """Whether both towers apply one and the same layer, halfway (stage 3)."""
    scalar: bool = False
    """Whether there is a parameter of a single element: most ranks keep no part of it."""
    infinite_at: int | None = None
    """The step whose gradients are infinite."""
    steps: int = 3
    use_memory: bool = True
    """Whether every stream allocates and writes memory between backward and step."""
    skip_edge: str = ""
    """An edge of accel_streams to leave out."""

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Case:
        """Return the case with these settings; raise ValueError for one that doesn't exist."""
        known = {field.name for field in fields(cls)}
        unknown = set(settings) - known
        if unknown:
            raise ValueError(
                f"unknown settings {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}"
            )
        return cls(**settings)  # type: ignore[arg-type]


class Float32Linear(nn.Linear):
    """Not on DeepSpeed's list of what is safe in lower precision: communicates in float32."""


class Expert(nn.Module):
    """An expert of a mixture: (tokens, width) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the expert's output."""
        output: Tensor = self.down(torch.tanh(self.up(x)))
        return output


class Mixture(nn.Module):
    """A layer of DeepSpeed's experts: (batch, width) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        self.moe = MoE(
            hidden_size=WIDTH,
            expert=Expert(),
            num_experts=2,
            ep_size=1,
            k=1,
            capacity_factor=2.0,
            min_capacity=0,
            use_rts=False,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixture's output, without the loss that balances the experts."""
        output: Tensor = self.moe(x.unsqueeze(0))[0].squeeze(0)
        return x + output


class Towers(nn.Module):
    """Two towers, layer by layer in turn."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        linear: type[nn.Linear] = nn.Linear
        self.first = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(LAYERS))
        if case.dtype == "autocast":
            linear = Float32Linear
        self.second = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(LAYERS))
        if case.oversized:
            # Without biases, so that the next gradient comes from the other tower.
            self.second[2] = linear(WIDTH, 4 * WIDTH, bias=False)
            self.second[3] = linear(4 * WIDTH, WIDTH, bias=False)
        if case.scalar:
            self.scale = nn.Parameter(torch.ones(1))
        if case.moe:
            self.first[2] = Mixture()
        if case.shared:
            self.second[2] = self.first[2]

    def forward(self, x: Tensor, streams: list[torch.Stream]) -> Tensor:
        """Return the loss of the inputs, (batch, width), with each tower on its stream."""
        current = get_accelerator().current_stream()
        outputs = [x, x]
        for stream in streams:
            _wait(stream, current)
        for number, layers in enumerate(zip(self.first, self.second, strict=True)):
            if number == LAYERS - 1 and hasattr(self, "scale"):
                with get_accelerator().stream(streams[0]):
                    outputs[0] = outputs[0] * self.scale
            for tower, (layer, stream) in enumerate(zip(layers, streams, strict=True)):
                with get_accelerator().stream(stream):
                    outputs[tower] = torch.tanh(layer(outputs[tower]))
        for stream in streams:
            _wait(current, stream)
        # A product: a sum would hand one and the same gradient to both streams.
        return (outputs[0].float() * outputs[1].float()).pow(2).sum()


class HostAdamW(torch.optim.AdamW):
    """AdamW with the argument that ZenFlow passes; DeepSpeed's own has to be compiled."""

    def step(self, closure: Any = None, step_id: int | None = None) -> Any:
        """Take a step."""
        return super().step(closure)


def _wait(stream: torch.Stream, other: torch.Stream) -> None:
    if stream != other:
        stream.wait_stream(other)


def use_memory(streams: list[torch.Stream]) -> None:
    """Allocate on each stream, as whoever prepares the next batch there might."""
    sizes = (WIDTH * WIDTH, BUCKET, 8 * WIDTH * WIDTH)
    for stream in streams:
        with get_accelerator().stream(stream):
            for numel in sizes:
                torch.zeros(numel, device=get_accelerator().current_device_name())


def config_of(case: Case) -> dict[str, Any]:
    """Return DeepSpeed's configuration."""
    zero: dict[str, Any] = {
        "stage": case.stage,
        "overlap_comm": case.overlap,
        "contiguous_gradients": case.contiguous,
        "reduce_scatter": case.reduce_scatter,
        "reduce_bucket_size": case.bucket,
    }
    # ZenFlow reads the settings of the optimizer that it is given here.
    config_optimizer: dict[str, Any] = {}
    if not case.multi_rank:
        zero["use_multi_rank_bucket_allreduce"] = False
    if case.persistence is not None:
        zero["stage3_param_persistence_threshold"] = case.persistence
    if case.reuse_distance is not None:
        zero["stage3_max_reuse_distance"] = case.reuse_distance
        # Parameters that are gathered ahead are kept for long.
        zero["stage3_prefetch_bucket_size"] = 0
    if case.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": case.pinned}
    if case.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": case.pinned}
    if case.zenflow:
        config_optimizer["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-2}}
        zero["zenflow"] = {
            "topk_ratio": 0.25,
            "select_strategy": "step",
            "select_interval": 2,
            "update_interval": 2,
            "full_warm_up_rounds": 0,
            "overlap_step": case.overlap_step,
        }
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": case.micro_batches,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": case.clip,
        "steps_per_print": 1 << 30,
        # From the third step on it would let the host wait for the device, twice a step.
        "timers": {"throughput": {"enabled": False}},
        **config_optimizer,
    }
    if case.dtype == "autocast":
        # A bucket for each of two dtypes.
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    elif case.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    elif case.dtype == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 1000}
    if case.communication:
        config["communication_data_type"] = case.communication
    if case.accumulate:
        config["data_types"] = {"grad_accum_dtype": case.accumulate}
    return config


def run(settings: Mapping[str, object]) -> None:
    """Train as ``settings`` say."""
    case = Case.of(settings)
    if case.skip_edge:
        from accel_streams.deepspeed._ordering import skip_edges

        skip_edges.add(case.skip_edge)
    accelerator = get_accelerator()
    accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    deepspeed.init_distributed()
    sides = [accelerator.Stream(), accelerator.Stream()] if case.producers == "sides" else []
    with accelerator.stream(accelerator.Stream() if case.whole else None):
        engine = make_engine(case, sides)
        train(case, engine, sides)
    accelerator.synchronize()


def make_engine(case: Case, sides: list[torch.Stream]) -> Any:
    """Return the engine, with the views dropped that would hide a second stream with hooks."""
    torch.manual_seed(0)
    # Made where it stays: to move a model may mean to make its parameters anew, and what DeepSpeed
    # has noted on those of an expert would be lost.
    with torch.device(get_accelerator().current_device_name()):
        model = Towers(case)
    model = model.to(_DTYPES.get(case.dtype, torch.float32))
    groups: Any = model.parameters()
    if case.moe:
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

        groups = split_params_into_different_moe_groups_for_optimizer(
            {"params": list(model.parameters()), "name": "parameters"}
        )
    # Up to 0.16.5 DeepSpeed keeps the nodes that it finds or makes, from the initialisation on.
    nodes = _hold_nodes(model, sides) if case.stage in (1, 2) else []
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=(HostAdamW if case.zenflow else torch.optim.AdamW)(groups, lr=1e-2),
        config=config_of(case),
    )
    if case.producers in ("sides", "freed"):
        # They keep the hooks of this rank's parameters on the stream of the initialisation.
        for index, param in enumerate(model.parameters()):
            mapping = getattr(param, "_hp_mapping", None)
            if mapping is not None and (case.producers == "sides" or index % 3):
                mapping.lp_fragment = mapping.lp_fragment.detach()
    del nodes
    return engine


def _hold_nodes(model: Towers, sides: list[torch.Stream]) -> list[Any]:
    """Return the node of each parameter's gradient, made on its tower's stream.

    A hook runs on the stream on which its parameter's node was made.
    """
    nodes: list[Any] = []
    for tower, stream in zip((model.first, model.second), sides, strict=bool(sides)):
        with get_accelerator().stream(stream):
            for param in tower.parameters():
                node: Any = param.view_as(param).grad_fn
                nodes.append(node.next_functions[0][0])
    return nodes


def train(case: Case, engine: Any, sides: list[torch.Stream]) -> None:
    """Take the steps."""
    accelerator = get_accelerator()
    outer = accelerator.current_stream()
    step_stream = outer
    if case.producers != "one":
        step_stream = accelerator.Stream()
        step_stream.wait_stream(outer)
    streams = sides or [step_stream, step_stream]
    with accelerator.stream(step_stream):
        for step in range(case.steps):
            for micro_batch, x in enumerate(_inputs(case, engine, step)):
                last = micro_batch == case.micro_batches - 1
                with engine.no_sync() if case.no_sync and not last else nullcontext():
                    loss = engine(x, streams)
                    if case.infinite_at == step:
                        loss = loss * float("inf")
                    engine.backward(loss)
                if case.use_memory:
                    use_memory([outer, step_stream, *streams])
                engine.step()
                if case.use_memory:
                    use_memory([outer, step_stream, *streams])


def _inputs(case: Case, engine: Any, step: int) -> Iterator[Tensor]:
    dtype = _DTYPES.get(case.dtype, torch.float32)
    for micro_batch in range(case.micro_batches):
        # Different on every rank and in every step: stale values must not look right.
        scale = 0.1 * (1 + step + micro_batch) + engine.global_rank
        x = torch.full((4, WIDTH), scale, dtype=dtype, device=engine.device)
        columns = torch.arange(WIDTH, dtype=dtype, device=engine.device) / 8
        rows = 1 + torch.arange(4, dtype=dtype, device=engine.device).unsqueeze(1) / 4
        yield x * columns * rows
