"""What git says of the code that results were made on."""

import subprocess
from pathlib import Path

from orchestrator.driver.facts import git_commit


def test_the_commit_is_known_with_a_plus_for_changes_and_no_lock_is_taken(tmp_path: Path, monkeypatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.chdir(tmp_path)
    assert git_commit() == ""
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    assert git_commit() == commit
    (tmp_path / "file").write_text("two")
    (tmp_path / ".git" / "index").chmod(0o444)
    before = (tmp_path / ".git" / "index").stat().st_mtime_ns
    assert git_commit() == f"{commit}+"
    assert (tmp_path / ".git" / "index").stat().st_mtime_ns == before
