"""DeepSpeed's checks of the device's name: on a device that is not CUDA each works or is refused.

docs/vendors.md lists what follows for a vendor; a line that is no longer true fails here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("deepspeed")

import deepspeed
from deepspeed.accelerator import real_accelerator

from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.deepspeed._accelerator import GenericAccelerator

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("c++") is None, reason="the simulated device needs a C++ compiler"
    ),
]


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_accelerator, "ds_accelerator", GenericAccelerator(CpuFakeBackend()))


def module(name: str) -> Any:
    """Return a module of DeepSpeed's; skip where this release has none of that name."""
    try:
        return importlib.import_module(f"deepspeed.{name}")
    except ModuleNotFoundError as exc:
        if exc.name is None or not exc.name.startswith("deepspeed"):
            raise
        pytest.skip(f"DeepSpeed {deepspeed.__version__} has no {exc.name}")


def test_superoffload_is_refused_by_name() -> None:
    found = module("runtime.superoffload.superoffload_stage3")
    check = getattr(found, "_validate_superoffload_accelerator", None)
    if check is None:
        pytest.skip(f"DeepSpeed {deepspeed.__version__} does not ask")
    with pytest.raises(AssertionError, match="'fake'"):
        check()


def test_gds_is_refused_and_asynchronous_io_without_it_is_not() -> None:
    config = module("runtime.swap_tensor.aio_config")
    assert config.get_aio_config({"aio": {"queue_depth": 4}})["queue_depth"] == 4
    if not hasattr(config, "AIO_USE_GDS"):
        pytest.skip(f"DeepSpeed {deepspeed.__version__} has no GDS")
    with pytest.raises(AssertionError, match="CUDA"):
        config.get_aio_config({"aio": {"use_gds": True}})


def test_zenflow_with_zero3_still_asks_for_cuda() -> None:
    tree = ast.parse(inspect.getsource(module("runtime.zenflow.engine_stage3")))
    devices = [
        word.value.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg == "device" and isinstance(word.value, ast.Constant)
    ]
    assert devices, "it asks for the accelerator's device now: take the line out of the docs"
    assert set(devices) == {"cuda"}


def test_the_data_analyzer_takes_another_device_than_its_default() -> None:
    found = module("runtime.data_pipeline.data_sampling.data_analyzer")
    analyzer = found.DistributedDataAnalyzer
    assert inspect.signature(analyzer).parameters["device"].default == "cuda"
    tree = ast.parse(inspect.getsource(found))
    assert all(
        node.value != "cuda" or parent == "default"
        for node, parent in _constants(tree)
        if isinstance(node.value, str)
    )


def _constants(tree: ast.AST) -> list[tuple[ast.Constant, str]]:
    defaults = {
        id(default)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for default in [*function.args.defaults, *function.args.kw_defaults]
        if default is not None
    }
    return [
        (node, "default" if id(node) in defaults else "code")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
    ]


def test_deepcompile_is_not_there_and_says_so() -> None:
    found = module("compile.util")
    if not hasattr(found, "is_deepcompile_supported"):
        pytest.skip(f"DeepSpeed {deepspeed.__version__} does not ask")
    assert found.is_deepcompile_supported() is False


def test_torch_compile_is() -> None:
    from deepspeed.accelerator import get_accelerator

    compiled = torch.compile(lambda x: x * 2 + 1, backend="aot_eager")
    assert get_accelerator().get_compile_backend() == "aot_eager"
    assert compiled(torch.ones(3, device="fake")).tolist() == [3.0, 3.0, 3.0]


def test_graphs_of_the_hybrid_engine_are_refused_with_a_reason() -> None:
    graphs = module("runtime.hybrid_engine_graph")
    reason = graphs.validate_cuda_graph_support(SimpleNamespace(), 2)
    assert "CUDA" in reason


def test_the_environment_report_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    module("env_report").debug_report()
    assert "deepspeed install path" in capsys.readouterr().out


def test_quantized_linear_still_means_cuda_by_no_device() -> None:
    source = inspect.getsource(module("linear.quantization"))
    assert 'device = "cuda" if device is None else device' in source or (
        "get_accelerator" in source
    )


def test_the_page_names_each_place() -> None:
    page = (ROOT / "docs" / "vendors.md").read_text(encoding="utf-8")
    limits = page.partition("<!-- limits: begin -->")[2].partition("<!-- limits: end -->")[0]
    for place in (
        "superoffload_stage3.py",
        "aio_config.py",
        "zenflow/engine_stage3.py",
        "data_analyzer.py",
        "compile/util.py",
        "hybrid_engine_graph.py",
        "inference/engine.py",
        "comm/torch.py",
        "env_report.py",
        "linear/quantization.py",
    ):
        assert place in limits, place
