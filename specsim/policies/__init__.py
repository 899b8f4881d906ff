"""How many tokens to draft for the next round, from what an engine can see: one module a policy, and their registry.

Models: rules of engines and of papers behind one interface (`specsim.policies.base.Policy`).
Leaves out: output lengths and coming acceptance, which no policy can reach. Numbers: the user's, or stated in a module.
"""

from specsim.policies.base import Ahead, EngineView, Observed, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.registry import KINDS, kind_of, make_policy, parse_policy, register, unregister
from specsim.policies.spec import PolicySpec

__all__ = [
    "KINDS",
    "Ahead",
    "EngineView",
    "Observed",
    "Policy",
    "PolicyKind",
    "PolicySpec",
    "kind_of",
    "make_policy",
    "parse_policy",
    "register",
    "unregister",
]
