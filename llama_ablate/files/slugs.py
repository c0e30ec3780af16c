"""Names that users give, as pieces of file names."""

import hashlib
import re

#: What no file's name keeps: all but letters and digits, and Latin letters with accents.
_NOT_KEPT = re.compile("[\\W_\x80-\u036f\u1e00-\u1eff]+")


def slug(text: str, longest: int = 40) -> str:
    """Turn a label into a safe piece of a file name, of at most `longest` bytes and a hash.

    Only what holds letters of other scripts than Latin has a hash: their marks are not kept.

    >>> slug("RoPE theta=500000")
    'rope-theta-500000'
    >>> slug("нормы")
    'нормы-7567a6'
    """
    kept = _NOT_KEPT.sub("-", text.lower()).strip("-").encode()[:longest].decode(errors="ignore")
    name = kept.strip("-") or "x"
    sha = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return name if name.isascii() else f"{name}-{sha[:6]}"
