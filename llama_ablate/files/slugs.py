"""Slugs: labels as parts of file names."""

import hashlib
import re

#: Characters that a file name does not keep: all but letters and digits; also accented Latin ones.
_NOT_KEPT = re.compile("[\\W_\x80-\u036f\u1e00-\u1eff]+")


def slug(text: str, longest: int = 40) -> str:
    """Turn a label into a part of a file name: at most `longest` bytes, and perhaps a hash.

    Only labels with letters of other scripts than Latin get a hash, as their marks are not kept,
    and those of which nothing is kept.

    >>> slug("RoPE theta=500000")
    'rope-theta-500000'
    >>> slug("нормы")
    'нормы-7567a6'
    >>> slug("é") == slug("ü")
    False
    """
    cleaned = _NOT_KEPT.sub("-", text.lower()).strip("-").encode()[:longest].decode(errors="ignore")
    name = cleaned.strip("-")
    if name and name.isascii():
        return name
    sha = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return f"{name or 'x'}-{sha[:6]}"
