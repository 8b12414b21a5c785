"""Made-up distributions that register backends, and the source of a backend for them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from accel_streams import _entry_points
from accel_streams._registry import GROUP

__all__ = ["BACKEND_SOURCE", "NOVA", "TORCH_NOVA", "Plugins"]

BACKEND_SOURCE = """
    from accel_streams import Capabilities, Ordering

    class Backend:
        name = "{name}"
        device_type = "{device_type}"
        api_version = 1
        capabilities = Capabilities(Ordering.SYNCHRONOUS)
        description = "a backend made up for a test"
        url = "https://example.com"
        current_stream = default_stream = new_stream = use_stream = new_event = record = None
        wait = query = synchronize = stream_id = keep_alive = accelerator = None

        def probe(self):
            {probe}
"""

# A device that torch accepts, without a line of C++: enough for everything but computing.
NOVA = """
    from accel_streams.backends.privateuse1 import PrivateUse1Backend

    class Backend(PrivateUse1Backend):
        name = "nova"
        device_type = "nova"
        module = "torch_nova"
        communication_backend = "gloo"
        visible_devices_env = "NOVA_VISIBLE_DEVICES"
        description = "a vendor's device"
        url = "https://example.com"
"""
TORCH_NOVA = """
import sys
import torch
torch.utils.rename_privateuse1_backend("nova")
torch._register_device_module("nova", sys.modules[__name__])
def is_available(): return True
def device_count(): return 4
def current_device(): return 0
class Event: pass  # torch has one for every device from 2.4 on
"""


class Plugins:
    """A folder of made-up distributions that register backends, importable by this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        attribute: str = "Backend",
    ) -> str:
        """Register a backend ``name`` whose module has ``source``; return the module's name."""
        owner = distribution or f"dist-{name}".replace("_", "-")
        module = f"plugin_{owner}_{name}".replace("-", "_").replace(".", "_")
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = self.folder / f"{owner.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {owner}\nVersion: {version}\n", encoding="utf-8"
        )
        with (info / "entry_points.txt").open("a", encoding="utf-8") as file:
            if not file.tell():
                file.write("[accel_streams.backends]\n")
            file.write(f"{name} = {module}:{attribute}\n")
        return module

    def entry_points(self) -> list[_entry_points.Registration]:
        """Return the entry points of these distributions alone."""
        return _entry_points.installed(GROUP, [str(self.folder)])
