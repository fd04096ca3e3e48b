"""What every test of the project may use.

pytester forgets what an inner pytest imported, and torch does not survive a second import; what
inner runs import is therefore imported here, once. It also lets them share one zygote.
"""

import hypothesis
import torch.distributed  # noqa: F401

import perfgate.fixture
import perfgate.gate.schema
import perfgate.plugin
import perfgate.ranktest
import perfgate.report.progress
import perfgate.report.sinks
import perfgate.report.terminal
import perfgate.world.pool  # noqa: F401

pytest_plugins = ["pytester"]

# Ranks and busy machines have deadlines of their own; an example has none.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")
