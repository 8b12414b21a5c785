"""Train as a JSON object says: what ``explore_matrix.py`` explores.

The program is that of the hazards' scenarios; the object has its settings.
"""

from __future__ import annotations

import json
import sys

from accel_streams.hazards.scenarios import _train

_train.run(json.loads(sys.argv[1]))
