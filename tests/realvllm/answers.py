"""Print what a server answers to the requests of a table.

python tests/realvllm/answers.py tests/engine/vllm_0_32_answers.json http://127.0.0.1:8000 > fresh.json
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def main() -> None:
    """Write the table with fresh answers to standard output."""
    table, url = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2].rstrip("/")
    rows = [json.dumps(_asked(row, url)) for row in table["answers"]]
    sys.stdout.write(
        f'{{"vllm": {json.dumps(_version(url))}, "answers": [\n  ' + ",\n  ".join(rows) + "\n]}\n"
    )


def _asked(row: dict[str, Any], url: str) -> dict[str, Any]:
    body = None
    if "raw" in row:
        body = row["raw"].encode("latin-1")
    elif "json" in row:
        body = json.dumps(_full(row["json"])).encode()
    headers = {"Content-Type": "application/json"} if body is not None else {}
    request = urllib.request.Request(url + row["path"], data=body, headers=headers, method=row["method"])
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, kind, text = answer.status, answer.headers.get("Content-Type"), answer.read()
    except urllib.error.HTTPError as refused:
        status, kind, text = refused.code, refused.headers.get("Content-Type"), refused.read()
    asked = {key: row[key] for key in ("method", "path", "raw", "json") if key in row}
    return asked | {"status": status, "type": kind, "text": text.decode(errors="replace")}


def _full(body: dict[str, Any]) -> dict[str, Any]:
    """A long prompt of ids stands in the table as `1000 ids`."""
    prompt = str(body.get("prompt"))
    return body | {"prompt": [5] * int(prompt.split(maxsplit=1)[0])} if prompt.endswith(" ids") else body


def _version(url: str) -> str:
    with urllib.request.urlopen(f"{url}/version", timeout=60) as answer:
        return str(json.load(answer)["version"])


if __name__ == "__main__":
    main()
