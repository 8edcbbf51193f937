"""What the JVM prints while it starts, where lines are handed on: nothing waits for it, and nothing of it is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SECONDS: Final = 60.0
LINES: Final = 3000
"""More of them than a pipe holds."""
SUBMIT: Final = f"""#!/bin/sh
i=0
while [ $i -lt {LINES} ]; do echo "line $i of those that say why it does not start" >&2; i=$((i+1)); done
exit 1
"""
START: Final = """
import sys
from pathlib import Path
from pyspark.errors import PySparkRuntimeError
from router.logs import configure_logs
from router.settings import LogSettings
from router.spark.session import launch_jvm
configure_logs(LogSettings(format="json"))
try:
    launch_jvm({}, Path(sys.argv[1]), relayed=True)
except PySparkRuntimeError:
    print("ended")
"""


@pytest.mark.slow
def test_a_start_that_prints_much_and_fails_is_told_whole(tmp_path: Path) -> None:
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(SUBMIT)
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, str(tmp_path / "state")],
        env={**os.environ, "SPARK_HOME": str(tmp_path / "spark")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr[-3000:]
    printed = [json.loads(line) for line in done.stderr.splitlines()]
    told = [event["line"] for event in printed if event["event"] == "printed by the JVM"]
    assert told == [f"line {number} of those that say why it does not start" for number in range(LINES)]
