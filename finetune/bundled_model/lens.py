"""`python -m finetune.bundled_model.lens`: the Jacobian lens that ships with the bundled model.

It is computed on texts that the model itself writes, so that they are as its training texts are and
need no download. What is interrupted goes on when it is started again.
"""

from chatapp.engine.events import Token
from chatapp.engine.model import LanguageModel, Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED, BUNDLED_FOLDER, BUNDLED_LENS
from chatapp.lab.lens import LONGEST, compute_lens

TEXTS = 53


def sample_rows(model: LanguageModel, count: int) -> list[list[int]]:
    """Rows of `LONGEST` tokens: documents drawn at temperature 1, one after the other, with an
    end-of-text token before each.
    """
    start = [model.tokenizer.end_id]
    drawn: list[int] = []
    seed = 0
    while len(drawn) < count * LONGEST:
        sampling = Sampling(temperature=1.0, seed=seed, max_tokens=LONGEST)
        events = model.generate(Request(start, sampling))
        drawn += [*start, *(event.id for event in events if isinstance(event, Token))]
        seed += 1
    return [drawn[at : at + LONGEST] for at in range(0, count * LONGEST, LONGEST)]


def main() -> None:
    model = load_model(BUNDLED)
    compute_lens(
        model,
        sample_rows(model, TEXTS),
        BUNDLED_FOLDER / BUNDLED_LENS,
        lambda done, total: print(f"{done} of {total} texts", flush=True),
    )


if __name__ == "__main__":
    main()
