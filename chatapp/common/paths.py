"""Where configuration, chats, caches and logs live.

Keep: every file this program keeps for its user lies in one of these folders, and the environment
variable CHATAPP_HOME, when set, moves all of them below one folder. No function here creates
anything.
"""

import os
from pathlib import Path

import platformdirs

TEMPLATE_FILE = "chatapp_template.json"
"""The dialogue template a model was trained in; it lies beside the model's weights."""

RUN_RECORD = "run.json"
"""What a run of finetune writes into its folder before its first step."""

TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
"""What a tokenizer of the hub says of itself, and the chat template beside it: its own file, or
a key of the former."""

GGUF_TEMPLATE = "chatapp.template"
"""The key of a GGUF file, of this program alone, of the dialogue template it was trained in."""


def _folder(kind: str, default: Path) -> Path:
    home = os.environ.get("CHATAPP_HOME")
    return Path(home).expanduser().absolute() / kind if home else default


def config_dir() -> Path:
    """The folder of the settings file."""
    return _folder("config", platformdirs.user_config_path("chatapp", appauthor=False))


def prompts_dir() -> Path:
    """The folder of the user's own prompt files, with their personas below it."""
    return config_dir() / "prompts"


def tools_dir() -> Path:
    """The folder of the user's own tools."""
    return config_dir() / "tools"


def data_dir() -> Path:
    """The folder of the chats and of models the user keeps."""
    return _folder("data", platformdirs.user_data_path("chatapp", appauthor=False))


def models_dir() -> Path:
    """The folder of models the user keeps, one folder each."""
    return data_dir() / "models"


def fetched_path() -> Path:
    """The record of the models that `models get` brought. The file need not exist."""
    return data_dir() / "fetched.json"


def used_models_path() -> Path:
    """The record of the models that were made or used on this machine. It need not exist."""
    return data_dir() / "folders.json"


def cache_dir() -> Path:
    """The folder of what can be made again."""
    return _folder("cache", platformdirs.user_cache_path("chatapp", appauthor=False))


def log_dir() -> Path:
    """The folder of log files."""
    return _folder("log", platformdirs.user_log_path("chatapp", appauthor=False))


def database_path() -> Path:
    """The file that holds all chats."""
    return data_dir() / "chats.db"


def drafts_dir() -> Path:
    """The folder of what is being written, a file for each running program."""
    return data_dir() / "drafts"


def settings_path() -> Path:
    """The settings file. It need not exist."""
    return config_dir() / "settings.toml"


def presets_path() -> Path:
    """The parameters the user has given a name. The file need not exist."""
    return data_dir() / "presets.json"


def allowed_tools_path() -> Path:
    """The tools that the user has allowed for good. The file need not exist."""
    return data_dir() / "allowed_tools.json"


def trusted_folders_path() -> Path:
    """The folders whose code may run in training, one a line. The file need not exist."""
    return config_dir() / "trusted_folders.txt"


SERVERS = "servers.toml"
