"""Short digests of prompts and models, so that a run is never continued with other ones.

Keep: whatever changes an answer changes the digest; names and places do not.
"""

import hashlib
import json

from chatapp.prompting.promptfile import PromptFile


def prompt_identity(prompt: PromptFile) -> str:
    """Twelve hex digits over what a prompt file makes of an input."""
    keys: dict[str, object] = {
        "text": prompt.text,
        "layout": [
            prompt.instruction,
            prompt.input_prefix,
            prompt.output_prefix,
            prompt.separator,
        ],
        "stop": prompt.stop,
        "labels": prompt.labels,
        "select": prompt.select.model_dump(),
        "scoring": prompt.scoring,
        "generate": dict(prompt.generate),
    }
    if prompt.style != "text":  # as it was before there was a choice
        keys["style"] = prompt.style
    if prompt.documents is not None:
        keys["documents"] = prompt.documents.to_dict()
    digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode())
    for text in (*prompt.pool.inputs, *prompt.pool.outputs):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:12]
