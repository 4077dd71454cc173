"""The site: it is built strictly, and its start page shows the plan of the agent above."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from docs_pages import ROOT, pages, snippets_of

from flink_agents.plan import compile_agent
from flink_agents.plan.show import to_mermaid


def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    made = subprocess.run(
        [str(ROOT / "scripts" / "docs"), "--quiet", "build", "--strict", "--site-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert {"index.html", "reference.html", "mistakes.html"} <= {one.name for one in tmp_path.iterdir()}
    reference = (tmp_path / "reference.html").read_text(encoding="utf-8")
    assert "durable_execute_async" in reference and "recorded_calls" in reference
    assert '<pre class="mermaid">' in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_picture_of_the_start_page_is_that_of_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, picture = (one for one in snippets_of("docs/index.md")[:2])
    assert (shop.file_name, picture.language) == ("shop.py", "mermaid")
    (tmp_path / "shop_of_the_index.py").write_text(shop.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from shop_of_the_index import Shop  # pyright: ignore[reportMissingImports]

    assert to_mermaid(compile_agent(Shop)) == picture.text.rstrip()


def test_menu_names_pages_that_exist() -> None:
    text = re.sub(r"!!python/name:\S+", "''", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"])))
    there = {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}
    assert named <= there
