"""What a reply may look like: a JSON schema, a regular expression or a Lark grammar.

    constraint = Constraint.of_schema({"type": "object", "required": ["city"]})
    for event in model.generate(Request(ids, sampling, constraint=constraint)): ...

`of_pattern(text)` and `of_grammar(text)` take the other two. Making one raises `ConstraintError`,
which is a `UserError` and a `ValueError`, with one sentence that names the part that cannot be
used. `LanguageModel.generate` raises it, too, for a model whose tokenizer cannot be constrained.
`Finished.valid` says whether the whole reply fits, and then `Finished.message` says why it does
not; each `Token` has `forced` and `forbidden`.
"""
