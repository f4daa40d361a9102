"""How a model is trained, step by step, for every objective."""

from chatapp.common.extras import require

require("accelerate", "peft")
