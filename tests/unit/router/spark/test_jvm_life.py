"""What pyspark prints past the logs when the JVM has gone: nothing."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pyspark.util
import pytest
from pyspark.serializers import CloudPickleSerializer

from router.spark.session import silence_pyspark


class OfTheJvm:
    """Asks a JVM that is gone for its number, as a broadcast does."""

    def __reduce__(self) -> str:
        raise ConnectionResetError("the JVM is gone")


def pickled(value: object) -> Any:
    serializer: Any = CloudPickleSerializer()
    return serializer.dumps(value)


def test_pickling_what_needs_the_jvm_raises_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pyspark.util, "print_exec", pyspark.util.print_exec)
    with pytest.raises(pickle.PicklingError):
        pickled(OfTheJvm())
    assert "Traceback" in capfd.readouterr().err

    silence_pyspark(SimpleNamespace(_accumulatorServer=SimpleNamespace()))
    with pytest.raises(pickle.PicklingError, match="the JVM is gone"):
        pickled(OfTheJvm())
    assert capfd.readouterr() == ("", "")
