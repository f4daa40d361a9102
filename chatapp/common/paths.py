"""Locations of configuration, chats, caches and logs."""

import os
from pathlib import Path

import platformdirs

TEMPLATE_FILE = "chatapp_template.json"
"""The dialogue template that a model was trained with, stored next to its weights."""

RUN_RECORD = "run.json"
"""The file that a run of finetune writes into its folder before the first step."""

TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
"""A tokenizer's configuration on the hub, and the chat template: a file next to it, or one of its
keys.
"""

GGUF_TEMPLATE = "chatapp.template"
"""The key of a GGUF file for the dialogue template it was trained with; only this program reads it.
"""


def _folder(kind: str, default: Path) -> Path:
    home = os.environ.get("CHATAPP_HOME")
    return Path(home).expanduser().absolute() / kind if home else default


def config_dir() -> Path:
    """The folder of the settings file."""
    return _folder("config", platformdirs.user_config_path("chatapp", appauthor=False))


def prompts_dir() -> Path:
    """The folder of the user's prompt files, with the personas below it."""
    return config_dir() / "prompts"


def tools_dir() -> Path:
    """The folder of the user's tools."""
    return config_dir() / "tools"


def data_dir() -> Path:
    """The folder of the chats and the user's models."""
    return _folder("data", platformdirs.user_data_path("chatapp", appauthor=False))


def models_dir() -> Path:
    """The folder of the user's models, one folder each."""
    return data_dir() / "models"


def fetched_path() -> Path:
    """The record of the models that `models get` downloaded. The file may be missing."""
    return data_dir() / "fetched.json"


def used_models_path() -> Path:
    """The record of the models that were trained or used on this machine. It may be missing."""
    return data_dir() / "folders.json"


def cache_dir() -> Path:
    """The folder of files that can be made again."""
    return _folder("cache", platformdirs.user_cache_path("chatapp", appauthor=False))


def log_dir() -> Path:
    """The folder of log files."""
    return _folder("log", platformdirs.user_log_path("chatapp", appauthor=False))


def database_path() -> Path:
    """The file that holds all chats."""
    return data_dir() / "chats.db"


def drafts_dir() -> Path:
    """The folder of unsent drafts, one file per running program."""
    return data_dir() / "drafts"


def settings_path() -> Path:
    """The settings file. It may be missing."""
    return config_dir() / "settings.toml"


def guesses_path() -> Path:
    """What was guessed in lessons, as JSON Lines. The file may be missing."""
    return data_dir() / "guesses.jsonl"


def presets_path() -> Path:
    """The user's named sampling parameters. The file may be missing."""
    return data_dir() / "presets.json"


def background_path() -> Path:
    """The running server of this program, with its token. The file may be missing."""
    return data_dir() / "background.json"


def allowed_tools_path() -> Path:
    """The tools that the user allowed permanently. The file may be missing."""
    return data_dir() / "allowed_tools.json"


def trusted_folders_path() -> Path:
    """The folders whose code may run in training, one per line. The file may be missing."""
    return config_dir() / "trusted_folders.txt"


SERVERS = "servers.toml"
