from finetune.bundled_model.build import build
from finetune.recipes import run

if __name__ == "__main__":
    run(build)
