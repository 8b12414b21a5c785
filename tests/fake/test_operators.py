# mypy: disable-error-code="attr-defined, no-untyped-call, union-attr, operator"
# torch.fake comes into being at run time; some of torch's methods have no types; a gradient and a
# module's parts may be None or a Tensor to torch's types, and never are here.
"""Operators: right values, nothing that waits unasked, and clear errors."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from accel_streams import fake

TO_HOST = "aten::copy_ (device to host)"
SCALAR = "aten::_local_scalar_dense"


class Block(nn.Module):
    """A GPT block with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embed(tokens)))
        loss: torch.Tensor = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        return loss


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def train(dtype: torch.dtype, optimizer: str, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = GPT().to("fake", dtype)
    optim = OPTIMIZERS[optimizer](model.parameters())
    tokens = torch.arange(10, device="fake").view(2, 5)
    for _ in range(steps):
        optim.zero_grad()
        model(tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_a_gpt_makes_the_host_wait_for_nothing(dtype: torch.dtype, optimizer: str) -> None:
    train(dtype, optimizer)
    assert fake.synchronizing_ops() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_gives_the_same_bits_under_every_schedule(dtype: torch.dtype) -> None:
    results = []
    for name in fake.SCHEDULES:
        fake.set_schedule(name, seed=3)
        results.append([p.cpu() for p in train(dtype, "adamw")])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_training_gives_what_the_cpu_gives() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = GPT().eval().to(device)  # without dropout: the generators differ
        # Not Adam: it makes large steps of gradients that are zero but for rounding.
        optim = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(3):
            optim.zero_grad()
            model(torch.arange(10, device=device).view(2, 5)).backward()
            optim.step()
        return [p.detach().cpu() for p in model.parameters()]

    torch.testing.assert_close(run("fake"), run("cpu"))


def test_random_numbers_depend_on_the_seed_and_not_on_the_schedule(schedule: str) -> None:
    torch.manual_seed(5)
    mixed = []
    for _ in range(3):
        stream = torch.fake.Stream()
        with torch.fake.stream(stream):
            mixed.append(
                F.dropout(torch.ones(32, device="fake"), 0.5) + torch.rand(32, device="fake")
            )
        torch.fake.current_stream().wait_stream(stream)
    drawn = torch.cat([m.cpu() for m in mixed])
    fake.set_schedule("in-order")
    torch.manual_seed(5)
    again = torch.cat(
        [
            (F.dropout(torch.ones(32, device="fake"), 0.5) + torch.rand(32, device="fake")).cpu()
            for _ in range(3)
        ]
    )
    assert torch.equal(drawn, again)


def test_generators_save_and_restore() -> None:
    state = torch.fake.get_rng_state()
    first = torch.randn(8, device="fake").tolist()
    assert torch.randn(8, device="fake").tolist() != first
    torch.fake.set_rng_state(state)
    assert torch.randn(8, device="fake").tolist() == first
    own = torch.Generator("fake").manual_seed(3)
    assert torch.randn(4, device="fake", generator=own).shape == (4,)
    with pytest.raises(RuntimeError, match="generator of the fake device"):
        torch.zeros(4, device="fake").normal_(generator=torch.Generator())


def test_random_numbers_leave_the_cpus_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    F.dropout(torch.ones(32, device="fake"), 0.5).cpu()
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(
    ("what", "counted"),
    [
        (lambda x: x.sum().item(), {SCALAR: 1}),
        (lambda x: x.cpu(), {TO_HOST: 1}),
        (lambda x: bool((x > 0).all()), {SCALAR: 1}),
        (lambda x: x.nonzero(), {"aten::nonzero": 1}),
        (lambda x: torch.equal(x, x), {"aten::equal": 1}),
        (lambda x: x.masked_select(x > 0), {"aten::masked_select": 1}),
        (lambda x: x[x.long()], {}),
        (lambda x: x + 1.5 * x - x / 2, {}),
        (lambda x: x.to(torch.bfloat16).float(), {}),
        (lambda x: torch.stack([x, x]).mean(0), {}),
    ],
)
def test_what_waits_is_counted_by_name(
    what: Callable[[torch.Tensor], object], counted: dict[str, int]
) -> None:
    what(torch.arange(6.0, device="fake") % 6)
    assert fake.synchronizing_ops() == counted


def test_masks_as_indices() -> None:
    x = torch.arange(6.0, device="fake")
    assert x[x > 2].tolist() == [3, 4, 5]
    x[x > 3] = 0
    assert x.tolist() == [0, 1, 2, 3, 0, 0]


def test_out_arguments_get_their_size() -> None:
    x, out = torch.ones(3, device="fake"), torch.empty(0, device="fake")
    torch.add(x, x, out=out)
    assert out.tolist() == [2.0] * 3


def test_conjugate_views_copy() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], device="fake")
    assert x.conj().clone().cpu().tolist() == [1 - 2j, 3 + 1j]
    assert torch.view_as_real(x).shape == (2, 2)


