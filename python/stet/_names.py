"""The names of arguments in errors. The library's errors name fields as C does."""
from __future__ import annotations

from typing import Dict, Tuple

# Names of the package's arguments for fields of the library's errors, by function; "" is any.
_ARGUMENTS: Dict[str, Dict[str, str]] = {
    "": {"token id": "id", "from position": "position"},
    "stet_session_set_key": {"key": "x"},
    "stet_session_set_value": {"value": "x"},
    "stet_session_set_kv": {"values": "x", "key": "x", "value": "x", "positions": "begin"},
    "stet_session_attach_callback": {"callback": "points"},
    "stet_session_zero_kv": {"positions": "begin"},
    "stet_session_scale_kv": {"positions": "begin"},
    "stet_session_copy_kv": {"positions": "begin", "from": "source"},
    "stet_session_set_stop_strings": {"stop": "stop_strings"},
    "stet_sampler_probabilities": {"out": "logits"},
}


def named(function: str, message: str, file: str, field: str, *parts: str) -> Tuple[str, ...]:
    """Returns the parts of an error with the package's name of the argument as its field."""
    if parts and parts[0].startswith("a call after "):  # the field is the function
        return (message, file, field) + parts
    names = {**_ARGUMENTS[""], **_ARGUMENTS.get(function, {})}
    end = len(field) - len(field.lstrip("abcdefghijklmnopqrstuvwxyz-_ "))
    own = names.get(field[:end], field[:end]) + field[end:]
    if own != field:
        message = message.replace(field + ":", own + ":", 1)
    return (message, file, own) + parts
