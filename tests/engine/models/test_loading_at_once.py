"""Models that are loaded on several threads at once, as a chat's own and its reward model are."""

from concurrent.futures import ThreadPoolExecutor

import tiny

from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.models.resolving import find_model


def test_models_are_whole_that_are_loaded_at_once(tmp_path):
    files = find_model(str(tiny.write_tiny_gpt2(tmp_path / "model")))
    with ThreadPoolExecutor(4) as threads:
        models = [*threads.map(load_causal, [files] * 8)]
    for model in models:
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
