"""Let DeepSpeed 0.14 be imported beside a recent torch and numpy.

It imports two names that are gone, for its elastic agent and its autotuner, which no training uses.
"""

from __future__ import annotations

from types import ModuleType

import wrapt


def _put(module: str, attribute: str) -> None:
    def hook(imported: ModuleType) -> None:
        if not hasattr(imported, attribute):
            setattr(imported, attribute, None)

    wrapt.register_post_import_hook(hook, module)


_put("torch.distributed.elastic.agent.server.api", "_get_socket_with_port")
_put("numpy", "BUFSIZE")
