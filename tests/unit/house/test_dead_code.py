"""Every function, class, property and constant is used outside the tests, or stands below with the reason.

Names, not places, so that moving code changes nothing here.
"""

from __future__ import annotations

from pathlib import Path

import vulture

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "tuner/breakeven",
    "tuner/breakeven_sim",
    "operator/breakeven_operator",
    "localcluster",
    "demo",
    "real",
    "shipping",
    "validation",
)
# Called by what they decorate for.
DECORATORS = ["@*.command*", "@*.group*", "@*_validator", "@*_serializer", "@*.callback", "@kopf.on.*"]

CALLED_FROM_OUTSIDE = {
    "__getattr__",  # by Python, when a name that a package imports on use is read
    "gpu_platform",  # by vLLM, which finds it as a platform plugin
    "find_spec",  # by Python's imports
    "model_post_init",  # by pydantic, when it has made an object
    *("changes_since", "to_frame"),  # by users of the library, from `import breakeven`
    "log_message",  # by the server of the standard library
    "fetch",  # by kopf: of the session, and of where it keeps an object's last version
    "iter_chunked",
    "format_commands",  # by click, to write --help
    "list_commands",
    "ignore_aliases",  # by PyYAML, to write YAML without anchors
    "stop_process",  # by the cluster tests: what the one-machine cluster is for
    "restart_process",
    "load_rules",
}
# Values of a field: users write them, the code asks for the others.
VALUES = {"DENSE"}


def test_nothing_is_unused_but_what_is_listed():
    scan = vulture.Vulture(ignore_decorators=DECORATORS)
    scan.scavenge([str(ROOT / package) for package in PACKAGES])
    unused = {
        item.name
        for item in scan.get_unused_code(min_confidence=60)
        # Fields of models and attributes of foreign objects are written here and read elsewhere.
        if item.typ not in {"variable", "attribute"} or (item.typ == "variable" and item.name.isupper())
    }
    assert unused - CALLED_FROM_OUTSIDE - VALUES == set()
