"""`python -m finetune`, which torchrun needs."""

from finetune.cli import main

main()