def test_an_index_out_of_range_is_reported_where_it_was_submitted() -> None:
    fake.start_trace()
    try:
        F.embedding(torch.tensor([9], device="fake"), torch.ones(4, 2, device="fake"))
        with pytest.raises(RuntimeError, match=r"index_select.*index out of range") as caught:
            torch.fake.synchronize()
    finally:
        fake.stop_trace()
    assert "test_operators.py:" in str(caught.value)
    assert "frame #" not in str(caught.value)
    torch.fake.synchronize()  # reported once; the device goes on


def test_an_operator_that_the_device_cannot_run_says_so() -> None:
    lstm = nn.LSTM(4, 4).to("fake")
    with pytest.raises(NotImplementedError, match="has none: move this part"):
        lstm(torch.ones(2, 1, 4, device="fake"))


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match=r"same device|one device|on the CPU"):
        torch.ones(3, device="fake") + torch.ones(3)
    with pytest.raises(RuntimeError, match=r"same device|one device"):
        torch.ones(3, device="fake:0") + torch.ones(3, device="fake:1")
    assert (torch.ones(3, device="fake") + torch.tensor(2.0)).tolist() == [3.0] * 3


def test_the_host_may_change_a_scalar_after_the_call() -> None:
    scalar = torch.tensor(2.0)
    with fake.hold(torch.fake.current_stream()):
        result = torch.ones(3, device="fake") * scalar
        scalar.fill_(100)
    assert result.tolist() == [2.0] * 3


def test_bf16_layer_norm_keeps_the_cpus_types() -> None:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    weight, bias = torch.ones(8).bfloat16(), torch.zeros(8).bfloat16()
    expected = torch.native_layer_norm(x, [8], weight, bias, 1e-5)
    got = torch.native_layer_norm(x.to("fake"), [8], weight.to("fake"), bias.to("fake"), 1e-5)
    assert [t.dtype for t in got] == [t.dtype for t in expected]
    torch.testing.assert_close([t.cpu() for t in got], list(expected))


def test_convolutions_run() -> None:
    conv = nn.Conv2d(2, 3, 3)
    x = torch.randn(1, 2, 5, 5)
    expected = conv(x)
    expected.sum().backward()
    gradient = conv.weight.grad
    moved = copy.deepcopy(conv).to("fake")
    moved.zero_grad()
    result = moved(x.to("fake"))
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(moved.weight.grad.cpu(), gradient)
    torch.testing.assert_close(moved.bias.grad.cpu(), conv.bias.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    def gradients(use: bool) -> torch.Tensor:
        torch.manual_seed(0)
        block = Block(8).to("fake")
        x = torch.randn(2, 4, 8, device="fake", requires_grad=True)
        y = checkpoint(block, x, use_reentrant=reentrant) if use else block(x)
        y.sum().backward()
        return block.out.weight.grad.cpu()

    assert torch.equal(gradients(False), gradients(True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, which warns of itself
def test_torch_compile_gives_the_same_gradients(backend: str) -> None:
    def gradients(compiled: bool) -> torch.Tensor:
        torch.manual_seed(0)
        first = nn.Linear(8, 8)
        model = nn.Sequential(first, nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).to("fake")
        run = torch.compile(model, backend=backend) if compiled else model
        run(torch.randn(4, 8, device="fake")).pow(2).sum().backward()
        return first.weight.grad.cpu()

    torch._dynamo.reset()
    torch.testing.assert_close(gradients(True), gradients(False))


def test_autocast_and_grad_scaler() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).to("fake")
    with torch.autocast("fake", dtype=torch.bfloat16):
        assert model[0](torch.ones(2, 8, device="fake")).dtype == torch.bfloat16
        assert model(torch.ones(2, 8, device="fake")).dtype == torch.float32
        assert (torch.ones(2, device="fake") + torch.ones(2, device="fake")).dtype == torch.float32
    scaler = torch.amp.GradScaler("fake", init_scale=4.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].bias.detach().cpu()
    scaler.scale(model(torch.ones(2, 8, device="fake")).pow(2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model[0].bias.detach().cpu())


def test_tensors_save_print_and_copy() -> None:
    model = nn.Linear(3, 3).to("fake")
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    stored.seek(0)
    loaded = torch.load(stored)
    assert loaded["weight"].device == torch.device("fake:0")
    assert torch.equal(loaded["weight"].cpu(), model.weight.detach().cpu())
    assert "device='fake:0'" in repr(model.weight)
    assert torch.equal(copy.deepcopy(model).bias.detach().cpu(), model.bias.detach().cpu())


def test_backward_runs_on_the_forwards_stream_and_the_caller_is_ordered_after_it(
    schedule: str,
) -> None:
    side = torch.fake.Stream()
    weight = torch.ones(16, device="fake", requires_grad=True)
    seen: list[torch.Stream] = []
    weight.register_post_accumulate_grad_hook(lambda _: seen.append(torch.fake.current_stream()))
    side.wait_stream(torch.fake.current_stream())
    with torch.fake.stream(side):
        loss = (weight * 3).sum()
    torch.fake.current_stream().wait_stream(side)
    loss.backward()
    assert weight.grad.cpu().tolist() == [3.0] * 16
    assert seen == [side]
