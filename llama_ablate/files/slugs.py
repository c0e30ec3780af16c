"""Convert labels to slugs, which are safe parts of file names."""

import hashlib
import re

#: Characters that a slug does not contain: all but letters and digits, and accented Latin letters.
_NOT_KEPT = re.compile("[\\W_\x80-\u036f\u1e00-\u1eff]+")


def slug(text: str, longest: int = 40) -> str:
    """Convert a label to a part of a file name.

    The result has at most `longest` bytes, not counting a hash. Accented Latin letters are left
    out. A hash is added only to labels with letters of other scripts, and to labels of which no
    character remains.

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
