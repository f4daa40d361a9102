"""GGUF files, the format of llama.cpp: metadata, configuration, tensors, tokenizer."""
