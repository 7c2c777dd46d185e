"""The page to try the service: one file, no script from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

__all__ = ["page"]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>CommonGround: try a model</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
label {{ display: block; margin-top: 1rem; font-weight: 600; }}
input, textarea {{ width: 100%; box-sizing: border-box; font: 14px/1.4 ui-monospace, monospace; padding: .5rem; }}
button {{ margin-top: 1rem; font: inherit; padding: .4rem 1.2rem; }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto; }}
</style></head><body>
<h1>Ask your model</h1>
<p>Each client has a token and is answered by its own model alone.</p>
<form id="ask">
<label for="token">Token</label><input id="token" type="password" autocomplete="off" required>
<label for="rows">Rows, as JSON</label><textarea id="rows" rows="8">{example}</textarea>
<button>Predict</button>
</form>
<h2>Answer</h2><pre id="answer" aria-live="polite">–</pre>
<p><a href="openapi.json">openapi.json</a> · <a href="health">health</a> · <a href="metrics">metrics</a></p>
<script>
document.getElementById("ask").addEventListener("submit", async (event) => {{
  event.preventDefault();
  const answer = document.getElementById("answer");
  try {{
    const rows = JSON.parse(document.getElementById("rows").value);
    const response = await fetch("v1/predict", {{
      method: "POST",
      headers: {{
        "content-type": "application/json",
        authorization: "Bearer " + document.getElementById("token").value,
      }},
      body: JSON.stringify({{ rows }}),
    }});
    answer.textContent = JSON.stringify(await response.json(), null, 2);
  }} catch (error) {{
    answer.textContent = String(error);
  }}
}});
</script></body></html>
"""


def page(example: Any) -> str:
    """The page.

    Args:
        example: a row of the right form, its cells empty.
    """
    return _PAGE.format(example=escape(json.dumps([example], indent=1, ensure_ascii=False)))
