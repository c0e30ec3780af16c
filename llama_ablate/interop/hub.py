"""Send an exported model to a Hugging Face repository."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from llama_ablate.errors import ConfigError

T = TypeVar("T")


class Repository:
    """A repository of models that may not be there yet: `owner/name`."""

    def __init__(self, name: str, *, private: bool = False) -> None:
        """Raise ConfigError for a name that cannot be one."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils._validators import validate_repo_id

        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise ConfigError(f"--push {name}: {str(error).splitlines()[0]}") from None
        if "/" not in name:
            raise ConfigError(f"--push {name}: a repository is OWNER/NAME")
        self.name, self._private = name, private

    def check(self) -> None:
        """Ask who we are. Raises ConfigError, at once, without a token or a network."""
        from huggingface_hub import HfApi, get_token

        if get_token() is None:
            raise ConfigError(
                f"--push {self.name}: there is no token; set HF_TOKEN, or run 'hf auth login'"
            )
        self._called(HfApi().whoami)

    def push(self, folder: Path, message: str) -> str:
        """Upload a folder as one commit, and return the commit's address. Raises ConfigError."""
        from huggingface_hub import HfApi

        def upload() -> str:
            api = HfApi()
            api.create_repo(self.name, private=self._private, exist_ok=True)
            info = api.upload_folder(repo_id=self.name, folder_path=folder, commit_message=message)
            return str(info.commit_url)

        return self._called(upload)

    def _called(self, call: Callable[[], T]) -> T:
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            return call()
        except Exception as error:
            known = isinstance(error, HfHubHTTPError | OfflineModeIsEnabled | OSError)
            # Its HTTP client's errors have names that change with its version.
            if not known and not type(error).__module__.startswith(("httpx", "httpcore")):
                raise
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ConfigError(f"--push {self.name}: {reason}") from None
