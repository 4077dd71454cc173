"""The site: it is built strictly, and its start page shows the plan of its agent."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from docs_pages import ROOT, pages, snippets_of
from test_docs_snippets import matches

from flink_agents.plan import compile_agent
from flink_agents.plan.show import to_text


def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    result = subprocess.run(
        [str(ROOT / "scripts" / "docs"), "--quiet", "build", "--strict", "--site-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert {"index.html", "reference.html", "mistakes.html"} <= {path.name for path in tmp_path.iterdir()}
    reference = (tmp_path / "reference.html").read_text(encoding="utf-8")
    assert "durable_execute_async" in reference and "recorded_calls" in reference
    commands = (tmp_path / "cli.html").read_text(encoding="utf-8")
    assert "flink-agents journal replay" in commands and "--allow-non-restored-state" in commands
    drawn_online = [
        page.name for page in tmp_path.rglob("*.html") if 'class="mermaid"' in page.read_text("utf-8")
    ]
    assert not drawn_online, "Mermaid needs a network"
    assert (tmp_path / "pictures" / "overview.svg").is_file()


def test_plan_on_the_start_page_is_that_of_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, shown = (snippet for snippet in snippets_of("docs/index.md")[:2])
    assert (shop.file_name, shown.language) == ("shop.py", "text")
    (tmp_path / "shop_of_the_index.py").write_text(shop.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from shop_of_the_index import Shop  # pyright: ignore[reportMissingImports]

    assert matches(to_text(compile_agent(Shop)), shown.text)


def test_menu_names_pages_that_exist() -> None:
    text = re.sub(r"!!python/name:\S+", "''", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"])))
    there = {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}
    assert named <= there
