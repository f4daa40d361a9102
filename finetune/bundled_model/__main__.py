from finetune.bundled_model.documents import build
from finetune.recipes import run

if __name__ == "__main__":
    run(build)
