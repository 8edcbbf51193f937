"""What an endpoint subscribes to, held against its protocol: topic filters of MQTT, subjects of NATS, topics of Kafka.

A text may be a template. Its placeholders stand for whatever a name may have at their place.
"""

# Small: lint and the start of a router both ask it.

from __future__ import annotations

import re
from typing import Final

MAX_MQTT_BYTES: Final = 65_535
MAX_KAFKA_CHARACTERS: Final = 249
SHARE: Final = "$share/"
PLACEHOLDER: Final = re.compile(r"\{[A-Za-z0-9_.\-]+\}", re.ASCII)
BLANK: Final = "{}"
"""Stands for a placeholder while a text is split into tokens, since its name may have dots."""
_KAFKA_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_SPACES: Final = re.compile(r"[\x00-\x20\x7f]")


def filter_fault(text: str) -> str:
    """Return what makes *text* no topic filter, shared or not (MQTT 5.0 sections 4.7 and 4.8.2); empty for one."""
    if PLACEHOLDER.fullmatch(text):
        return ""
    plain = unshared(text)
    if text.startswith(SHARE) and (plain == text or not plain):
        return "a shared subscription is $share/<group>/<filter>"
    fault = mqtt_text_fault(plain)
    if fault:
        return fault
    levels = ["+" if PLACEHOLDER.search(level) else level for level in plain.split("/")]
    for place, level in enumerate(levels):
        if level == "#" and place == len(levels) - 1:
            continue
        if "#" in level or ("+" in level and level != "+"):
            return "+ stands alone in its level, # alone in the last one"
    return ""


def unshared(text: str) -> str:
    """Return the filter within a shared subscription; any other text as it is."""
    if not text.startswith(SHARE):
        return text
    group, slash, plain = text[len(SHARE) :].partition("/")
    return plain if slash and group and "+" not in group and "#" not in group else text


def mqtt_text_fault(text: str) -> str:
    """Return what makes *text* neither topic nor filter of MQTT; empty when nothing does."""
    if not text:
        return "it is empty"
    if "\0" in text:
        return "it holds U+0000"
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "it holds half a surrogate pair"
    return f"it has {size} bytes, {MAX_MQTT_BYTES} are the most" if size > MAX_MQTT_BYTES else ""


def subject_fault(text: str) -> str:
    """Return what makes *text* no subject that NATS lets anybody subscribe to; empty for one."""
    plain = PLACEHOLDER.sub(BLANK, text)
    if _SPACES.search(plain):
        return "a subject has no spaces or control characters"
    tokens = plain.split(".")
    if "" in tokens:
        return "none of its tokens is empty, so that no dot begins or ends it or follows another"
    return "> stands in the last token only" if ">" in tokens[:-1] else ""


def topic_fault(text: str) -> str:
    """Return what makes *text* no name of a Kafka topic; empty for one."""
    plain = PLACEHOLDER.sub("x", text)
    if plain in (".", "..") or not _KAFKA_NAME.fullmatch(plain):
        return "the name of a topic has letters, digits, '.', '_' and '-' alone, and is neither . nor .."
    return f"it has more than {MAX_KAFKA_CHARACTERS} characters" if len(plain) > MAX_KAFKA_CHARACTERS else ""
