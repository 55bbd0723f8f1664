"""A page in a real headless browser, and what it looks like there."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROBE = """
<script>
const out = { errors: window.problems, hacked: "hacked" in window };
out.requests = performance.getEntriesByType("resource").map(e => e.name);
out.figures = [...document.querySelectorAll("figure > svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll("path,use")].map(p => p.getBBox()).filter(b => b.width + b.height > 0).length;
  const bars = [...svg.querySelectorAll("path")].filter(p => p.getBBox().width > 20 && p.getBBox().height > 5).length;
  return { width: box.width, height: box.height, bars, marks, ink: getComputedStyle(svg.querySelector("text")).fill };
});
out.page = getComputedStyle(document.body).backgroundColor;
const table = document.querySelector("table");
const column = n => [...table.tBodies[0].rows].map(r => r.cells[n].textContent);
out.sorted = [];
for (const n of [1, 1, 2, 0]) {
  if (n >= table.tHead.rows[0].cells.length) continue;
  table.tHead.rows[0].cells[n].querySelector("button").click();
  out.sorted.push(column(n));
}
const pre = document.createElement("pre");
pre.id = "probe"; pre.textContent = JSON.stringify(out); document.body.append(pre);
</script></body>"""


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium: .ci/run installs it")
        pytest.skip("no chromium here; CI has one")
    return found


def seen_by_browser(page: str, folder: Path, *flags: str) -> dict[str, Any]:
    """What the browser made of a page: errors, requests, figures with their sizes and marks, columns after clicks.

    Fails where the console says anything. Skips without a browser, but in CI fails.
    """
    path = folder / "page.html"
    head = "<head><script>window.problems=[];addEventListener('error',e=>problems.push(String(e.message)));"
    head += "addEventListener('securitypolicyviolation',e=>problems.push(e.violatedDirective+e.blockedURI))</script>"
    path.write_text(page.replace("<head>", head, 1).replace("</body>", PROBE, 1), encoding="utf-8")
    done = subprocess.run(
        [
            *(browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
            *("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"),
            *(f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ":CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen
